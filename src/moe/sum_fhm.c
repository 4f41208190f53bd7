/*
 * Combine of float16 rows on CPUs with FMLAL (fp16 x fp16 added to fp32) and fp16 arithmetic; built with
 * -march=armv8.2-a+fp16+fp16fml.
 *
 * Conversions from fp16 are slow on Neoverse cores (FCVTL: one in a cycle where a multiply-add has four), so
 * rows are never converted. A weight is split into fp16 parts, w = high + low / 64. FMLAL adds high * row to
 * the fp32 sum, its products exact; low * row is added up in fp16, which is 2^-11 of a part that is itself
 * at most 2^-11 of the whole, and joins the fp32 sum once, at the end. So the error of a term is about 2^-22
 * of it, plus 2^-31: both far below the rounding of the result to fp16 (2^-12 of it, or 2^-25). Weights that
 * are fp16 numbers have no low part. Weights that fp16 cannot hold take the baseline kernels.
 *
 * Card: 48 columns, 12 + 6 accumulators; loads per row and step 6; FP operations per 8 elements and row:
 * 3 (2 without low parts), 4 with the stand-in expert.
 */
#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/dtype.h"
#include "moe/sum_kernels.h"

enum { WIDE = 48, LANES = 8, GROUPS = WIDE / LANES, ROWS_MAX = 64 };

#define INLINE static inline __attribute__((always_inline))

static const float LOW_SCALE = 64.0f;

typedef struct split {
    __fp16 high[ROWS_MAX], low[ROWS_MAX], factor[ROWS_MAX];
    bool any_low;
} split;

/* Whether every weight can be split. */
static bool split_weights(split *parts, const float *weight, const float *factor, int64_t rows)
{
    parts->any_low = false;
    if (rows > ROWS_MAX)
        return false;
    for (int64_t r = 0; r < rows; r++) {
        if (!(fabsf(weight[r]) <= 32768.0f))
            return false;
        parts->high[r] = (__fp16)weight[r];
        parts->low[r] = (__fp16)((weight[r] - (float)parts->high[r]) * LOW_SCALE);
        parts->factor[r] = factor ? (__fp16)factor[r] : 0;
        parts->any_low |= parts->low[r] != 0;
    }
    return true;
}

INLINE float16x8_t load8(const void *base, int64_t i)
{
    return vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)base + i));
}

/* Columns [i, i + 8 * groups); `x` set: of x times the factors instead of the rows. */
INLINE void sum_columns(void *out, const void *const *row, const void *x, const split *parts, int64_t rows,
                        int64_t i, int groups, bool low)
{
    float32x4_t sum[2 * GROUPS];
    float16x8_t rest[GROUPS], v[GROUPS];
    const float16x8_t back = vdupq_n_f16((__fp16)(1.0f / LOW_SCALE));

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
        sum[2 * g] = sum[2 * g + 1] = vdupq_n_f32(0);
        rest[g] = vdupq_n_f16(0);
    }
    for (int64_t r = 0; r < rows; r++) {
        const float16x8_t high = vdupq_n_f16(parts->high[r]);

#pragma GCC unroll 8
        for (int g = 0; g < groups; g++)
            v[g] = load8(x ? x : row[r], i + g * LANES);
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
            if (x)
                v[g] = vmulq_n_f16(v[g], parts->factor[r]);
            sum[2 * g] = vfmlalq_low_f16(sum[2 * g], v[g], high);
            sum[2 * g + 1] = vfmlalq_high_f16(sum[2 * g + 1], v[g], high);
            if (low)
                rest[g] = vfmaq_n_f16(rest[g], v[g], parts->low[r]);
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
        if (low) {
            sum[2 * g] = vfmlalq_low_f16(sum[2 * g], rest[g], back);
            sum[2 * g + 1] = vfmlalq_high_f16(sum[2 * g + 1], rest[g], back);
        }
        vst1q_u16((uint16_t *)out + i + g * LANES,
                  vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(sum[2 * g]), sum[2 * g + 1])));
    }
}

/* The last columns, fewer than a vector, in padded copies: every column has the same arithmetic. */
static void sum_tail(void *out, const void *const *row, const void *x, const split *parts, int64_t rows,
                     int64_t i, int64_t elements)
{
    uint16_t last[ROWS_MAX][LANES] = {{0}}, result[LANES];
    const void *pointer[ROWS_MAX];
    size_t bytes = (size_t)(elements - i) * sizeof(uint16_t);

    for (int64_t r = 0; r < (x ? 1 : rows); r++) {
        memcpy(last[r], (const uint16_t *)(x ? x : row[r]) + i, bytes);
        pointer[r] = last[r];
    }
    sum_columns(result, pointer, x ? last[0] : NULL, parts, rows, 0, 1, true);
    memcpy((uint16_t *)out + i, result, bytes);
}

INLINE void sum_all(void *out, const void *const *row, const void *x, const split *parts, int64_t rows,
                    int64_t elements, bool low)
{
    int64_t i = 0;

    for (; i + WIDE <= elements; i += WIDE)
        sum_columns(out, row, x, parts, rows, i, GROUPS, low);
    for (; i + LANES <= elements; i += LANES)
        sum_columns(out, row, x, parts, rows, i, 1, low);
    if (i < elements)
        sum_tail(out, row, x, parts, rows, i, elements);
}

static void sum_f16(void *out, const void *const *row, const float *weight, int64_t rows, int64_t elements)
{
    split parts;

    if (!split_weights(&parts, weight, NULL, rows))
        weft_moe_kernels_neon[WEFT_F16].sum(out, row, weight, rows, elements);
    else if (parts.any_low)
        sum_all(out, row, NULL, &parts, rows, elements, true);
    else
        sum_all(out, row, NULL, &parts, rows, elements, false);
}

static void scale_sum_f16(void *out, const void *x, const float *factor, const float *weight, int64_t factors,
                          int64_t elements)
{
    split parts;

    if (!split_weights(&parts, weight, factor, factors))
        weft_moe_kernels_neon[WEFT_F16].scale_sum(out, x, factor, weight, factors, elements);
    else
        sum_all(out, NULL, x, &parts, factors, elements, true);
}

static void scale_f16(void *out, const void *x, float factor, int64_t elements)
{
    int64_t i = 0;

#pragma GCC unroll 8
    for (; i + LANES <= elements; i += LANES)
        vst1q_u16((uint16_t *)out + i, vreinterpretq_u16_f16(vmulq_n_f16(load8(x, i), (__fp16)factor)));
    if (i < elements)
        weft_moe_kernels_neon[WEFT_F16].scale((uint16_t *)out + i, (const uint16_t *)x + i, factor,
                                              elements - i);
}

const weft_moe_kernels weft_moe_kernels_fhm = {sum_f16, scale_f16, scale_sum_f16};
