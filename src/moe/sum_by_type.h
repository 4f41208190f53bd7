/*
 * The loops of a file of vector kernels, which says how its machine handles eight elements, inlined and with
 * the type as an argument:
 *
 *     EIGHT                eight fp32
 *     load8, store8        from and to any type
 *     scaled8              round(x * factor), as fp32
 *     zero8, add8          sums; sum + v * weight
 *     KERNELS              the name of its set
 */
#include "moe/sum_kernels.h"

enum { LANES = 8, GROUPS = 8 };

/* Columns [i, i + 8 * groups) of the weighted sum; `x` set: of the scaled x instead of the rows. */
INLINE void sum_columns(weft_dtype dtype, void *out, const void *const *row, const void *x,
                        const float *factor, const float *weight, int64_t rows, int64_t i, int groups)
{
    EIGHT sum[GROUPS];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        sum[g] = zero8();
    for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
            int64_t at = i + g * LANES;

            sum[g] = add8(sum[g], x ? scaled8(dtype, x, at, factor[r]) : load8(dtype, row[r], at), weight[r]);
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        store8(dtype, out, i + g * LANES, sum[g]);
}

/* The last columns, fewer than a vector, in a padded copy: every column then has the same arithmetic. */
INLINE void sum_tail(weft_dtype dtype, void *out, const void *const *row, const void *x, const float *factor,
                     const float *weight, int64_t rows, int64_t i, int64_t elements)
{
    size_t size = dtype == WEFT_F32 ? 4 : 2, bytes = (size_t)(elements - i) * size;
    char last[LANES * 4] = {0}, result[LANES * 4];
    EIGHT sum = zero8();

    for (int64_t r = 0; r < rows; r++) {
        memcpy(last, (const char *)(x ? x : row[r]) + (size_t)i * size, bytes);
        sum = add8(sum, x ? scaled8(dtype, last, 0, factor[r]) : load8(dtype, last, 0), weight[r]);
    }
    store8(dtype, result, 0, sum);
    memcpy((char *)out + (size_t)i * size, result, bytes);
}

INLINE void sum_any(weft_dtype dtype, void *out, const void *const *row, const void *x, const float *factor,
                    const float *weight, int64_t rows, int64_t elements)
{
    int64_t i = 0;

    for (; i + GROUPS * LANES <= elements; i += GROUPS * LANES)
        sum_columns(dtype, out, row, x, factor, weight, rows, i, GROUPS);
    for (; i + LANES <= elements; i += LANES)
        sum_columns(dtype, out, row, x, factor, weight, rows, i, 1);
    if (i < elements)
        sum_tail(dtype, out, row, x, factor, weight, rows, i, elements);
}

INLINE void scale_any(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    size_t size = dtype == WEFT_F32 ? 4 : 2;
    char last[LANES * 4] = {0}, result[LANES * 4];
    int64_t i = 0;

#pragma GCC unroll 8
    for (; i + LANES <= elements; i += LANES)
        store8(dtype, out, i, scaled8(dtype, x, i, factor));
    if (i < elements) {
        memcpy(last, (const char *)x + (size_t)i * size, (size_t)(elements - i) * size);
        store8(dtype, result, 0, scaled8(dtype, last, 0, factor));
        memcpy((char *)out + (size_t)i * size, result, (size_t)(elements - i) * size);
    }
}

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
    weft_moe_add_other(sum, dtype, out, other, elements);
}

const weft_moe_kernels KERNELS = {sum, scale, scale_sum};
