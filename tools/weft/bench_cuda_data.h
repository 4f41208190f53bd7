/* What the operands of virtual ranks on a GPU hold, and whether the result is right. */
#ifndef WEFT_TOOLS_BENCH_CUDA_DATA_H
#define WEFT_TOOLS_BENCH_CUDA_DATA_H

#include "run/cuda/world.h"

/* Inputs of every rank: small integers, or random numbers in [-1, 1); D is poisoned. */
bool gpu_data_fill(weft_cuda_world *w, uint64_t seed, bool integers);

/* The element of some rank's D that is furthest beyond its bound, counted from the rank's first one. */
typedef struct gpu_data_verdict {
    double error, bound; /* the bound is 0 unless sums travel rounded; infinite: it was not written */
    int rank;
    int64_t row, col;
    double got, expected;
} gpu_data_verdict;

/* After a run on integers: whether every element of the running ranks' D was written, and samples of them
 * against the exact product. False when D could not be read. */
bool gpu_data_check(const weft_cuda_world *w, gpu_data_verdict *worst);

/* A wrong result gets a line on standard error with its place: that tells which part of a plan failed. */
void gpu_data_tell(const gpu_data_verdict *worst);

#endif
