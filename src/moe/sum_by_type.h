/*
 * The end of a file of vector kernels, which has defined sum_any and scale_any, inlined and with the type as
 * an argument, and KERNELS, the name of its set.
 */
#include "moe/sum_kernels.h"

/* The type is a constant in each call below, so each becomes a loop of its own. */
static void sum(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                int64_t elements)
{
    if (dtype == WEFT_F16)
        sum_any(WEFT_F16, out, row, NULL, NULL, weight, rows, elements);
    else if (dtype == WEFT_BF16)
        sum_any(WEFT_BF16, out, row, NULL, NULL, weight, rows, elements);
    else
        sum_any(WEFT_F32, out, row, NULL, NULL, weight, rows, elements);
}

static void scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    if (dtype == WEFT_F16)
        scale_any(WEFT_F16, out, x, factor, elements);
    else if (dtype == WEFT_BF16)
        scale_any(WEFT_BF16, out, x, factor, elements);
    else
        scale_any(WEFT_F32, out, x, factor, elements);
}

static void scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                      int64_t factors, const void *other, int64_t elements)
{
    if (dtype == WEFT_F16)
        sum_any(WEFT_F16, out, NULL, x, factor, weight, factors, elements);
    else if (dtype == WEFT_BF16)
        sum_any(WEFT_BF16, out, NULL, x, factor, weight, factors, elements);
    else
        sum_any(WEFT_F32, out, NULL, x, factor, weight, factors, elements);
    weft_moe_add_other(&KERNELS, dtype, out, other, elements);
}

const weft_moe_kernels KERNELS = {sum, scale, scale_sum};
