/*
 * Small products of fp32, A and B as they lie (weft_unpacked in kernel.h): MR rows of TILE_VECTORS vectors of
 * columns are a tile, as of the kernel whose file includes this; of fewer rows a tile has so many vectors
 * more that the FMA units always have sums enough under way. Every number of rows and of vectors has a loop
 * of its own; the last vector of a row may be a part of one. The including file defines MR, TILE_VECTORS,
 * LANES, vec with vec_zero, vec_load and vec_add, and
 *
 *     vec_load_some(from, count), vec_store_some(to, v, count)
 *         the first `count` lanes; other memory is not touched
 *     add_row(i, vectors, x, b, sum)
 *         sum[v] += *x * b[v] in every lane, rounded once; i: which row of the tile
 */
#ifndef WEFT_GEMM_KERNELS_UNPACKED_F32_H
#define WEFT_GEMM_KERNELS_UNPACKED_F32_H

#include "core/round.h"
#include "gemm/kernel.h"

#include <string.h>

#define UNPACKED_INLINE static inline __attribute__((always_inline))

enum { VECTORS_MOST = 8, UNPACKED_LINE = 64 };

/* Where a tile of A begins: rows are addressed from one in four, by multiples of the stride that an address
 * can have, or by thrice. */
typedef struct unpacked_rows {
    const char *first[3];
    int64_t stride, thrice, step;
} unpacked_rows;

/* One of k. */
UNPACKED_INLINE void add_product(int rows, int vectors, int last, unpacked_rows *a, const float *from_b,
                                 vec sum[][VECTORS_MOST])
{
    vec b[VECTORS_MOST];

#pragma GCC unroll 8
    for (int v = 0; v + 1 < vectors; v++)
        b[v] = vec_load(from_b + v * LANES);
    b[vectors - 1] = vec_load_some(from_b + (vectors - 1) * LANES, last);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        add_row(i, vectors,
                (const float *)(const void *)(a->first[i / 4] + (i % 4 == 3 ? a->thrice : i % 4 * a->stride)),
                b, sum[i]);
    a->first[0] += a->step;
    if (rows > 4)
        a->first[1] += a->step;
    if (rows > 8)
        a->first[2] += a->step;
}

/* Lines of D are asked for before they are written, also those in which rows end. */
UNPACKED_INLINE void fetch_results(int rows, const char *first, int64_t stride, int bytes)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        for (int at = 0; at < bytes + UNPACKED_LINE; at += UNPACKED_LINE)
            __builtin_prefetch(first + i * stride + (at < bytes ? at : bytes - 1), 1, 3);
    }
}

/* `rows` rows, `vectors` vectors of columns, of the last one the first `last`. */
UNPACKED_INLINE void unpacked_tile(int rows, int vectors, int last, const weft_unpacked *s,
                                   const float *from_a, const float *from_b, float *c)
{
    const char *at = (const char *)from_a;
    const int64_t stride = s->a_rs * 4, k = s->k, ldb = s->ldb;
    unpacked_rows a = {{at, at + 4 * stride, at + 8 * stride}, stride, 3 * stride, s->a_cs * 4};
    vec sum[MR][VECTORS_MOST];

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[i][v] = vec_zero();
    }
    fetch_results(rows, (const char *)c, s->c_ld * 4, vectors * LANES * 4);
    for (int64_t p = 1; p < k; p += 2, from_b += 2 * ldb) {
        add_product(rows, vectors, last, &a, from_b, sum);
        add_product(rows, vectors, last, &a, from_b + ldb, sum);
    }
    if (k % 2)
        add_product(rows, vectors, last, &a, from_b, sum);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * s->c_ld;

#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++, to += LANES) {
            int count = v + 1 < vectors ? LANES : last;

            vec_store_some(to, s->add ? vec_add(vec_load_some(to, count), sum[i][v]) : sum[i][v], count);
        }
    }
}

/* Vectors of a tile of so many rows, at most. */
UNPACKED_INLINE int vectors_for(int64_t rows)
{
    return rows == 1 ? VECTORS_MOST : rows < 4 ? VECTORS_MOST / 2 : TILE_VECTORS;
}

#define UNPACKED_CASE(r, v)                                                                                  \
    case (r) * (VECTORS_MOST + 1) + (v):                                                                     \
        if (r <= MR && v <= vectors_for(r))                                                                  \
            unpacked_tile(r, v, last, s, a, b, c);                                                           \
        break;

#define UNPACKED_FOUR(r) UNPACKED_CASE(r, 1) UNPACKED_CASE(r, 2) UNPACKED_CASE(r, 3) UNPACKED_CASE(r, 4)

static void unpacked_columns(const weft_unpacked *s, int64_t rows, int64_t cols, const float *a,
                             const float *b, float *c)
{
    int64_t vectors = weft_divide_up(cols, LANES);
    int last = (int)(cols - (vectors - 1) * LANES);

    _Static_assert(MR <= 12 && TILE_VECTORS <= 4, "every number of rows and of vectors has its loop");
    switch (rows * (VECTORS_MOST + 1) + vectors) {
        UNPACKED_FOUR(1)
        UNPACKED_CASE(1, 5)
        UNPACKED_CASE(1, 6)
        UNPACKED_CASE(1, 7)
        UNPACKED_CASE(1, 8)
        UNPACKED_FOUR(2)
        UNPACKED_FOUR(3)
        UNPACKED_FOUR(4)
        UNPACKED_FOUR(5)
        UNPACKED_FOUR(6)
        UNPACKED_FOUR(7)
        UNPACKED_FOUR(8)
        UNPACKED_FOUR(9)
        UNPACKED_FOUR(10)
        UNPACKED_FOUR(11)
        UNPACKED_FOUR(12)
    default:
        break;
    }
}

/* Tiles of about as many rows each: one of two or three at the end would wait for its few sums. */
static void unpacked(const weft_unpacked *s)
{
    const float *a = s->a, *b = s->b;
    float *c = s->c;
    int64_t left = weft_divide_up(s->m, MR), rows;

    for (int64_t i = 0; i < s->m; i += rows, left--) {
        rows = weft_divide_up(s->m - i, left);
        int64_t width = vectors_for(rows) * LANES;

        for (int64_t j = 0; j < s->n; j += width)
            unpacked_columns(s, rows, weft_min(width, s->n - j), a + i * s->a_rs, b + j, c + i * s->c_ld + j);
    }
}

#endif
