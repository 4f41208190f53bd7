/* Combine on x86-64 with AVX2, FMA and F16C: 64 columns in eight fp32 accumulators. */
#include <immintrin.h>
#include <string.h>

#include "core/dtype.h"
#include "moe/sum_kernels.h"

enum { LANES = 8, GROUPS = 8, WIDE = LANES * GROUPS };

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

/* Columns [i, i + 8 * groups) of the weighted sum; `x` set: of the scaled x instead of the rows. */
INLINE void sum_columns(weft_dtype dtype, void *out, const void *const *row, const void *x,
                        const float *factor, const float *weight, int64_t rows, int64_t i, int groups)
{
    __m256 sum[GROUPS];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        sum[g] = _mm256_setzero_ps();
    for (int64_t r = 0; r < rows; r++) {
        __m256 w = _mm256_set1_ps(weight[r]);

#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
            int64_t at = i + g * LANES;
            __m256 v = x ? scaled8(dtype, x, at, factor[r]) : load8(dtype, row[r], at);

            sum[g] = _mm256_fmadd_ps(v, w, sum[g]);
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        store8(dtype, out, i + g * LANES, sum[g]);
}

/* The last columns, fewer than a vector, in a padded copy: every column has the same arithmetic. */
INLINE void sum_tail(weft_dtype dtype, void *out, const void *const *row, const void *x, const float *factor,
                     const float *weight, int64_t rows, int64_t i, int64_t elements)
{
    size_t size = dtype == WEFT_F32 ? 4 : 2, bytes = (size_t)(elements - i) * size;
    char last[LANES * 4] = {0}, result[LANES * 4];
    __m256 sum = _mm256_setzero_ps();

    for (int64_t r = 0; r < rows; r++) {
        __m256 v;

        memcpy(last, (const char *)(x ? x : row[r]) + (size_t)i * size, bytes);
        v = x ? scaled8(dtype, last, 0, factor[r]) : load8(dtype, last, 0);
        sum = _mm256_fmadd_ps(v, _mm256_set1_ps(weight[r]), sum);
    }
    store8(dtype, result, 0, sum);
    memcpy((char *)out + (size_t)i * size, result, bytes);
}

INLINE void sum_any(weft_dtype dtype, void *out, const void *const *row, const void *x, const float *factor,
                    const float *weight, int64_t rows, int64_t elements)
{
    int64_t i = 0;

    for (; i + WIDE <= elements; i += WIDE)
        sum_columns(dtype, out, row, x, factor, weight, rows, i, GROUPS);
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

    for (; i + LANES <= elements; i += LANES)
        store8(dtype, out, i, scaled8(dtype, x, i, factor));
    if (i < elements) {
        memcpy(last, (const char *)x + (size_t)i * size, (size_t)(elements - i) * size);
        store8(dtype, result, 0, scaled8(dtype, last, 0, factor));
        memcpy((char *)out + (size_t)i * size, result, (size_t)(elements - i) * size);
    }
}

#define KERNELS weft_moe_kernels_avx2
#include "moe/sum_by_type.h"
