/*
 * Few rows of an int8 B as it lies, AVX-512 VNNI: stream.h says what for and in which order. VPDPBUSD takes
 * four k of a column side by side. Along k they lie so; across, the bytes of four lines are interleaved in
 * registers, which leaves columns in an order of their own until sums leave. B is made unsigned by adding
 * 128, and what that adds to a row is taken off again: 128 times the sum of its A.
 */
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/vector.h"

enum { UNIT = 64, LINES = 4, ROWS_MOST = 8, STREAM_WORDS = WEFT_STREAM_BYTES / 4 };

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE words times(words sum, uint32_t a, words b)
{
    return _mm512_dpbusd_epi32(sum, b, _mm512_set1_epi32((int)a));
}

INLINE words words_unsigned(words b)
{
    return words_flip(b, 0x80808080);
}

/* k [p, p + k) of the panel of A in words of four, `rows` of each after another, zeros behind; and what an
 * unsigned B adds to each row. */
INLINE void lay_a(int kr, int rows, const int8_t *panel, int64_t p, int64_t k, int64_t padded, uint32_t *to,
                  int32_t excess[ROWS_MOST])
{
    for (int i = 0; i < rows; i++)
        excess[i] = 0;
    for (int64_t q = 0; q < padded; q++) {
        for (int i = 0; i < rows; i++) {
            int64_t at = p + q;
            int8_t byte = q < k ? panel[(at / kr * rows + i) * kr + at % kr] : 0;

            excess[i] += 128 * byte;
            ((int8_t *)to)[(q / 4 * rows + i) * 4 + q % 4] = byte;
        }
    }
}

/* The first `count` of a vector of sums, to C or added to it. */
INLINE void put(int32_t *to, words sum, int64_t count, bool add)
{
    __mmask16 some;

    if (count <= 0)
        return;
    some = (__mmask16)((1u << least(count, LANES)) - 1);
    if (add)
        sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(some, to));
    _mm512_mask_storeu_epi32(to, some, sum);
}

/* ---- B as k lines of n ---------------------------------------------------------------------------- */

/* Four lines of 64 columns: t[v] lane l holds columns 16 l + 4 v to 16 l + 4 v + 3. */
INLINE void load_unit(const char *b, int64_t ldb, words t[4])
{
    words l0 = words_load(b), l1 = words_load(b + ldb), l2 = words_load(b + 2 * ldb),
          l3 = words_load(b + 3 * ldb);
    words lo01 = _mm512_unpacklo_epi8(l0, l1), hi01 = _mm512_unpackhi_epi8(l0, l1);
    words lo23 = _mm512_unpacklo_epi8(l2, l3), hi23 = _mm512_unpackhi_epi8(l2, l3);

    t[0] = words_unsigned(_mm512_unpacklo_epi16(lo01, lo23));
    t[1] = words_unsigned(_mm512_unpackhi_epi16(lo01, lo23));
    t[2] = words_unsigned(_mm512_unpacklo_epi16(hi01, hi23));
    t[3] = words_unsigned(_mm512_unpackhi_epi16(hi01, hi23));
}

/* Sums of `units` units, `rows` rows of each side by side, += four lines. */
INLINE void sweep(int rows, int64_t units, const uint32_t *a, const char *b, int64_t ldb, int32_t *sums)
{
    for (int64_t u = 0; u < units; u++, b += UNIT, sums += rows * UNIT) {
        words t[4];

        load_unit(b, ldb, t);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                int32_t *sum = sums + i * UNIT + v * LANES;

                words_store(sum, times(words_load(sum), a[i], t[v]));
            }
        }
    }
}

/* Any number of lines up to four and of columns. */
INLINE void sweep_edges(int rows, int64_t lines, int64_t cols, const uint32_t *a, const char *b, int64_t ldb,
                        int32_t *sums)
{
    int64_t units = lines == LINES ? cols / UNIT : 0;
    char edge[LINES * UNIT];

    sweep(rows, units, a, b, ldb, sums);
    for (int64_t u = units; u * UNIT < cols; u++) {
        memset(edge, 0, sizeof(edge));
        for (int64_t l = 0; l < lines; l++)
            memcpy(edge + l * UNIT, b + l * ldb + u * UNIT, (size_t)least(UNIT, cols - u * UNIT));
        sweep(rows, 1, a, edge, UNIT, sums + u * rows * UNIT);
    }
}

