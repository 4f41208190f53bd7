/* Whether a rank's D on a GPU is right: the check before times are taken. */
#ifndef WEFT_TOOLS_BENCH_CUDA_VERDICT_H
#define WEFT_TOOLS_BENCH_CUDA_VERDICT_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

/* The element of some rank's D that is furthest beyond its bound, counted from the rank's first one. */
typedef struct gpu_verdict {
    double error, bound; /* the bound is 0 unless sums travel rounded; infinite error: it was not written */
    int rank;
    int64_t row, col;
    double got, expected;
    bool any; /* false before the first element */
} gpu_verdict;

/* A rank's D after a run on integers, as it was read back, and what it must be. */
typedef struct gpu_result {
    const weft_problem *problem;
    int world, rank;
    const void *image; /* of the problem's d_dtype */
    int64_t rows, cols, ld;
    /* The exact value of an element, and the sum of its terms' magnitudes. Not a number: a rank that does not
     * run would store it. */
    double (*exact)(const void *source, int rank, int64_t row, int64_t col, double *magnitude);
    const void *source;
} gpu_result;

/* Looks whether every element was written, and at `samples` of them against the exact value as D rounds it.
 */
void gpu_verdict_add(gpu_verdict *worst, const gpu_result *result, int samples, uint64_t seed);

/* Whether it is right, or nothing was asked of it. */
bool gpu_verdict_good(const gpu_verdict *worst);

/* A wrong result gets a line on standard error with its place: that tells which part of a plan failed. */
void gpu_verdict_tell(const gpu_verdict *worst);

#endif
