/*
 * Combine of float16 rows on CPUs with fp16 arithmetic but without FMLAL; built with -march=armv8.2-a+fp16.
 *
 * Two rows of weight one, which is what reduced mode sums on two ranks, need no fp32: its 24 bits are 2 x 11
 * + 2, so a sum rounded to fp32 and then to fp16 is the sum rounded to fp16 at once. Other sums go to the
 * baseline kernels: FCVTL bounds those, but sums without an error in fp16 would take
 * ten instructions for eight elements where converting them takes four.
 */
#include <arm_neon.h>
#include <string.h>

#include "moe/sum_kernels.h"

enum { LANES = 8, ADD_GROUPS = 8 };

#define INLINE static inline __attribute__((always_inline))

INLINE float16x8_t load8(const void *base, int64_t i)
{
    return vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)base + i));
}

INLINE void store8(void *base, int64_t i, float16x8_t v)
{
    vst1q_u16((uint16_t *)base + i, vreinterpretq_u16_f16(v));
}

/* Columns [i, i + 8 * groups) of one or two rows of weight one. The zero turns -0 into 0, as a sum that
 * starts from it does. */
INLINE void add_columns(void *out, const void *a, const void *b, int64_t i, int groups)
{
    float16x8_t v[ADD_GROUPS], w[ADD_GROUPS];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
        v[g] = load8(a, i + g * LANES);
        if (b)
            w[g] = load8(b, i + g * LANES);
    }
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
        v[g] = vaddq_f16(v[g], vdupq_n_f16(0));
        store8(out, i + g * LANES, b ? vaddq_f16(v[g], w[g]) : v[g]);
    }
}

INLINE void add_all(void *out, const void *a, const void *b, int64_t elements)
{
    int64_t i = 0;

    for (; i + ADD_GROUPS * LANES <= elements; i += ADD_GROUPS * LANES)
        add_columns(out, a, b, i, ADD_GROUPS);
    for (; i + LANES <= elements; i += LANES)
        add_columns(out, a, b, i, 1);
    if (i < elements) {
        uint16_t last[2][LANES] = {{0}};
        size_t bytes = (size_t)(elements - i) * sizeof(uint16_t);

        memcpy(last[0], (const uint16_t *)a + i, bytes);
        if (b)
            memcpy(last[1], (const uint16_t *)b + i, bytes);
        add_columns(last[0], last[0], b ? last[1] : NULL, 0, 1);
        memcpy((uint16_t *)out + i, last[0], bytes);
    }
}

void weft_moe_add_fp16(void *out, const void *const *row, int64_t rows, int64_t elements)
{
    if (rows == 2)
        add_all(out, row[0], row[1], elements);
    else
        add_all(out, row[0], NULL, elements);
}

bool weft_moe_adds_fp16(weft_dtype dtype, const float *weight, int64_t rows)
{
    return dtype == WEFT_F16 && (rows == 1 || rows == 2) && weight[0] == 1 && weight[rows - 1] == 1;
}

void weft_moe_sum_fp16(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                       int64_t elements)
{
    if (weft_moe_adds_fp16(dtype, weight, rows))
        weft_moe_add_fp16(out, row, rows, elements);
    else
        weft_moe_sum_neon(dtype, out, row, weight, rows, elements);
}
