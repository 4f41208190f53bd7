/*
 * Few rows of an int8 B as it lies: stream.h says what for and in which order. Four k of a column lie side by
 * side in a word: along k they do so in memory; across, the bytes of four lines are interleaved in registers,
 * which leaves columns in an order of their own until sums leave.
 *
 *     VNNI     VPDPBUSD takes a word. B is made unsigned by adding 128, and what that adds to a row is taken
 *              off again: 128 times the sum of its A.
 *     others   the even and the odd bytes of a word, widened to 16 bits, are multiplied by VPMADDWD
 *
 * The including file defines VECTOR_BYTES, and HAS_VNNI as 0 or 1.
 */
#ifndef WEFT_GEMM_KERNELS_X86_STREAM_I8_H
#define WEFT_GEMM_KERNELS_X86_STREAM_I8_H

#include "core/round.h"
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/stream_lines.h"

enum {
    UNIT = VECTOR_BYTES, /* columns of `across` */
    LINES = 4,
    ROWS_MOST = 8,
    A_WORDS = HAS_VNNI ? 1 : 2, /* of four k of a row of A */
    STREAM_WORDS = WEFT_STREAM_BYTES / 4
};

#if HAS_VNNI

typedef words quads; /* four k of LANES columns, ready to be multiplied */

INLINE quads quads_of(words b)
{
    return words_flip(b, 0x80808080);
}

INLINE words times(words sum, const uint32_t *a, quads b)
{
    return _mm512_dpbusd_epi32(sum, b, _mm512_set1_epi32((int)*a));
}

INLINE int32_t lay_four(const int8_t four[4], uint32_t *to)
{
    memcpy(to, four, 4);
    return 128 * (four[0] + four[1] + four[2] + four[3]);
}

#else

typedef struct quads {
    words even, odd;
} quads;

#if VECTOR_BYTES == 64

INLINE quads quads_of(words b)
{
    return (quads){_mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8), _mm512_srai_epi16(b, 8)};
}

INLINE words times(words sum, const uint32_t *a, quads b)
{
    sum = words_add(sum, _mm512_madd_epi16(b.even, _mm512_set1_epi32((int)a[0])));
    return words_add(sum, _mm512_madd_epi16(b.odd, _mm512_set1_epi32((int)a[1])));
}

#else

INLINE quads quads_of(words b)
{
    return (quads){_mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), _mm256_srai_epi16(b, 8)};
}

INLINE words times(words sum, const uint32_t *a, quads b)
{
    sum = words_add(sum, _mm256_madd_epi16(b.even, _mm256_set1_epi32((int)a[0])));
    return words_add(sum, _mm256_madd_epi16(b.odd, _mm256_set1_epi32((int)a[1])));
}

#endif

INLINE int32_t lay_four(const int8_t four[4], uint32_t *to)
{
    to[0] = (uint16_t)four[0] | (uint32_t)(uint16_t)four[2] << 16;
    to[1] = (uint16_t)four[1] | (uint32_t)(uint16_t)four[3] << 16;
    return 0;
}

#endif

/* k [p, p + k) of the panel of A by fours, `rows` of each after another, zeros behind; and what B has too
 * much for each row. A panel has zeros behind its last k, up to a whole group of kr. */
INLINE void lay_a(int kr, int rows, const int8_t *panel, int64_t p, int64_t k, int64_t padded, uint32_t *to,
                  int32_t excess[ROWS_MOST])
{
    const int part = kr < 4 ? kr : 4;

    for (int i = 0; i < rows; i++)
        excess[i] = 0;
    for (int64_t q = 0; q < padded; q += 4) {
        for (int i = 0; i < rows; i++, to += A_WORDS) {
            int8_t four[4] = {0};

            for (int x = 0; x < 4 && q + x < k; x += part) {
                int64_t at = p + q + x;

                memcpy(four + x, panel + (at - at % kr) * rows + i * kr + at % kr, (size_t)part);
            }
            excess[i] += lay_four(four, to);
        }
    }
}

/* The first `count` of a vector of sums, without the excess, to C or added to it. */
INLINE void put(int32_t *to, words sum, int32_t excess, int64_t count, bool add)
{
    int some = (int)weft_min(count, LANES);

    if (count <= 0)
        return;
    sum = (words)((numbers)sum - (uint32_t)excess);
    if (add)
        sum = words_add(sum, words_load_some(to, some));
    words_store_some(to, sum, some);
}

/* ---- B as k lines of n ---------------------------------------------------------------------------- */

/* Four lines of UNIT columns: t[v], in 128-bit lane l, gets columns 16 l + 4 v to 16 l + 4 v + 3. And what is
 * so becomes columns one after another. */
#if VECTOR_BYTES == 64

