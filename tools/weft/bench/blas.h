/*
 * BLAS libraries found at run time, as peers for float32 products: loaded by dlopen, so that weft depends on
 * none of them.
 */
#ifndef WEFT_TOOLS_BENCH_BLAS_H
#define WEFT_TOOLS_BENCH_BLAS_H

#include <stdbool.h>

typedef struct blas_library {
    char name[64]; /* "OpenBLAS 0.3.21" */
    /* The CBLAS calls, 32-bit integers; order 101 is row-major, 111 plain, 112 transposed. */
    void (*sgemm)(int order, int transa, int transb, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda, const float *x,
                  int incx, float beta, float *y, int incy);
    void (*set_threads)(int threads);
} blas_library;

enum { BLAS_ROW_MAJOR = 101, BLAS_PLAIN = 111, BLAS_TRANSPOSED = 112 };

/* Loaded once; NULL when it is not installed. */
const blas_library *blas_openblas(void);
const blas_library *blas_blis(void);

#endif
