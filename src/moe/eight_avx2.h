/* Eight elements of a row at a time on x86-64 with AVX2, FMA and F16C: from and to every type of results, and
 * added up in fp32. Included by files of kernels alone. */
#ifndef WEFT_MOE_EIGHT_AVX2_H
#define WEFT_MOE_EIGHT_AVX2_H

#include <immintrin.h>

#include <weft/weft.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load8(weft_dtype dtype, const void *base, int64_t i)
{
    if (dtype == WEFT_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)base + i)));
    if (dtype == WEFT_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const uint16_t *)base + i))), 16));
    return _mm256_loadu_ps((const float *)base + i);
}

/* The upper halves of fp32, rounded to nearest even; a NaN keeps its upper bits and is made quiet. */
INLINE __m128i to_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i round = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i good = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_EQ_OQ));
    __m256i half = _mm256_srli_epi32(_mm256_blendv_epi8(quiet, round, good), 16);

    return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

INLINE void store8(weft_dtype dtype, void *base, int64_t i, __m256 v)
{
    if (dtype == WEFT_F16)
        _mm_storeu_si128((__m128i *)((uint16_t *)base + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    else if (dtype == WEFT_BF16)
        _mm_storeu_si128((__m128i *)((uint16_t *)base + i), to_bf16(v));
    else
        _mm256_storeu_ps((float *)base + i, v);
}

INLINE __m256 zero8(void)
{
    return _mm256_setzero_ps();
}

/* sum + v * weight */
INLINE __m256 add8(__m256 sum, __m256 v, float weight)
{
    return _mm256_fmadd_ps(v, _mm256_set1_ps(weight), sum);
}

#define EIGHT __m256

#endif
