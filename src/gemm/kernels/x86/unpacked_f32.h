/*
 * Small products of fp32, A and B as they lie (weft_unpacked in kernel.h). For use in the file of a kernel of
 * two vectors: its MR rows of two vectors of columns are a tile here, too; of fewer rows a tile has so many
 * vectors more that the FMA units always have eight sums or more under way. Every number of rows and of
 * vectors has a loop of its own; the last vector of a row may be a part of one.
 */
#ifndef WEFT_GEMM_KERNELS_X86_UNPACKED_F32_H
#define WEFT_GEMM_KERNELS_X86_UNPACKED_F32_H

#include "core/round.h"
#include "gemm/kernels/x86/sums.h"

enum { VECTORS_MOST = 8 };

/* A row in each of four is addressed by a multiple of the stride that an address can have, or by thrice. */
INLINE vec element_of(const char *const first[3], int64_t stride, int64_t thrice, int i)
{
    float x;

    memcpy(&x, first[i / 4] + (i % 4 == 3 ? thrice : i % 4 * stride), sizeof(x));
    return vec_one(x);
}

/* `rows` rows, `vectors` vectors of columns, of the last one the first `last`. */
INLINE void unpacked_tile(int rows, int vectors, int last, const weft_unpacked *s, const float *from_a,
                          const float *from_b, float *c)
{
    const int64_t stride = s->a_rs * 4, thrice = 3 * stride, a_step = s->a_cs * 4;
    const char *a[3] = {(const char *)from_a, (const char *)from_a + 4 * stride,
                        (const char *)from_a + 8 * stride};
    vec sum[MR][VECTORS_MOST];

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[i][v] = vec_zero();
    }
    fetch_rows(rows, (const char *)c, s->c_ld * 4, vectors * VECTOR_BYTES, true);
    for (int64_t p = 0; p < s->k; p++) {
        vec b[VECTORS_MOST];

#pragma GCC unroll 8
        for (int v = 0; v + 1 < vectors; v++)
            b[v] = vec_load(from_b + v * LANES);
        b[vectors - 1] = vec_of_words(words_load_some(from_b + (vectors - 1) * LANES, last));
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec x = element_of(a, stride, thrice, i);

#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum[i][v]) : "v"(x), "v"(b[v]));
        }
        a[0] += a_step;
        if (rows > 4)
            a[1] += a_step;
        if (rows > 8)
            a[2] += a_step;
        from_b += s->ldb;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * s->c_ld;

#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++, to += LANES) {
            int count = v + 1 < vectors ? LANES : last;
            vec all = s->add ? vec_add(vec_of_words(words_load_some(to, count)), sum[i][v]) : sum[i][v];

            words_store_some(to, words_of_vec(all), count);
        }
    }
}

/* Vectors of a tile of so many rows, at most. */
INLINE int vectors_for(int64_t rows)
{
    return rows == 1 ? VECTORS_MOST : rows < 4 ? VECTORS_MOST / 2 : 2;
}

#define UNPACKED_CASE(r, v)                                                                                  \
    case (r) * (VECTORS_MOST + 1) + (v):                                                                     \
        if (r <= MR)                                                                                         \
            unpacked_tile(r, v, last, s, a, b, c);                                                           \
        break;

#define UNPACKED_PAIR(r) UNPACKED_CASE(r, 1) UNPACKED_CASE(r, 2)
#define UNPACKED_FOUR(r) UNPACKED_PAIR(r) UNPACKED_CASE(r, 3) UNPACKED_CASE(r, 4)

static void unpacked_columns(const weft_unpacked *s, int64_t rows, int64_t cols, const float *a,
                             const float *b, float *c)
{
    int64_t vectors = weft_divide_up(cols, LANES);
    int last = (int)(cols - (vectors - 1) * LANES);

    _Static_assert(MR <= 12, "every number of rows has its loop");
    switch (rows * (VECTORS_MOST + 1) + vectors) {
        UNPACKED_FOUR(1)
        UNPACKED_CASE(1, 5)
        UNPACKED_CASE(1, 6)
        UNPACKED_CASE(1, 7)
        UNPACKED_CASE(1, 8)
        UNPACKED_FOUR(2)
        UNPACKED_FOUR(3)
        UNPACKED_PAIR(4)
        UNPACKED_PAIR(5)
        UNPACKED_PAIR(6)
        UNPACKED_PAIR(7)
        UNPACKED_PAIR(8)
        UNPACKED_PAIR(9)
        UNPACKED_PAIR(10)
        UNPACKED_PAIR(11)
        UNPACKED_PAIR(12)
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
