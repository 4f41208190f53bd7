/*
 * The product of a rank as one call: all of a rank alone, or what its one GEMM task multiplies. For kernels
 * that make a product by themselves, without the walkers (cublaslt.h, splitk_product.h).
 */
#ifndef WEFT_RUN_CUDA_ASKED_H
#define WEFT_RUN_CUDA_ASKED_H

#include "run/cuda/program.h"

/* A matrix of the product, where it lies. */
typedef struct weft_cuda_matrix {
    char *at; /* NULL: there is none */
    int64_t ld;
    weft_dtype dtype;
    bool transposed;
} weft_cuda_matrix;

/* D[m, n] = A[m, k] B[k, n] with what the epilogue adds; `c` and `bias` have no address where it does not. */
typedef struct weft_cuda_asked {
    int64_t m, n, k;
    weft_cuda_matrix a, b, c, d, bias;
    float alpha, beta;
    int fast; /* fp8: as of the problem */
    weft_act act;
} weft_cuda_asked;

/* `task`: the GEMM task, where there are several ranks. */
weft_cuda_asked weft_cuda_asked_of(const weft_plan_part *part, const weft_cuda_place *places,
                                   const weft_task *task);

/* Lines that begin on 16 bytes, of 2-byte elements. */
bool weft_cuda_matrix_on_vectors(const weft_cuda_matrix *matrix);

#endif
