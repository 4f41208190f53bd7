/*
 * The epilogue, row by row: D = act(alpha * acc + beta * C + bias), rounded once to the type of D.
 *
 * One implementation serves tiles and the reductions of an executor, so that a result does not depend on
 * who applied it. C is not read when beta is 0; NaN passes through every activation.
 */
#ifndef WEFT_GEMM_EPILOGUE_H
#define WEFT_GEMM_EPILOGUE_H

#include <weft/weft.h>

typedef struct weft_epilogue {
    float alpha, beta;
    weft_act act;
    weft_dtype acc_dtype; /* F32 or I32 */
    weft_dtype d_dtype;   /* F32, F16, BF16, I8 or I32; also of C and bias */
} weft_epilogue;

/*
 * One row of n elements. `row_scale` multiplies alpha; `col_scale` (n floats), c and bias may be NULL. `c`
 * may be `d`, as may `acc`; other overlaps are not allowed. int32 to int32 is computed exactly (saturated).
 */
void weft_epilogue_row(const weft_epilogue *epilogue, int64_t n, const void *acc, float row_scale,
                       const float *col_scale, const void *c, const void *bias, void *d);

/* The activation of one value, as the rows above apply it. */
float weft_act_apply(weft_act act, float x);

#endif
