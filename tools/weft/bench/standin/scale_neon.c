/* The stand-in expert on aarch64. */
#include "bench/standin/scale_kernels.h"
#include "moe/lanes_neon.h"

/* round(x * factor) of eight elements, as fp32. */
INLINE pair scaled_lanes(weft_dtype dtype, const void *x, int64_t i, float factor)
{
    pair v = load_lanes(dtype, x, i);

    v = (pair){vmulq_n_f32(v.low, factor), vmulq_n_f32(v.high, factor)};
    if (dtype == WEFT_F16)
        return (pair){vcvt_f32_f16(vcvt_f16_f32(v.low)), vcvt_f32_f16(vcvt_f16_f32(v.high))};
    if (dtype == WEFT_BF16)
        return (pair){vreinterpretq_f32_u32(vshll_n_u16(to_bf16(v.low), 16)),
                      vreinterpretq_f32_u32(vshll_n_u16(to_bf16(v.high), 16))};
    return v;
}

#define KERNELS weft_standin_kernels_neon
#include "bench/standin/scale_by_type.h"
