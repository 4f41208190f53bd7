/*
 * The loops of weighted sums by vectors. The including file says, inlined and with the type as an argument,
 * how its machine handles a vector of elements (lanes_*.h) and what is added up:
 *
 *     lanes, LANES         a vector of fp32, and how many
 *     zero_lanes, add_lanes, store_lanes
 *                          sums; sum + v * weight; to any type
 *     terms                what the terms are made of
 *     term_line            where term r lies
 *     term_lanes           LANES elements of term r, as fp32, from such a line (or a copy of its end)
 */
#include <string.h>

#include <weft/weft.h>

enum { GROUPS = 8 };

/* Columns [i, i + LANES * groups) of the weighted sum. */
INLINE void sum_columns(weft_dtype dtype, void *out, const terms *of, const float *weight, int64_t count,
                        int64_t i, int groups)
{
    lanes sum[GROUPS];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        sum[g] = zero_lanes();
    for (int64_t r = 0; r < count; r++) {
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++)
            sum[g] = add_lanes(sum[g], term_lanes(dtype, of, r, term_line(of, r), i + g * LANES), weight[r]);
    }
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        store_lanes(dtype, out, i + g * LANES, sum[g]);
}

/* The last columns, fewer than a vector, in a padded copy: every column then has the same arithmetic. */
INLINE void sum_tail(weft_dtype dtype, void *out, const terms *of, const float *weight, int64_t count,
                     int64_t i, int64_t elements)
{
    size_t size = dtype == WEFT_F32 ? 4 : 2, bytes = (size_t)(elements - i) * size;
    char last[LANES * 4] = {0}, result[LANES * 4];
    lanes sum = zero_lanes();

    for (int64_t r = 0; r < count; r++) {
        memcpy(last, (const char *)term_line(of, r) + (size_t)i * size, bytes);
        sum = add_lanes(sum, term_lanes(dtype, of, r, last, 0), weight[r]);
    }
    store_lanes(dtype, result, 0, sum);
    memcpy((char *)out + (size_t)i * size, result, bytes);
}

INLINE void sum_any(weft_dtype dtype, void *out, const terms *of, const float *weight, int64_t count,
                    int64_t elements)
{
    int64_t i = 0;

    for (; i + GROUPS * LANES <= elements; i += GROUPS * LANES)
        sum_columns(dtype, out, of, weight, count, i, GROUPS);
    for (; i + LANES <= elements; i += LANES)
        sum_columns(dtype, out, of, weight, count, i, 1);
    if (i < elements)
        sum_tail(dtype, out, of, weight, count, i, elements);
}

/* The type is a constant in each call, so each becomes a loop of its own. */
static inline void sum_by_type(weft_dtype dtype, void *out, const terms *of, const float *weight,
                               int64_t count, int64_t elements)
{
    if (dtype == WEFT_F16)
        sum_any(WEFT_F16, out, of, weight, count, elements);
    else if (dtype == WEFT_BF16)
        sum_any(WEFT_BF16, out, of, weight, count, elements);
    else
        sum_any(WEFT_F32, out, of, weight, count, elements);
}
