/*
 * Packers by whole vectors, for kernels whose groups of k are words of four bytes: one fp32, two halves, four
 * int8. A line whose k run along memory is then a line of words, and packing is transposing them.
 */
#ifndef WEFT_GEMM_KERNELS_X86_PACK_VECTORS_H
#define WEFT_GEMM_KERNELS_X86_PACK_VECTORS_H

#include "core/round.h"
#include "gemm/kernels/x86/vector.h"

enum { PACK_LINES = 8 }; /* of a row-major B that are read at a time: as hardware likes to fetch them */

#if VECTOR_BYTES == 64

/* Quarter q of each of four vectors side by side, for each q: to[q * apart]. */
INLINE void store_quarters(char *to, int64_t apart, words a, words b, words c, words d)
{
    words ab01 = _mm512_shuffle_i32x4(a, b, 0x44), ab23 = _mm512_shuffle_i32x4(a, b, 0xee);
    words cd01 = _mm512_shuffle_i32x4(c, d, 0x44), cd23 = _mm512_shuffle_i32x4(c, d, 0xee);

    words_store(to, _mm512_shuffle_i32x4(ab01, cd01, 0x88));
    words_store(to + apart, _mm512_shuffle_i32x4(ab01, cd01, 0xdd));
    words_store(to + 2 * apart, _mm512_shuffle_i32x4(ab23, cd23, 0x88));
    words_store(to + 3 * apart, _mm512_shuffle_i32x4(ab23, cd23, 0xdd));
}

/* 16 words of each of 12 lines. Four words of all lines are three whole vectors: 48 shuffles and 12 stores,
 * where a square of 16 lines takes 64 and 16, which cross lines. */
INLINE void pack_twelve(char *panel, const char *source, int64_t ld)
{
    enum { FOUR = 4 * 12 * 4 }; /* bytes of the panel */
    words t[3][4];              /* quarter q of t[g][c]: word 4 q + c of lines 4 g to 4 g + 3 */

#pragma GCC unroll 3
    for (int g = 0; g < 3; g++) {
        const char *from = source + 4 * g * ld;
        words a = words_load(from), b = words_load(from + ld);
        words c = words_load(from + 2 * ld), d = words_load(from + 3 * ld);
        words ab_lo = _mm512_unpacklo_epi32(a, b), ab_hi = _mm512_unpackhi_epi32(a, b);
        words cd_lo = _mm512_unpacklo_epi32(c, d), cd_hi = _mm512_unpackhi_epi32(c, d);

        t[g][0] = _mm512_unpacklo_epi64(ab_lo, cd_lo);
        t[g][1] = _mm512_unpackhi_epi64(ab_lo, cd_lo);
        t[g][2] = _mm512_unpacklo_epi64(ab_hi, cd_hi);
        t[g][3] = _mm512_unpackhi_epi64(ab_hi, cd_hi);
    }
    store_quarters(panel, FOUR, t[0][0], t[1][0], t[2][0], t[0][1]);
    store_quarters(panel + 64, FOUR, t[1][1], t[2][1], t[0][2], t[1][2]);
    store_quarters(panel + 128, FOUR, t[2][2], t[0][3], t[1][3], t[2][3]);
}

#endif

