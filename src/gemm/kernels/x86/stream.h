/*
 * Few rows of A against a B that is used once: B streams from memory where it lies, without being packed
 * (weft_stream in kernel.h). fp32, and halves that are widened between load and FMA, so that B costs the
 * bytes it has and every sum has the order and the bits of the fp32 kernel.
 *
 *     across   k lines of n: a few lines at a time, followed over as many columns as there is room for sums
 *     along    n lines of k: a square of words at a time, transposed in registers, so that sums climb k
 *
 * The including file defines VECTOR_BYTES. A is laid out for one block of k first: [k][rows] of fp32.
 */
#ifndef WEFT_GEMM_KERNELS_X86_STREAM_H
#define WEFT_GEMM_KERNELS_X86_STREAM_H

#include "core/round.h"
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/stream_lines.h"

enum {
    UNIT = 2 * LANES, /* columns of `across` */
    LINES = 4,        /* of `across`, at a time */
    ROWS_MOST = 8,
    STREAM_FLOATS = WEFT_STREAM_BYTES / 4
};

/* How A is packed: fp32 one k after another, or bf16 by groups of a_kr. */
typedef struct few_a {
    weft_dtype type;
    int kr;
} few_a;

INLINE size_t size_of(weft_dtype type)
{
    return type == WEFT_F32 ? 4 : 2;
}

/* k [p, p + k) of the panel of A, as fp32, with zeros up to `padded`: negative ones, which times the zeros of
 * B add nothing to any sum, not even to the sign of one that is zero. */
INLINE void lay_a(few_a form, int rows, const void *panel, int64_t p, int64_t k, int64_t padded, float *to)
{
    if (form.type == WEFT_F32) {
        memcpy(to, (const float *)panel + p * rows, (size_t)(k * rows) * 4);
    } else {
        for (int64_t q = p, group; q < p + k; q += group) {
            const uint16_t *from = (const uint16_t *)panel + (q - q % form.kr) * rows + q % form.kr;

            group = weft_min(form.kr - q % form.kr, p + k - q);
            for (int i = 0; i < rows; i++) {
                for (int64_t x = 0; x < group; x++) {
                    uint32_t bits = (uint32_t)from[i * form.kr + x] << 16;

                    memcpy(to + (q - p + x) * rows + i, &bits, 4);
                }
            }
        }
    }
    for (int64_t i = k * rows; i < padded * rows; i++)
        to[i] = -0.0f;
}

/* ---- B as k lines of n ---------------------------------------------------------------------------- */

/* UNIT columns; those of bf16 as even and odd ones. */
INLINE void load_unit(weft_dtype type, const char *b, vec w[2])
{
    if (type == WEFT_BF16) {
        words raw = words_load(b);

        w[0] = vec_first_bf16(raw);
        w[1] = vec_second_bf16(raw);
    } else if (type == WEFT_F16) {
        w[0] = vec_load_f16((const uint16_t *)b);
        w[1] = vec_load_f16((const uint16_t *)b + LANES);
    } else {
        w[0] = vec_load((const float *)b);
        w[1] = vec_load((const float *)b + LANES);
    }
}

/* Sums of `units` units, `rows` rows of each side by side, += `lines` lines of B, ldb bytes apart; what lies
 * `ahead` of them, unless that is 0, is fetched meanwhile. */