INLINE void words_of_lines(words l0, words l1, words l2, words l3, words t[4])
{
    words lo01 = _mm512_unpacklo_epi8(l0, l1), hi01 = _mm512_unpackhi_epi8(l0, l1);
    words lo23 = _mm512_unpacklo_epi8(l2, l3), hi23 = _mm512_unpackhi_epi8(l2, l3);

    t[0] = _mm512_unpacklo_epi16(lo01, lo23);
    t[1] = _mm512_unpackhi_epi16(lo01, lo23);
    t[2] = _mm512_unpacklo_epi16(hi01, hi23);
    t[3] = _mm512_unpackhi_epi16(hi01, hi23);
}

INLINE void words_in_order(words t[4])
{
    words a = _mm512_shuffle_i32x4(t[0], t[1], 0x44), b = _mm512_shuffle_i32x4(t[2], t[3], 0x44);
    words c = _mm512_shuffle_i32x4(t[0], t[1], 0xee), d = _mm512_shuffle_i32x4(t[2], t[3], 0xee);

    t[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    t[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

#else

INLINE void words_of_lines(words l0, words l1, words l2, words l3, words t[4])
{
    words lo01 = _mm256_unpacklo_epi8(l0, l1), hi01 = _mm256_unpackhi_epi8(l0, l1);
    words lo23 = _mm256_unpacklo_epi8(l2, l3), hi23 = _mm256_unpackhi_epi8(l2, l3);

    t[0] = _mm256_unpacklo_epi16(lo01, lo23);
    t[1] = _mm256_unpackhi_epi16(lo01, lo23);
    t[2] = _mm256_unpacklo_epi16(hi01, hi23);
    t[3] = _mm256_unpackhi_epi16(hi01, hi23);
}

INLINE void words_in_order(words t[4])
{
    words a = _mm256_permute2x128_si256(t[0], t[1], 0x31), b = _mm256_permute2x128_si256(t[2], t[3], 0x31);

    t[0] = _mm256_permute2x128_si256(t[0], t[1], 0x20);
    t[1] = _mm256_permute2x128_si256(t[2], t[3], 0x20);
    t[2] = a;
    t[3] = b;
}

#endif

INLINE void load_unit(const char *b, int64_t ldb, int64_t ahead, quads q[4])
{
    words t[4];

    words_of_lines(words_load(b), words_load(b + ldb), words_load(b + 2 * ldb), words_load(b + 3 * ldb), t);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        q[v] = quads_of(t[v]);
#pragma GCC unroll 4
    for (int l = 0; l < LINES && ahead; l++)
        _mm_prefetch(b + l * ldb + ahead, _MM_HINT_T0);
}

/* Sums of `units` units, `rows` rows of each side by side, += four lines; what lies `ahead` of them, unless
 * that is 0, is fetched meanwhile. */
INLINE void sweep(int rows, int64_t units, const uint32_t *a, const char *b, int64_t ldb, int64_t ahead,
                  int32_t *sums)
{
    for (int64_t u = 0; u < units; u++, b += UNIT, sums += rows * UNIT) {
        quads t[4];

        load_unit(b, ldb, ahead, t);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                int32_t *sum = sums + i * UNIT + v * LANES;

                words_store(sum, times(words_load(sum), a + i * A_WORDS, t[v]));
            }
        }
    }
}

/* Any number of lines up to four and of columns. */
INLINE void sweep_edges(int rows, int64_t lines, int64_t cols, const uint32_t *a, const char *b, int64_t ldb,
                        int64_t ahead, int32_t *sums)
{
    int64_t units = lines == LINES ? cols / UNIT : 0;
    char edge[LINES * UNIT];

    sweep(rows, units, a, b, ldb, ahead, sums);
    for (int64_t u = units; u * UNIT < cols; u++) {
        memset(edge, 0, sizeof(edge));
        for (int64_t l = 0; l < lines; l++)
            memcpy(edge + l * UNIT, b + l * ldb + u * UNIT, (size_t)weft_min(UNIT, cols - u * UNIT));
        sweep(rows, 1, a, edge, UNIT, 0, sums + u * rows * UNIT);
    }
}

/* A unit of sums of one row, its columns put in order, of which `cols` belong to C. */
INLINE void put_unit(const int32_t *sums, int32_t excess, int32_t *to, int64_t cols, bool add)
{
    words t[4];

#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        t[v] = words_load(sums + v * LANES);
    words_in_order(t);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        put(to + v * LANES, t[v], excess, cols - v * LANES, add);
}

INLINE void across(int kr, int rows, int64_t m, int64_t n, int64_t k, int64_t block, const void *a,
                   const char *b, int64_t ldb, int32_t *scratch, int32_t *c, int64_t c_ld, int add)
{
    const int64_t depth = weft_divide_up(weft_min(block, k), LINES) * A_WORDS;
    const int64_t width = stream_width(n, rows, UNIT, STREAM_WORDS - depth * rows);
    uint32_t *laid = (uint32_t *)scratch + width * rows;
    int32_t excess[ROWS_MOST];

    for (int64_t j = 0; j < n; j += width) {
        int64_t cols = weft_min(width, n - j), later = stream_lines_ahead(cols, LINES);

        for (int64_t p = 0; p < k; p += block) {
            int64_t deep = weft_min(block, k - p);

            lay_a(kr, rows, a, p, deep, weft_round_up(deep, LINES), laid, excess);
            memset(scratch, 0, (size_t)(weft_round_up(cols, UNIT) * rows) * 4);
            for (int64_t q = 0; q < deep; q += LINES)
                sweep_edges(rows, weft_min(LINES, deep - q), cols, laid + q / LINES * rows * A_WORDS,
                            b + (p + q) * ldb + j, ldb, p + q + LINES + later <= k ? later * ldb : 0,
                            scratch);
            for (int64_t x = 0; x < cols; x += UNIT) {
                for (int i = 0; i < rows && i < m; i++)
                    put_unit(scratch + x * rows + i * UNIT, excess[i], c + i * c_ld + j + x, cols - x,
                             add || p > 0);
            }
        }
    }
}

/* ---- B as n lines of k ---------------------------------------------------------------------------- */

INLINE void climb(int rows, int64_t steps, const uint32_t *a, const char *const line[LANES],
                  words sum[ROWS_MOST])
{
    for (int64_t s = 0; s < steps; s++) {
        words t[LANES];

#pragma GCC unroll 16
        for (int x = 0; x < LANES; x++)
            t[x] = words_load(line[x] + s * VECTOR_BYTES);
        words_transpose(t);
#pragma GCC unroll 16
        for (int w = 0; w < LANES; w++, a += rows * A_WORDS) {
            quads b = quads_of(t[w]);

#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                sum[i] = times(sum[i], a + i * A_WORDS, b);
        }
    }
}

INLINE void along(int kr, int rows, int64_t m, int64_t n, int64_t k, int64_t block, const void *a,
                  const char *b, int64_t ldb, uint32_t *laid, int32_t *c, int64_t c_ld, int add)
{
    int32_t excess[ROWS_MOST];

    for (int64_t p = 0; p < k; p += block) {
        int64_t deep = weft_min(block, k - p), steps = deep / VECTOR_BYTES, done = steps * VECTOR_BYTES;

        lay_a(kr, rows, a, p, deep, weft_round_up(deep, VECTOR_BYTES), laid, excess);
        for (int64_t j = 0; j < n; j += LANES) {
            int64_t cols = weft_min(LANES, n - j);
            const char *line[LANES];
            words sum[ROWS_MOST];

            for (int x = 0; x < LANES; x++)
                line[x] = b + (x < cols ? j + x : j) * ldb + p;
            for (int i = 0; i < rows; i++)
                sum[i] = (words){0};
            climb(rows, steps, laid, line, sum);
            if (done < deep) {
                char edge[LANES][VECTOR_BYTES] = {{0}};

                for (int x = 0; x < LANES; x++) {
                    memcpy(edge[x], line[x] + done, (size_t)(deep - done));
                    line[x] = edge[x];
                }
                climb(rows, 1, laid + done / 4 * rows * A_WORDS, line, sum);
            }
            for (int i = 0; i < rows && i < m; i++)
                put(c + i * c_ld + j, sum[i], excess[i], cols, add || p > 0);
        }
    }
}

/* ---- the lists ------------------------------------------------------------------------------------ */

#define STREAM_FOR(way, name, kr, rows)                                                                      \
    static void name##_##way##_##rows(int64_t m, int64_t n, int64_t k, int64_t block, const void *a,         \
                                      const void *b, int64_t ldb, void *sums, void *c, int64_t c_ld,         \
                                      int add)                                                               \
    {                                                                                                        \
        way(kr, rows, m, n, k, block, a, b, ldb, sums, c, c_ld, add);                                        \
    }

#define STREAM_WAY(way, isa, name, kr)                                                                       \
    STREAM_FOR(way, name, kr, 1)                                                                             \
    STREAM_FOR(way, name, kr, 2)                                                                             \
    STREAM_FOR(way, name, kr, 4)                                                                             \
    STREAM_FOR(way, name, kr, 8)                                                                             \
    const weft_stream weft_##isa##_##name##_##way[] = {                                                      \
        {1, name##_##way##_1}, {2, name##_##way##_2}, {4, name##_##way##_4}, {8, name##_##way##_8}, {0}};

/* weft_<isa>_<name>_along and _across: A in groups of `kr`. */
#define STREAMS(isa, name, kr)                                                                               \
    STREAM_WAY(across, isa, name, kr)                                                                        \
    STREAM_WAY(along, isa, name, kr)

#endif
