/* What the operands of virtual ranks on a GPU hold, and what they must give. */
#ifndef WEFT_TOOLS_BENCH_CUDA_DATA_H
#define WEFT_TOOLS_BENCH_CUDA_DATA_H

#include "bench/cuda/verdict.h"
#include "run/cuda/world.h"

/* Inputs of every rank: small integers, or random numbers in [-1, 1); D is poisoned. */
bool gpu_data_fill(weft_cuda_world *w, uint64_t seed, bool integers);

/* After a run on integers: whether every element of the running ranks' D was written, and samples of them
 * against the exact product. False when D could not be read. */
bool gpu_data_check(const weft_cuda_world *w, gpu_verdict *worst);

#endif
