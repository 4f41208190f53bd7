/*
 * How long cuBLASLt's algorithms take, by a model of their tiles, so that the choice among them needs no
 * timing: the first of its own list is now and then twice as slow as another of it.
 */
#ifndef WEFT_RUN_CUDA_CUBLASLT_COST_H
#define WEFT_RUN_CUDA_CUBLASLT_COST_H

#include "run/cuda/cublaslt.h"

/* What an algorithm takes, in nanoseconds, for the row-major product m x n x k of 16-bit elements on a GPU
 * with that many SMs; 0 where its tile is not known. */
double weft_cublaslt_cost(const weft_cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm, int64_t m,
                          int64_t n, int64_t k, int sms);

#endif
