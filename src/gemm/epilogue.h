/*
 * The epilogue of a block: D = act(alpha * row_scale[i] * col_scale[j] * acc + beta * C + bias[j]), computed
 * in fp32 and rounded once to the type of D.
 *
 * One implementation serves tiles and the reductions of an executor, so that a result does not depend on
 * who applied it. C is not read when beta is 0, nor the sums when alpha is 0; NaN passes through every
 * activation. int32 sums for an int32 D are computed in float64 instead, and saturated.
 *
 * A gated activation makes one column of D of two columns of sums, as weft.h says: D = act(x) * y for x in
 * column 2 j and y in column 2 j + 1, where each is what stands in the brackets above. `cols` counts those.
 */
#ifndef WEFT_GEMM_EPILOGUE_H
#define WEFT_GEMM_EPILOGUE_H

#include <weft/weft.h>

#include <stdbool.h>

static inline bool weft_act_is_gated(weft_act act)
{
    return act >= WEFT_ACT_RELU_GATED;
}

/* Columns of sums that make one of D. */
static inline int64_t weft_act_width(weft_act act)
{
    return weft_act_is_gated(act) ? 2 : 1;
}

typedef struct weft_epilogue {
    float alpha, beta;
    weft_act act;
    weft_dtype acc_dtype;               /* F32 or I32 */
    weft_dtype d_dtype;                 /* F32, F16, BF16, I8 or I32; also of C and bias */
    const float *row_scale, *col_scale; /* of this block's first row and column; NULL = 1 */
    const void *c;                      /* its first element; NULL = none */
    int64_t c_ld;
    const void *bias; /* of its first column; NULL = none */
} weft_epilogue;

/*
 * One block of rows x cols. `c` may be `d`, and so may `acc` (with the same ld) where their types have one
 * size; other overlaps are not allowed.
 */
void weft_epilogue_block(const weft_epilogue *epilogue, int64_t rows, int64_t cols, const void *acc,
                         int64_t acc_ld, void *d, int64_t d_ld);

/* All rows, of at most 512 columns from column j0, of such a block, unless both types are I32. */
typedef void (*weft_finish_columns)(const weft_epilogue *epilogue, int64_t rows, int64_t j0, int64_t cols,
                                    const char *acc, int64_t acc_ld, char *d, int64_t d_ld);

/* kernels/x86/epilogue_avx2.c, needs WEFT_CPU_AVX2. */
void weft_finish_columns_avx2(const weft_epilogue *epilogue, int64_t rows, int64_t j0, int64_t cols,
                              const char *acc, int64_t acc_ld, char *d, int64_t d_ld);

/* The activation of one value, as the blocks above apply it. */
float weft_act_apply(weft_act act, float x);

/* A row of an integer epilogue, or a part of one, from int32 to int32. */
typedef struct weft_integer_row {
    int64_t n;
    const int32_t *acc, *c, *bias; /* those that count; c and bias may be NULL */
    double alpha, row_scale, beta;
    const float *col_scale; /* or NULL */
    weft_act act;
    int32_t *d; /* may be acc or c */
} weft_integer_row;

/* Does the first fours of a row's columns, by vectors; returns how many columns are done: 0 where another
 * activation than ReLU or an alpha of 0 asks for more. The same integers as one column at a time.
 * kernels/x86/epilogue_avx2.c, needs WEFT_CPU_AVX2. */
int64_t weft_integer_fours_avx2(const weft_integer_row *row);

#endif
