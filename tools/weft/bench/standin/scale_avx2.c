/* The stand-in expert on x86-64 with AVX2, FMA and F16C. */
#include "bench/standin/scale_kernels.h"
#include "moe/eight_avx2.h"

/* round(x * factor) of eight elements, as fp32. */
INLINE __m256 scaled8(weft_dtype dtype, const void *x, int64_t i, float factor)
{
    __m256 v = _mm256_mul_ps(load8(dtype, x, i), _mm256_set1_ps(factor));

    if (dtype == WEFT_F16)
        return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if (dtype == WEFT_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(to_bf16(v)), 16));
    return v;
}

#define KERNELS weft_standin_kernels_avx2
#include "bench/standin/scale_by_type.h"