/* weft_panel_packer for `lines` lines; sizes in bytes. `flip` is xor-ed into every word. */
INLINE void pack_words(char *panel, const char *source, int64_t ld, int64_t k, int lines, uint32_t flip)
{
    int64_t p = 0;

#if VECTOR_BYTES == 64
    for (; lines == 12 && !flip && p + VECTOR_BYTES <= k; p += VECTOR_BYTES, panel += LANES * lines * 4)
        pack_twelve(panel, source + p, ld);
#endif
    for (; p + VECTOR_BYTES <= k; p += VECTOR_BYTES, panel += LANES * lines * 4) {
#pragma GCC unroll 4
        for (int i = 0; i < lines; i += LANES) {
            const int count = lines - i < LANES ? lines - i : LANES;
            words t[LANES];

#pragma GCC unroll 16
            for (int x = 0; x < LANES; x++)
                t[x] = words_load(source + (i + (x < count ? x : 0)) * ld + p);
            words_transpose(t);
#pragma GCC unroll 16
            for (int w = 0; w < LANES; w++) {
                if (count == LANES)
                    words_store(panel + (w * lines + i) * 4, words_flip(t[w], flip));
                else
                    words_store_some(panel + (w * lines + i) * 4, words_flip(t[w], flip), count);
            }
        }
    }
    for (; p < k; p += 4) {
        for (int i = 0; i < lines; i++, panel += 4) {
            uint32_t word;

            memcpy(&word, source + i * ld + p, 4);
            word ^= flip;
            memcpy(panel, &word, 4);
        }
    }
}

/* weft_wide_packer for one element of k in a word: `line` bytes of each panel. */
INLINE void pack_wide_words(char *panels, int64_t panel_bytes, const char *source, int64_t ld, int64_t k,
                            int64_t count, int line)
{
    for (int64_t p = 0; p < k; p += PACK_LINES) {
        int64_t lines = weft_min(k - p, PACK_LINES);

        for (int64_t c = 0; c < count; c++) {
            char *to = panels + c * panel_bytes + p * line;

            for (int64_t q = 0; q < lines; q++) {
                const char *from = source + (p + q) * ld + c * line;
                int at = 0;

                for (; at + VECTOR_BYTES <= line; at += VECTOR_BYTES)
                    words_store(to + q * line + at, words_load(from + at));
                if (at < line)
                    words_store_some(to + q * line + at, words_load_some(from + at, (line - at) / 4),
                                     (line - at) / 4);
            }
        }
    }
}

/* Up to 2 * LANES halves of each of `lines` lines, at most LANES of them, become fp32: element p of line i is
 * the float at p * apart + i. */
INLINE void widen_square(weft_dtype type, float *to, int64_t apart, const char *source, int64_t ld, int lines,
                         int64_t count)
{
    words t[LANES];

#pragma GCC unroll 16
    for (int x = 0; x < LANES; x++)
        t[x] = words_load(source + (x < lines ? x : 0) * ld);
    words_transpose(t);
#pragma GCC unroll 16
    for (int w = 0; w < LANES; w++) {
        vec half[2] = {type == WEFT_BF16 ? vec_first_bf16(t[w]) : vec_first_f16(t[w]),
                       type == WEFT_BF16 ? vec_second_bf16(t[w]) : vec_second_f16(t[w])};

#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *line = to + (2 * w + h) * apart;

            if (2 * w + h >= count)
                break;
            if (lines == LANES)
                vec_store(line, half[h]);
            else
                words_store_some(line, words_of_vec(half[h]), lines);
        }
    }
}

/* weft_panel_packer from halves to panels of `lines` lines of fp32; `ld` in bytes. */
INLINE void widen_along(weft_dtype type, float *panel, const char *source, int64_t ld, int64_t k, int lines)
{
    const int step = 2 * LANES;

    for (int64_t p = 0; p < k; p += step) {
        int64_t count = weft_min(k - p, step);

#pragma GCC unroll 4
        for (int i = 0; i < lines; i += LANES) {
            const int here = lines - i < LANES ? lines - i : LANES;
            const char *from = source + i * ld + p * 2;
            float *to = panel + p * lines + i;

            if (count == step) {
                widen_square(type, to, lines, from, ld, here, step);
                continue;
            }
            char edge[LANES * VECTOR_BYTES] = {0};

            for (int x = 0; x < here; x++)
                memcpy(edge + x * VECTOR_BYTES, from + x * ld, (size_t)count * 2);
            widen_square(type, to, lines, edge, VECTOR_BYTES, here, count);
        }
    }
}

