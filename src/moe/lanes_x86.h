/* A vector of elements of a row at a time on x86-64: from and to every type of results, and added up in fp32.
 * Included by files of kernels alone, which define VECTOR_BYTES. */
#ifndef WEFT_MOE_LANES_X86_H
#define WEFT_MOE_LANES_X86_H

#include "gemm/kernels/x86/vector.h"

typedef vec lanes;

INLINE lanes load_lanes(weft_dtype dtype, const void *base, int64_t i)
{
    if (dtype == WEFT_F16)
        return vec_load_f16((const uint16_t *)base + i);
    if (dtype == WEFT_BF16)
        return vec_load_bf16((const uint16_t *)base + i);
    return vec_load((const float *)base + i);
}

INLINE void store_lanes(weft_dtype dtype, void *base, int64_t i, lanes v)
{
    vec_put(dtype, (char *)base + i * (dtype == WEFT_F32 ? 4 : 2), v);
}

INLINE lanes zero_lanes(void)
{
    return vec_zero();
}

/* sum + v * weight */
INLINE lanes add_lanes(lanes sum, lanes v, float weight)
{
    return vec_fma(v, vec_one(weight), sum);
}

#endif
