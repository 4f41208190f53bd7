/*
 * What the kernel of epilogue.h is given. Included by C and by CUDA.
 */
#ifndef WEFT_RUN_CUDA_EPILOGUE_DEVICE_H
#define WEFT_RUN_CUDA_EPILOGUE_DEVICE_H

#include <stdint.h>

enum {
    WEFT_CUDA_EPILOGUE_THREADS = 256,
    WEFT_CUDA_EPILOGUE_WIDTH =
        4, /* columns of D that a thread makes at once; lines of sums have whole ones */
};

typedef struct weft_cuda_epilogue {
    int64_t batch, rows, cols; /* of D */
    const float *sums;         /* on 16 bytes; gate and up of a column side by side where `gated` */
    int64_t sums_ld, sums_stride;
    void *d;
    const void *c, *bias; /* or NULL */
    int64_t d_ld, d_stride, c_ld, c_stride;
    const float *alpha_at, *beta_at;    /* NULL, or where the values are when the kernel runs */
    const float *row_scale, *col_scale; /* or NULL */
    float alpha, beta;
    int32_t act, gated, dtype; /* dtype: of C, D and bias */
    int32_t wide;              /* C and D may be read and written WIDTH elements at a time */
} weft_cuda_epilogue;

#endif
