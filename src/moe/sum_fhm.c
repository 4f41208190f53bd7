/*
 * Combine of float16 rows on CPUs with FMLAL (fp16 x fp16 added to fp32) and fp16 arithmetic; built with
 * -march=armv8.2-a+fp16+fp16fml. Other types go to the baseline kernels.
 *
 * Conversions are slow on Neoverse cores (FCVTL and FCVTN: one in a cycle where a multiply-add has four, and
 * the other pipes wait too), so rows are never converted. A weight is split into fp16 parts, w = high +
 * low / 64. FMLAL adds high * row to the fp32 sum, its products exact; low * row is added up in fp16, which
 * is 2^-11 of a part that is itself at most 2^-11 of the whole, and joins the fp32 sum once, at the end. So
 * the error of a term is about 2^-22 of it, plus 2^-31: both far below the rounding of the result to fp16
 * (2^-12 of it, or 2^-25). Weights that are fp16 numbers have no low part. Weights that fp16 cannot hold take
 * the baseline kernels.
 *
 * Card. Rows: 48 columns, 12 + 6 accumulators, 6 loads a row and step, 3 FP operations per 8 elements and row
 * (2 without low parts).
 */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "moe/fpsr.h"
#include "moe/sum_kernels.h"

enum { LANES = 8, ROW_GROUPS = 6, ROWS_MAX = 64 };

#define INLINE static inline __attribute__((always_inline))

static const float LOW_SCALE = 64.0f, WEIGHT_MAX = 32768.0f;

typedef struct split {
    __fp16 high[ROWS_MAX], low[ROWS_MAX];
    bool any_low;
} split;

/* Whether every weight can be split. */
static bool split_weights(split *parts, const float *weight, int64_t rows)
{
    parts->any_low = false;
    if (rows > ROWS_MAX)
        return false;
    for (int64_t r = 0; r < rows; r++) {
        if (!(fabsf(weight[r]) <= WEIGHT_MAX))
            return false;
        parts->high[r] = (__fp16)weight[r];
        parts->low[r] = (__fp16)((weight[r] - (float)parts->high[r]) * LOW_SCALE);
        parts->any_low |= weight[r] != (float)parts->high[r];
    }
    return true;
}

INLINE float16x8_t load8(const void *base, int64_t i)
{
    return vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)base + i));
}

INLINE void store8(void *base, int64_t i, float16x8_t v)
{
    vst1q_u16((uint16_t *)base + i, vreinterpretq_u16_f16(v));
}

/* Columns [i, i + 8 * groups). */
INLINE void sum_columns(void *out, const void *const *row, const split *parts, int64_t rows, int64_t i,
                        int groups, bool low)
{
    float32x4_t sum[2 * ROW_GROUPS];
    float16x8_t rest[ROW_GROUPS], v[ROW_GROUPS];
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
            v[g] = load8(row[r], i + g * LANES);
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
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
        store8(out, i + g * LANES, vcvt_high_f16_f32(vcvt_f16_f32(sum[2 * g]), sum[2 * g + 1]));
    }
}

/* The last columns, fewer than a vector, in padded copies: every column has the same arithmetic. */
static void sum_tail(void *out, const void *const *row, const split *parts, int64_t rows, int64_t i,
                     int64_t elements, bool low)
{
    uint16_t last[ROWS_MAX][LANES] = {{0}}, result[LANES];
    const void *pointer[ROWS_MAX];
    size_t bytes = (size_t)(elements - i) * sizeof(uint16_t);

    for (int64_t r = 0; r < rows; r++) {
        memcpy(last[r], (const uint16_t *)row[r] + i, bytes);
        pointer[r] = last[r];
    }
    sum_columns(result, pointer, parts, rows, 0, 1, low);
    memcpy((uint16_t *)out + i, result, bytes);
}

INLINE void sum_all(void *out, const void *const *row, const split *parts, int64_t rows, int64_t elements,
                    bool low)
{
    int64_t i = 0;

    for (; i + ROW_GROUPS * LANES <= elements; i += ROW_GROUPS * LANES)
        sum_columns(out, row, parts, rows, i, ROW_GROUPS, low);
    for (; i + LANES <= elements; i += LANES)
        sum_columns(out, row, parts, rows, i, 1, low);
    if (i < elements)
        sum_tail(out, row, parts, rows, i, elements, low);
}

/* The parts of a weight may have different signs, or vanish: an infinite row would give NaN. */
static void sum_checked(weft_dtype dtype, void *out, const void *const *row, const float *weight,
                        const split *parts, int64_t rows, int64_t elements)
{
    uint64_t before = weft_fpsr_watch();

    sum_all(out, row, parts, rows, elements, true);
    if (!weft_fpsr_clean(before))
        weft_moe_sum_neon(dtype, out, row, weight, rows, elements);
}

void weft_moe_sum_fhm(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                      int64_t elements)
{
    split parts;

    if (dtype != WEFT_F16 || !split_weights(&parts, weight, rows))
        weft_moe_sum_neon(dtype, out, row, weight, rows, elements);
    else if (weft_moe_adds_fp16(dtype, weight, rows))
        weft_moe_add_fp16(out, row, rows, elements);
    else if (parts.any_low)
        sum_checked(dtype, out, row, weight, &parts, rows, elements);
    else
        sum_all(out, row, &parts, rows, elements, false);
}