/* A unit of sums of one row, its columns put in order, of which `cols` belong to C. */
INLINE void put_unit(const int32_t *sums, int32_t excess, int32_t *to, int64_t cols, bool add)
{
    const words off = _mm512_set1_epi32(excess);
    words t0 = words_load(sums), t1 = words_load(sums + LANES);
    words t2 = words_load(sums + 2 * LANES), t3 = words_load(sums + 3 * LANES);
    words a = _mm512_shuffle_i32x4(t0, t1, 0x44), b = _mm512_shuffle_i32x4(t2, t3, 0x44);
    words c = _mm512_shuffle_i32x4(t0, t1, 0xee), d = _mm512_shuffle_i32x4(t2, t3, 0xee);

    put(to, _mm512_sub_epi32(_mm512_shuffle_i32x4(a, b, 0x88), off), cols, add);
    put(to + LANES, _mm512_sub_epi32(_mm512_shuffle_i32x4(a, b, 0xdd), off), cols - LANES, add);
    put(to + 2 * LANES, _mm512_sub_epi32(_mm512_shuffle_i32x4(c, d, 0x88), off), cols - 2 * LANES, add);
    put(to + 3 * LANES, _mm512_sub_epi32(_mm512_shuffle_i32x4(c, d, 0xdd), off), cols - 3 * LANES, add);
}

INLINE void across(int kr, int rows, int64_t m, int64_t n, int64_t k, int64_t block, const void *a,
                   const char *b, int64_t ldb, int32_t *scratch, int32_t *c, int64_t c_ld, int add)
{
    const int64_t depth = (least(block, k) + LINES - 1) / LINES;
    const int64_t width = (STREAM_WORDS - depth * rows) / rows / UNIT * UNIT;
    uint32_t *laid = (uint32_t *)scratch + width * rows;
    int32_t excess[ROWS_MOST];

    for (int64_t j = 0; j < n; j += width) {
        int64_t cols = least(width, n - j);

        for (int64_t p = 0; p < k; p += block) {
            int64_t deep = least(block, k - p);

            lay_a(kr, rows, a, p, deep, (deep + LINES - 1) / LINES * LINES, laid, excess);
            memset(scratch, 0, (size_t)((cols + UNIT - 1) / UNIT * UNIT * rows) * 4);
            for (int64_t q = 0; q < deep; q += LINES)
                sweep_edges(rows, least(LINES, deep - q), cols, laid + q / LINES * rows,
                            b + (p + q) * ldb + j, ldb, scratch);
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
        for (int w = 0; w < LANES; w++, a += rows) {
            words b = words_unsigned(t[w]);

#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                sum[i] = times(sum[i], a[i], b);
        }
    }
}

INLINE void along(int kr, int rows, int64_t m, int64_t n, int64_t k, int64_t block, const void *a,
                  const char *b, int64_t ldb, uint32_t *laid, int32_t *c, int64_t c_ld, int add)
{
    int32_t excess[ROWS_MOST];

    for (int64_t p = 0; p < k; p += block) {
        int64_t deep = least(block, k - p), steps = deep / VECTOR_BYTES, done = steps * VECTOR_BYTES;

        lay_a(kr, rows, a, p, deep, (deep + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES, laid, excess);
        for (int64_t j = 0; j < n; j += LANES) {
            int64_t cols = least(LANES, n - j);
            const char *line[LANES];
            words sum[ROWS_MOST];

            for (int x = 0; x < LANES; x++)
                line[x] = b + (x < cols ? j + x : j) * ldb + p;
            for (int i = 0; i < rows; i++)
                sum[i] = _mm512_setzero_si512();
            climb(rows, steps, laid, line, sum);
            if (done < deep) {
                char edge[LANES][VECTOR_BYTES] = {{0}};

                for (int x = 0; x < LANES; x++) {
                    memcpy(edge[x], line[x] + done, (size_t)(deep - done));
                    line[x] = edge[x];
                }
                climb(rows, 1, laid + done / 4 * rows, line, sum);
            }
            for (int i = 0; i < rows && i < m; i++)
                put(c + i * c_ld + j, _mm512_sub_epi32(sum[i], _mm512_set1_epi32(excess[i])), cols,
                    add || p > 0);
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

#define STREAM_WAY(way, name, kr)                                                                            \
    STREAM_FOR(way, name, kr, 1)                                                                             \
    STREAM_FOR(way, name, kr, 2)                                                                             \
    STREAM_FOR(way, name, kr, 4)                                                                             \
    STREAM_FOR(way, name, kr, 8)                                                                             \
    const weft_stream weft_avx512_##name##_##way[] = {                                                       \
        {1, name##_##way##_1}, {2, name##_##way##_2}, {4, name##_##way##_4}, {8, name##_##way##_8}, {0}};

STREAM_WAY(across, i8, 4)
STREAM_WAY(along, i8, 4)
STREAM_WAY(across, i8_amx, 64)
STREAM_WAY(along, i8_amx, 64)
