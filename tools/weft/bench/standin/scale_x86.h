/* How x86-64 scales, for scale_by_type.h. The including file defines VECTOR_BYTES and KERNELS. */
#include "bench/standin/scale_kernels.h"
#include "moe/lanes_x86.h"

/* round(x * factor) of a vector of elements, as fp32. */
INLINE lanes scaled_lanes(weft_dtype dtype, const void *x, int64_t i, float factor)
{
    lanes v = vec_mul(load_lanes(dtype, x, i), vec_one(factor));

    return dtype == WEFT_F16 ? vec_round_f16(v) : dtype == WEFT_BF16 ? vec_round_bf16(v) : v;
}

#include "bench/standin/scale_by_type.h"
