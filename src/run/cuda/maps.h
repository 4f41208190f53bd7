/*
 * Where tensor maps lie in the memory of a GPU.
 *
 * What an SM keeps of the maps it has used outlives a kernel, so memory that held a map must not get another
 * one unless every CTA fences before it uses it, which costs a launch about a microsecond. So maps go where
 * there was none before: into an arena of the process for each GPU, each place used once. When the arena is
 * full, they go with the other tables, and the kernels fence.
 */
#ifndef WEFT_RUN_CUDA_MAPS_H
#define WEFT_RUN_CUDA_MAPS_H

#include "run/cuda/driver.h"

/* Copies `count` maps to a place where none has been, and says where: 0 when there is no such place left. May
 * be called by several threads. */
CUdeviceptr weft_cuda_maps_place(weft_cuda_device *device, const CUtensorMap *maps, uint32_t count);

#endif
