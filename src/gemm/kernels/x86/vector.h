/*
 * Vectors of fp32 for kernels that are written once for AVX2 and AVX-512: the including file defines
 * VECTOR_BYTES as 32 or 64. Everything is inlined; nothing here is visible outside the file.
 */
#ifndef WEFT_GEMM_KERNELS_X86_VECTOR_H
#define WEFT_GEMM_KERNELS_X86_VECTOR_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <weft/weft.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = VECTOR_BYTES / 4 };

#if VECTOR_BYTES == 64

typedef __m512 vec;
typedef __m512i words;  /* LANES words of 4 bytes, or LANES pairs of halves */
typedef __m256i halves; /* LANES of them */

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vec vec_one(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vec vec_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

INLINE void vec_store(float *to, vec v)
{
    _mm512_storeu_ps(to, v);
}

/* a * b + sum, rounded once. */
INLINE vec vec_fma(vec a, vec b, vec sum)
{
    return _mm512_fmadd_ps(a, b, sum);
}

INLINE words words_load(const void *from)
{
    return _mm512_loadu_si512(from);
}

INLINE void words_store(void *to, words w)
{
    _mm512_storeu_si512(to, w);
}

/* The first `count` words, and zeros. */
INLINE words words_load_some(const void *from, int count)
{
    return _mm512_maskz_loadu_epi32((__mmask16)((1u << count) - 1), from);
}

/* The first `count` words. */
INLINE void words_store_some(void *to, words w, int count)
{
    _mm512_mask_storeu_epi32(to, (__mmask16)((1u << count) - 1), w);
}

INLINE vec vec_of_f16(halves h)
{
    return _mm512_cvtph_ps(h);
}

INLINE halves f16_of_vec(vec v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE halves halves_load(const uint16_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

INLINE void halves_store(uint16_t *to, halves h)
{
    _mm256_storeu_si256((__m256i *)to, h);
}

/* Each half as the lower one of a word, above it zero; and the lower and the upper half of each word. */
INLINE words words_of_halves(halves h)
{
    return _mm512_cvtepu16_epi32(h);
}

INLINE halves lower_halves(words w)
{
    return _mm512_cvtepi32_epi16(w);
}

INLINE halves upper_halves(words w)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16));
}

/* `yes` where v is no number. */
INLINE words words_if_nan(vec v, words yes, words no)
{
    return _mm512_mask_mov_epi32(no, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), yes);
}

/* Element 2 i of the pair lo, hi is a[i], element 2 i + 1 is b[i]. */
INLINE void vec_interleave(vec a, vec b, vec *lo, vec *hi)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);

    *lo = _mm512_permutex2var_ps(a, low, b);
    *hi = _mm512_permutex2var_ps(a, high, b);
}

