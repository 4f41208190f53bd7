/*
 * What the grouped-GEMM kernel is given, beside the tensor maps of A and B. Included by C and by CUDA.
 *
 * How many rows an expert has is read by the kernel: what the host knows is only how many there may be. Tiles
 * are numbered by the kernel, expert by expert, those with most rows first, and handed out by a counter;
 * which cluster makes a tile changes nothing in it.
 */
#ifndef WEFT_RUN_CUDA_GROUPED_DEVICE_H
#define WEFT_RUN_CUDA_GROUPED_DEVICE_H

#include <stdint.h>

enum {
    WEFT_CUDA_GROUPED_COLS = 256, /* of B in a tile: 128 a CTA */
    WEFT_CUDA_GROUPED_ROWS = 256, /* of A in a tile, at most; of weights stored as fp8: */
    WEFT_CUDA_GROUPED_ROWS_STORED = 128,
    WEFT_CUDA_GROUPED_EXPERTS = 1024, /* what a CTA has tables for; half as many where rows arrive */
    WEFT_CUDA_GROUPED_FEW = 8,        /* rows of A in a box of the one map, and of the other */
    WEFT_CUDA_GROUPED_MANY = 32,
    WEFT_CUDA_GROUPED_SHARED = 226560 /* bytes of a CTA */
};

/* Rows of A that come while the kernel runs, step by step, or `ready` is NULL: they are there. In a run
 * `posts` are made to the word of each step, a line apart, and to one behind them before, when `offset` is
 * there. */
typedef struct weft_cuda_arriving_rows {
    const uint64_t *ready, *runs;
    const int32_t *step; /* which brings a row; rows of an expert lie in the order of steps */
    uint32_t *abort;     /* not zero: nothing comes any more, and what is made is of no use */
    uint64_t deadline_ns;
    int32_t posts, steps;
} weft_cuda_arriving_rows;

typedef struct weft_cuda_grouped {
    int64_t rows, cols; /* of A and D; of an expert's B: twice the columns of D where `gated` */
    int64_t lda, ldb, stride_b, ldd;
    const int64_t *offset, *start;
    const void *a, *b;
    void *d;
    const void *bias;
    const float *row_scale, *col_scale;
    uint32_t *counter; /* tiles handed out, clusters that found none left; 0 between launches */
    int32_t experts, k, transb;
    int32_t dtype, b_dtype, d_dtype, act, gated;
    /* D is the sums, rounded, or their gated activation: nothing else is asked for, of stored weights but
     * factors of columns */
    int32_t bare;
    int32_t aligned; /* D allows stores of 16 bytes */
    float alpha;
    weft_cuda_arriving_rows arriving;
} weft_cuda_grouped;

#endif
