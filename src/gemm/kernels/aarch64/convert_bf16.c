/* fp32 to bf16 by BFCVTN: the same rounding as the portable code, at a sixth of its instructions. */
#include "gemm/convert.h"

#include <arm_neon.h>

void weft_convert_bf16_bfcvt(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(src + i));

        vst1q_u16(dst + i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(src + i + 4))));
    }
    for (; i < n; i++) {
        bfloat16x4_t one = vcvt_bf16_f32(vdupq_n_f32(src[i]));

        dst[i] = vget_lane_u16(vreinterpret_u16_bf16(one), 0);
    }
}
