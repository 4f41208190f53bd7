/* Eight elements of a row at a time on aarch64: from and to every type of results, and added up in
 * fp32. Included by files of kernels alone. */
#ifndef WEFT_MOE_LANES_NEON_H
#define WEFT_MOE_LANES_NEON_H

#include <arm_neon.h>

#include <weft/weft.h>

#define INLINE static inline __attribute__((always_inline))

typedef struct pair {
    float32x4_t low, high;
} pair;

/* Eight elements as fp32. */
INLINE pair load_lanes(weft_dtype dtype, const void *base, int64_t i)
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

INLINE void store_lanes(weft_dtype dtype, void *base, int64_t i, pair v)
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

INLINE pair zero_lanes(void)
{
    return (pair){vdupq_n_f32(0), vdupq_n_f32(0)};
}

/* sum + v * weight */
INLINE pair add_lanes(pair sum, pair v, float weight)
{
    return (pair){vfmaq_n_f32(sum.low, v.low, weight), vfmaq_n_f32(sum.high, v.high, weight)};
}

typedef pair lanes;

enum { LANES = 8 };

#endif