/* weft_wide_packer from halves to panels of `cols` columns of fp32; `ld` in elements. */
INLINE void widen_wide(weft_dtype type, char *panels, int64_t panel_bytes, const uint16_t *source, int64_t ld,
                       int64_t k, int64_t count, int cols)
{
    for (int64_t p = 0; p < k; p += PACK_LINES) {
        int64_t lines = weft_min(k - p, PACK_LINES);

        for (int64_t c = 0; c < count; c++) {
            float *to = (float *)(panels + c * panel_bytes) + p * cols;

            for (int64_t q = 0; q < lines; q++) {
                for (int at = 0; at < cols; at += LANES) {
                    const uint16_t *from = source + (p + q) * ld + c * cols + at;

                    vec_store(to + q * cols + at,
                              type == WEFT_BF16 ? vec_load_bf16(from) : vec_load_f16(from));
                }
            }
        }
    }
}

#if VECTOR_BYTES == 64

/* Two lines of 32 halves become 32 pairs. */
INLINE void interleave_halves(char *to, words a, words b)
{
    words lo = _mm512_unpacklo_epi16(a, b), hi = _mm512_unpackhi_epi16(a, b);

    words_store(to, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), hi));
    words_store(to + 64, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), hi));
}

/* weft_wide_packer for panels of 32 columns of halves, an even k. */
INLINE void pack_wide_halves(char *panels, int64_t panel_bytes, const char *source, int64_t ld, int64_t k,
                             int64_t count)
{
    for (int64_t p = 0; p < k; p += PACK_LINES) {
        int64_t lines = weft_min(k - p, PACK_LINES);

        for (int64_t c = 0; c < count; c++) {
            for (int64_t q = p; q < p + lines; q += 2)
                interleave_halves(panels + c * panel_bytes + q * 64, words_load(source + q * ld + c * 64),
                                  words_load(source + (q + 1) * ld + c * 64));
        }
    }
}

INLINE void store_lanes(char *to, __m256i a, __m256i b, __m256i c, __m256i d, uint32_t flip)
{
    words ab = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    words cd = _mm512_inserti64x4(_mm512_castsi256_si512(c), d, 1);

    words_store(to, words_flip(_mm512_shuffle_i32x4(ab, cd, 0x88), flip));
    words_store(to + 64, words_flip(_mm512_shuffle_i32x4(ab, cd, 0xdd), flip));
}

/* weft_wide_packer for panels of 32 columns of bytes, k in fours; `flip` is xor-ed into every word. */
INLINE void pack_wide_bytes(char *panels, int64_t panel_bytes, const char *source, int64_t ld, int64_t k,
                            int64_t count, uint32_t flip)
{
    for (int64_t p = 0; p < k; p += PACK_LINES) {
        int64_t lines = weft_min(k - p, PACK_LINES);

        for (int64_t c = 0; c < count; c++) {
            for (int64_t q = p; q < p + lines; q += 4) {
                const char *from = source + q * ld + c * 32;
                __m256i l0 = _mm256_loadu_si256((const __m256i *)from);
                __m256i l1 = _mm256_loadu_si256((const __m256i *)(from + ld));
                __m256i l2 = _mm256_loadu_si256((const __m256i *)(from + 2 * ld));
                __m256i l3 = _mm256_loadu_si256((const __m256i *)(from + 3 * ld));
                __m256i lo01 = _mm256_unpacklo_epi8(l0, l1), hi01 = _mm256_unpackhi_epi8(l0, l1);
                __m256i lo23 = _mm256_unpacklo_epi8(l2, l3), hi23 = _mm256_unpackhi_epi8(l2, l3);

                store_lanes(panels + c * panel_bytes + q * 32, _mm256_unpacklo_epi16(lo01, lo23),
                            _mm256_unpackhi_epi16(lo01, lo23), _mm256_unpacklo_epi16(hi01, hi23),
                            _mm256_unpackhi_epi16(hi01, hi23), flip);
            }
        }
    }
}

#endif

#endif