/* t[i] word j becomes t[j] word i. */
INLINE void words_transpose(words t[LANES])
{
    words u[LANES];

#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        t[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
        t[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
        t[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
        t[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
    /* t[4 g + c] holds, in 128-bit lane l, word 4 l + c of lines 4 g to 4 g + 3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        u[c] = _mm512_shuffle_i32x4(t[c], t[c + 4], 0x88);
        u[c + 4] = _mm512_shuffle_i32x4(t[c], t[c + 4], 0xdd);
        u[c + 8] = _mm512_shuffle_i32x4(t[c + 8], t[c + 12], 0x88);
        u[c + 12] = _mm512_shuffle_i32x4(t[c + 8], t[c + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(u[c], u[c + 8], 0x88);
        t[c + 8] = _mm512_shuffle_i32x4(u[c], u[c + 8], 0xdd);
        t[c + 4] = _mm512_shuffle_i32x4(u[c + 4], u[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_i32x4(u[c + 4], u[c + 12], 0xdd);
    }
}

#else

typedef __m256 vec;
typedef __m256i words;
typedef __m128i halves;

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vec vec_one(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vec vec_load(const float *from)
{
    return _mm256_loadu_ps(from);
}

INLINE void vec_store(float *to, vec v)
{
    _mm256_storeu_ps(to, v);
}

INLINE vec vec_fma(vec a, vec b, vec sum)
{
    return _mm256_fmadd_ps(a, b, sum);
}

INLINE words words_load(const void *from)
{
    return _mm256_loadu_si256(from);
}

INLINE void words_store(void *to, words w)
{
    _mm256_storeu_si256(to, w);
}

INLINE words words_first(int count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE words words_load_some(const void *from, int count)
{
    return _mm256_maskload_epi32(from, words_first(count));
}

INLINE void words_store_some(void *to, words w, int count)
{
    _mm256_maskstore_epi32(to, words_first(count), w);
}

INLINE vec vec_of_f16(halves h)
{
    return _mm256_cvtph_ps(h);
}

INLINE halves f16_of_vec(vec v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE halves halves_load(const uint16_t *from)
{
    return _mm_loadu_si128((const __m128i *)from);
}

INLINE void halves_store(uint16_t *to, halves h)
{
    _mm_storeu_si128((__m128i *)to, h);
}

INLINE words words_of_halves(halves h)
{
    return _mm256_cvtepu16_epi32(h);
}

INLINE halves small_words(words w)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

INLINE halves lower_halves(words w)
{
    return small_words(_mm256_and_si256(w, _mm256_set1_epi32(0xffff)));
}

INLINE halves upper_halves(words w)
{
    return small_words(_mm256_srli_epi32(w, 16));
}

INLINE words words_if_nan(vec v, words yes, words no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}

INLINE void vec_interleave(vec a, vec b, vec *lo, vec *hi)
{
    vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);

    *lo = _mm256_permute2f128_ps(low, high, 0x20);
    *hi = _mm256_permute2f128_ps(low, high, 0x31);
}

INLINE void words_transpose(words t[LANES])
{
    words u[LANES];

#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        u[i] = _mm256_unpacklo_epi32(t[i], t[i + 1]);
        u[i + 1] = _mm256_unpackhi_epi32(t[i], t[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 4) {
        t[i] = _mm256_unpacklo_epi64(u[i], u[i + 2]);
        t[i + 1] = _mm256_unpackhi_epi64(u[i], u[i + 2]);
        t[i + 2] = _mm256_unpacklo_epi64(u[i + 1], u[i + 3]);
        t[i + 3] = _mm256_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        u[c] = _mm256_permute2x128_si256(t[c], t[c + 4], 0x20);
        u[c + 4] = _mm256_permute2x128_si256(t[c], t[c + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++)
        t[i] = u[i];
}

#endif

typedef uint32_t numbers __attribute__((vector_size(VECTOR_BYTES))); /* words to compute with */

INLINE vec vec_add(vec a, vec b)
{
    return a + b;
}

INLINE vec vec_mul(vec a, vec b)
{
    return a * b;
}

INLINE words words_add(words a, words b)
{
    return (words)((numbers)a + (numbers)b);
}

INLINE words words_flip(words w, uint32_t mask)
{
    return (words)((numbers)w ^ mask);
}

INLINE vec vec_of_words(words w)
{
    return (vec)w;
}

INLINE words words_of_vec(vec v)
{
    return (words)v;
}

/* The first and the second half of every word. */
INLINE vec vec_first_bf16(words w)
{
    return (vec)((numbers)w << 16);
}

INLINE vec vec_second_bf16(words w)
{
    return (vec)((numbers)w & 0xffff0000);
}

INLINE vec vec_first_f16(words w)
{
    return vec_of_f16(lower_halves(w));
}

INLINE vec vec_second_f16(words w)
{
    return vec_of_f16(upper_halves(w));
}

INLINE vec vec_load_f16(const uint16_t *from)
{
    return vec_of_f16(halves_load(from));
}

INLINE vec vec_load_bf16(const uint16_t *from)
{
    return vec_first_bf16(words_of_halves(halves_load(from)));
}

INLINE void vec_store_f16(uint16_t *to, vec v)
{
    halves_store(to, f16_of_vec(v));
}

/* bf16 in the upper halves, rounded to nearest even, and anything in the lower; a NaN keeps its upper bits
 * and is made quiet. VCVTNEPS2BF16 would flush small numbers to zero. */
INLINE words words_of_bf16(vec v)
{
    numbers bits = (numbers)v, rounded = bits + ((bits >> 16 & 1) + 0x7fff);

    return words_if_nan(v, (words)(bits | 0x400000), (words)rounded);
}

INLINE void vec_store_bf16(uint16_t *to, vec v)
{
    halves_store(to, upper_halves(words_of_bf16(v)));
}

/* What fp16 makes of it. */
INLINE vec vec_round_f16(vec v)
{
    return vec_of_f16(f16_of_vec(v));
}

/* What bf16 makes of it. */
INLINE vec vec_round_bf16(vec v)
{
    return vec_second_bf16(words_of_bf16(v));
}

/* One vector, in the type of `to`'s elements. */
INLINE void vec_put(weft_dtype type, char *to, vec v)
{
    if (type == WEFT_F16)
        vec_store_f16((uint16_t *)to, v);
    else if (type == WEFT_BF16)
        vec_store_bf16((uint16_t *)to, v);
    else
        vec_store((float *)to, v);
}

#endif
