/* What the operands of virtual ranks on a GPU hold, and whether the result is right. */
#ifndef WEFT_TOOLS_BENCH_CUDA_DATA_H
#define WEFT_TOOLS_BENCH_CUDA_DATA_H

#include "run/cuda/world.h"

/* Inputs of every rank: small integers, or random numbers in [-1, 1); D is poisoned. */
bool gpu_data_fill(weft_cuda_world *w, uint64_t seed, bool integers);

/* After a run on integers: the difference over samples of every running rank's D that comes nearest to its
 * bound, which is 0 unless sums travel rounded; infinite when an element was not written. */
double gpu_data_error(weft_cuda_world *w, double *bound);

#endif