INLINE void sweep(weft_dtype type, int rows, int lines, int64_t units, const float *a, const char *b,
                  int64_t ldb, int64_t ahead, float *sums)
{
    for (int64_t u = 0; u < units; u++, b += UNIT * size_of(type), sums += rows * UNIT) {
        vec sum[ROWS_MOST][2];

#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            sum[i][0] = vec_load(sums + i * UNIT);
            sum[i][1] = vec_load(sums + i * UNIT + LANES);
        }
#pragma GCC unroll 4
        for (int l = 0; l < lines; l++) {
            vec w[2];

            load_unit(type, b + l * ldb, w);
            for (size_t x = 0; ahead && x < UNIT * size_of(type); x += CACHE_LINE)
                _mm_prefetch(b + l * ldb + ahead + x, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                vec x = vec_one(a[l * rows + i]);

                sum[i][0] = vec_fma(x, w[0], sum[i][0]);
                sum[i][1] = vec_fma(x, w[1], sum[i][1]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec_store(sums + i * UNIT, sum[i][0]);
            vec_store(sums + i * UNIT + LANES, sum[i][1]);
        }
    }
}

/* The same for any number of columns: the last ones as a unit that is filled up with zeros. */
INLINE void sweep_columns(weft_dtype type, int rows, int lines, int64_t cols, const float *a, const char *b,
                          int64_t ldb, int64_t ahead, float *sums)
{
    const size_t size = size_of(type);
    int64_t units = cols / UNIT, left = cols % UNIT;
    char edge[LINES * UNIT * 4];

    sweep(type, rows, lines, units, a, b, ldb, ahead, sums);
    if (!left)
        return;
    memset(edge, 0, sizeof(edge));
    for (int l = 0; l < lines; l++)
        memcpy(edge + l * UNIT * size, b + l * ldb + units * UNIT * size, (size_t)left * size);
    sweep(type, rows, lines, 1, a, edge, UNIT * size, 0, sums + units * rows * UNIT);
}

INLINE void finish_across(weft_dtype type, int rows, int64_t m, int64_t cols, const float *sums, float *c,
                          int64_t c_ld, int add)
{
    for (int64_t j = 0; j < cols; j += UNIT) {
        for (int64_t i = 0; i < m; i++) {
            const float *from = sums + j * rows + i * UNIT;
            float *to = c + i * c_ld + j, row[UNIT];
            vec first = vec_load(from), second = vec_load(from + LANES);

            if (type == WEFT_BF16)
                vec_interleave(first, second, &first, &second);
            vec_store(row, first);
            vec_store(row + LANES, second);
            for (int64_t x = 0; x < weft_min(UNIT, cols - j); x++)
                to[x] = add ? to[x] + row[x] : row[x];
        }
    }
}

INLINE void across(weft_dtype type, few_a form, int rows, int64_t m, int64_t n, int64_t k, int64_t block,
                   const void *a, const char *b, int64_t ldb, float *scratch, float *c, int64_t c_ld, int add)
{
    const int64_t size = (int64_t)size_of(type), depth = weft_min(block, k);
    const int64_t width = stream_width(n, rows, UNIT, STREAM_FLOATS - depth * rows);
    float *laid = scratch + width * rows;

    for (int64_t j = 0; j < n; j += width) {
        int64_t cols = weft_min(width, n - j), later = stream_lines_ahead(cols * size, LINES);

        for (int64_t p = 0; p < k; p += block) {
            int64_t deep = weft_min(block, k - p), q = 0;
            const char *from = b + (p * ldb + j) * size;

            lay_a(form, rows, a, p, deep, deep, laid);
            memset(scratch, 0, (size_t)(weft_round_up(cols, UNIT) * rows) * 4);
            for (; q + LINES <= deep; q += LINES)
                sweep_columns(type, rows, LINES, cols, laid + q * rows, from + q * ldb * size, ldb * size,
                              p + q + LINES + later <= k ? later * ldb * size : 0, scratch);
            for (; q < deep; q++)
                sweep_columns(type, rows, 1, cols, laid + q * rows, from + q * ldb * size, ldb * size, 0,
                              scratch);
            finish_across(type, rows, m, cols, scratch, c + j, c_ld, add || p > 0);
        }
    }
}

/* ---- B as n lines of k ---------------------------------------------------------------------------- */

/* LANES columns: sums += `steps` vectors of each line. What lies `ahead` of them is fetched meanwhile: a
 * block of k is too short a part of a line for hardware to find the next lines in time. */
INLINE void climb(weft_dtype type, int rows, int64_t steps, const float *a, const char *const line[LANES],
                  int64_t ahead, vec sum[ROWS_MOST])
{
    for (int64_t s = 0; s < steps; s++) {
        words t[LANES];

#pragma GCC unroll 16
        for (int x = 0; x < LANES; x++) {
            t[x] = words_load(line[x] + s * VECTOR_BYTES);
            _mm_prefetch(line[x] + s * VECTOR_BYTES + ahead, _MM_HINT_T0);
        }
        words_transpose(t);
#pragma GCC unroll 16
        for (int w = 0; w < LANES; w++) {
            vec first = type == WEFT_F32    ? vec_of_words(t[w])
                        : type == WEFT_BF16 ? vec_first_bf16(t[w])
                                            : vec_first_f16(t[w]);

#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                sum[i] = vec_fma(vec_one(a[i]), first, sum[i]);
            a += rows;
            if (type == WEFT_F32)
                continue;
            vec second = type == WEFT_BF16 ? vec_second_bf16(t[w]) : vec_second_f16(t[w]);

#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                sum[i] = vec_fma(vec_one(a[i]), second, sum[i]);
            a += rows;
        }
    }
}

INLINE void along(weft_dtype type, few_a form, int rows, int64_t m, int64_t n, int64_t k, int64_t block,
                  const void *a, const char *b, int64_t ldb, float *laid, float *c, int64_t c_ld, int add)
{
    const int64_t size = (int64_t)size_of(type), k_step = VECTOR_BYTES / size;

    for (int64_t p = 0; p < k; p += block) {
        int64_t deep = weft_min(block, k - p), steps = deep / k_step, done = steps * k_step;

        lay_a(form, rows, a, p, deep, weft_round_up(deep, k_step), laid);
        for (int64_t j = 0; j < n; j += LANES) {
            int64_t cols = weft_min(LANES, n - j), ahead = j + 2 * LANES <= n ? LANES * ldb * size : 0;
            const char *line[LANES];
            vec sum[ROWS_MOST];

            for (int x = 0; x < LANES; x++)
                line[x] = b + ((x < cols ? j + x : j) * ldb + p) * size;
            for (int i = 0; i < rows; i++)
                sum[i] = vec_zero();
            climb(type, rows, steps, laid, line, ahead, sum);
            if (done < deep) {
                char edge[LANES][VECTOR_BYTES] = {{0}};

                for (int x = 0; x < LANES; x++) {
                    memcpy(edge[x], line[x] + done * size, (size_t)((deep - done) * size));
                    line[x] = edge[x];
                }
                climb(type, rows, 1, laid + done * rows, line, 0, sum);
            }
            for (int64_t i = 0; i < m; i++) {
                float *to = c + i * c_ld + j, row[LANES];

                vec_store(row, sum[i]);
                for (int64_t x = 0; x < cols; x++)
                    to[x] = add || p > 0 ? to[x] + row[x] : row[x];
            }
        }
    }
}

/* ---- the lists ------------------------------------------------------------------------------------ */

#define STREAM_FOR(way, name, type, a_type, kr, rows)                                                        \
    static void name##_##way##_##rows(int64_t m, int64_t n, int64_t k, int64_t block, const void *a,         \
                                      const void *b, int64_t ldb, void *sums, void *c, int64_t c_ld,         \
                                      int add)                                                               \
    {                                                                                                        \
        way(type, (few_a){a_type, kr}, rows, m, n, k, block, a, b, ldb, sums, c, c_ld, add);                 \
    }

#define STREAM_WAY(way, isa, name, type, a_type, kr)                                                         \
    STREAM_FOR(way, name, type, a_type, kr, 1)                                                               \
    STREAM_FOR(way, name, type, a_type, kr, 2)                                                               \
    STREAM_FOR(way, name, type, a_type, kr, 4)                                                               \
    STREAM_FOR(way, name, type, a_type, kr, 8)                                                               \
    const weft_stream weft_##isa##_##name##_##way[] = {                                                      \
        {1, name##_##way##_1}, {2, name##_##way##_2}, {4, name##_##way##_4}, {8, name##_##way##_8}, {0}};

/* weft_<isa>_<name>_along and _across: B of `type`, A of `a_type` in groups of `kr`. */
#define STREAMS(isa, name, type, a_type, kr)                                                                 \
    STREAM_WAY(across, isa, name, type, a_type, kr)                                                          \
    STREAM_WAY(along, isa, name, type, a_type, kr)

#endif
