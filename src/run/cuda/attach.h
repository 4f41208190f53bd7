/* The door of the CUDA backend for groups; needs no CUDA header. */
#ifndef WEFT_RUN_CUDA_ATTACH_H
#define WEFT_RUN_CUDA_ATTACH_H

#include "group/group.h"

/* Collective: see weft_gpu_attach. */
weft_status weft_cuda_attach(weft_group *group, int device);

#endif
