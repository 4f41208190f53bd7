/*
 * Combine on aarch64: 64 columns at a time, so that sixteen fp32 accumulators hide the latency of the
 * multiply-adds while the rows stream by once.
 */
#include <arm_neon.h>
#include <string.h>

#include "core/dtype.h"
#include "moe/sum_kernels.h"

enum { WIDE = 64, LANES = 8 };

#define INLINE static inline __attribute__((always_inline))

typedef struct pair {
    float32x4_t low, high;
} pair;

/* Eight elements as fp32. */
INLINE pair load8(weft_dtype dtype, const void *base, int64_t i)
{
    if (dtype == WEFT_F16) {
        float16x8_t v = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)base + i));

        return (pair){vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
    }
    if (dtype == WEFT_BF16) {
        uint16x8_t v = vld1q_u16((const uint16_t *)base + i);

        return (pair){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
                      vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))};
    }
    return (pair){vld1q_f32((const float *)base + i), vld1q_f32((const float *)base + i + 4)};
}

/* The upper halves of fp32, rounded to nearest even; a NaN keeps its upper bits and is made quiet. */
INLINE uint16x4_t to_bf16(float32x4_t v)
{
    uint32x4_t bits = vreinterpretq_u32_f32(v);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t round = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));

    return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), round, quiet), 16);
}

INLINE void store8(weft_dtype dtype, void *base, int64_t i, pair v)
{
    if (dtype == WEFT_F16)
        vst1q_u16((uint16_t *)base + i,
                  vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.low), v.high)));
    else if (dtype == WEFT_BF16)
        vst1q_u16((uint16_t *)base + i, vcombine_u16(to_bf16(v.low), to_bf16(v.high)));
    else {
        vst1q_f32((float *)base + i, v.low);
        vst1q_f32((float *)base + i + 4, v.high);
    }
}

/* round(x * factor) of eight elements, as fp32. */
INLINE pair scaled8(weft_dtype dtype, const void *x, int64_t i, float factor)
{
    pair v = load8(dtype, x, i);

    v = (pair){vmulq_n_f32(v.low, factor), vmulq_n_f32(v.high, factor)};
    if (dtype == WEFT_F16)
        return (pair){vcvt_f32_f16(vcvt_f16_f32(v.low)), vcvt_f32_f16(vcvt_f16_f32(v.high))};
    if (dtype == WEFT_BF16)
        return (pair){vreinterpretq_f32_u32(vshll_n_u16(to_bf16(v.low), 16)),
                      vreinterpretq_f32_u32(vshll_n_u16(to_bf16(v.high), 16))};
    return v;
}

/* Columns [i, i + 8 * groups) of the weighted sum; `x` set: of the scaled x instead of the rows. */
INLINE void sum_columns(weft_dtype dtype, void *out, const void *const *row, const void *x,
                        const float *factor, const float *weight, int64_t rows, int64_t i, int groups)
{
    pair sum[WIDE / LANES];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        sum[g] = (pair){vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
            pair v = x ? scaled8(dtype, x, i + g * LANES, factor[r]) : load8(dtype, row[r], i + g * LANES);

            sum[g].low = vfmaq_n_f32(sum[g].low, v.low, weight[r]);
            sum[g].high = vfmaq_n_f32(sum[g].high, v.high, weight[r]);
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
    pair sum = {vdupq_n_f32(0), vdupq_n_f32(0)};

    for (int64_t r = 0; r < rows; r++) {
        pair v;

        memcpy(last, (const char *)(x ? x : row[r]) + (size_t)i * size, bytes);
        v = x ? scaled8(dtype, last, 0, factor[r]) : load8(dtype, last, 0);
        sum.low = vfmaq_n_f32(sum.low, v.low, weight[r]);
        sum.high = vfmaq_n_f32(sum.high, v.high, weight[r]);
    }
    store8(dtype, result, 0, sum);
    memcpy((char *)out + (size_t)i * size, result, bytes);
}

INLINE void sum_any(weft_dtype dtype, void *out, const void *const *row, const void *x, const float *factor,
                    const float *weight, int64_t rows, int64_t elements)
{
    int64_t i = 0;

    for (; i + WIDE <= elements; i += WIDE)
        sum_columns(dtype, out, row, x, factor, weight, rows, i, WIDE / LANES);
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

#define KERNELS weft_moe_kernels_neon
#include "moe/sum_by_type.h"
