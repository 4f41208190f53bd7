/*
 * The loops of a file of vector kernels, which has moe/lanes_*.h, says how its machine scales a vector of
 * elements, and names its set:
 *
 *     scaled_lanes         round(x * factor), as fp32
 *     KERNELS              the name of the set
 */

/* The terms of moe/sum_loops.h: one row, scaled by each of the factors. */
typedef struct terms {
    const void *x;
    const float *factor;
} terms;

INLINE const void *term_line(const terms *of, int64_t r)
{
    (void)r;
    return of->x;
}

INLINE lanes term_lanes(weft_dtype dtype, const terms *of, int64_t r, const void *line, int64_t i)
{
    return scaled_lanes(dtype, line, i, of->factor[r]);
}

#include "moe/sum_loops.h"

INLINE void scale_any(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    size_t size = dtype == WEFT_F32 ? 4 : 2;
    char last[LANES * 4] = {0}, result[LANES * 4];
    int64_t i = 0;

#pragma GCC unroll 8
    for (; i + LANES <= elements; i += LANES)
        store_lanes(dtype, out, i, scaled_lanes(dtype, x, i, factor));
    if (i < elements) {
        memcpy(last, (const char *)x + (size_t)i * size, (size_t)(elements - i) * size);
        store_lanes(dtype, result, 0, scaled_lanes(dtype, last, 0, factor));
        memcpy((char *)out + (size_t)i * size, result, (size_t)(elements - i) * size);
    }
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
    const terms of = {x, factor};

    sum_by_type(dtype, out, &of, weight, factors, elements);
    weft_standin_add_other(dtype, out, other, elements);
}

const weft_standin_kernels KERNELS = {scale, scale_sum};
