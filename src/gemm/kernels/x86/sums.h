/*
 * What becomes of the fp32 sums of a micro-tile, for kernels of MR rows and two vectors of columns: into C,
 * rounded into D, or left for a later call (kernel.h). The including file defines MR, TYPE_BYTES (of an
 * element of a panel) and
 *
 *     products(rows, vectors, lines, k, a, b, sum)
 *
 * sum += the first `rows` rows of a panel of A of `lines` * the first vectors of columns of a panel of B.
 */
#ifndef WEFT_GEMM_KERNELS_X86_SUMS_H
#define WEFT_GEMM_KERNELS_X86_SUMS_H

#include "gemm/kernels/x86/edges.h"
#include "gemm/kernels/x86/vector.h"

enum {
    NR = 2 * LANES,
    CACHE_LINE = 64,
    LATE = 64 /* of k: long enough for L3 to answer, too short for a line to be driven out of L1 again */
};

INLINE void products(int rows, int vectors, int lines, int64_t k, const void *a, const void *b, vec sum[][2]);

/* From zero, or from what `keep` left. */
INLINE void begin_sums(int rows, vec sum[][2], const char *start)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sum[i][0] = start ? vec_load((const float *)start + i * NR) : vec_zero();
        sum[i][1] = start ? vec_load((const float *)start + i * NR + LANES) : vec_zero();
    }
}

INLINE void add_sums(int rows, vec sum[][2], const float *acc, int64_t ld)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sum[i][0] = vec_add(vec_load(acc + i * ld), sum[i][0]);
        sum[i][1] = vec_add(vec_load(acc + i * ld + LANES), sum[i][1]);
    }
}

INLINE void put_sums(int rows, vec sum[][2], weft_dtype type, char *to, int64_t ld)
{
    const int64_t size = type == WEFT_F32 ? 4 : 2;

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        vec_put(type, to + i * ld * size, sum[i][0]);
        vec_put(type, to + (i * ld + LANES) * size, sum[i][1]);
    }
}

/* `bytes` of each row, to be read or (`writes`) written: also the line in which it ends, since rows need not
 * begin on lines. */
INLINE void fetch_rows(int rows, const char *first, int64_t stride, int bytes, bool writes)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        for (int at = 0; at < bytes + CACHE_LINE; at += CACHE_LINE) {
            const char *line = first + i * stride + (at < bytes ? at : bytes - 1);

            if (writes)
                __builtin_prefetch(line, 1, 3);
            else
                __builtin_prefetch(line, 0, 3);
        }
    }
}

/* Rows of sums and of D: NULL, or where they begin and bytes between them. */
typedef struct rows_near {
    const char *acc, *d;
    int64_t acc_stride, d_stride;
    int d_bytes; /* of a row */
} rows_near;

/*
 * Products, and what their sums go to asked for before it is needed: rows may share a set of every cache, and
 * then come from far. Not long before, since then they would drive the panels out of that set.
 */
INLINE void products_near(int rows, int64_t k, const char *a, const char *b, vec sum[][2],
                          const rows_near *near)
{
    int64_t early = k > 2 * LATE ? k - LATE : 0;

    if (early)
        products(rows, 2, rows, early, a, b, sum);
    if (near->acc)
        fetch_rows(rows, near->acc, near->acc_stride, NR * 4, false);
    if (near->d)
        fetch_rows(rows, near->d, near->d_stride, near->d_bytes, true);
    products(rows, 2, rows, k - early, a + early * rows * TYPE_BYTES, b + early * NR * TYPE_BYTES, sum);
}

INLINE void run_rows(int rows, int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    vec sum[MR][2];
    rows_near near = {.d = c, .d_stride = c_ld * 4, .d_bytes = NR * 4};

    begin_sums(rows, sum, NULL);
    products_near(rows, k, a, b, sum, &near);
    if (add)
        add_sums(rows, sum, c, c_ld);
    put_sums(rows, sum, WEFT_F32, c, c_ld);
}

/* The first `rows` rows and `vectors` vectors of columns, the last of them in part: `cols` in all. */
INLINE void edge_rows(int rows, int vectors, int64_t cols, int64_t k, const char *a, const char *b, float *c,
                      int64_t c_ld, int add)
{
    int64_t early = k > 2 * LATE ? k - LATE : 0;
    vec sum[MR][2];

    begin_sums(rows, sum, NULL);
    for (int64_t p = 0, end = early; p < k; p = end, end = k) {
        products(rows, vectors, MR, end - p, a + p * MR * TYPE_BYTES, b + p * NR * TYPE_BYTES, sum);
        if (end == early)
            fetch_rows(rows, (const char *)c, c_ld * 4, vectors * VECTOR_BYTES, true);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            float *to = c + i * c_ld + v * LANES;
            int count = v + 1 < vectors ? LANES : (int)cols - v * LANES;
            words old = words_load_some(to, add ? count : 0);

            words_store_some(to, words_of_vec(add ? vec_add(vec_of_words(old), sum[i][v]) : sum[i][v]),
                             count);
        }
    }
}

static void edge(int64_t rows, int64_t cols, int64_t k, const void *a, const void *b, void *c, int64_t c_ld,
                 int add){WEFT_EDGES(rows, cols, k, a, b, c, c_ld, add)}

/* weft_finisher */
INLINE void finish_rows(weft_dtype type, int64_t k, const void *a, const weft_panels *b,
                        const weft_places *places)
{
    const int64_t size = type == WEFT_F32 ? 4 : 2;

    for (int64_t g = 0; g < b->count; g++) {
        vec sum[MR][2];
        rows_near near = {.acc = places->acc ? places->acc + g * NR * 4 : NULL,
                          .acc_stride = places->acc_ld * 4,
                          .d = places->d[0] + g * NR * size,
                          .d_stride = places->d_ld[0] * size,
                          .d_bytes = (int)(NR * size)};

        for (int64_t at = 0; at < b->slice && g < b->ahead_count; at += CACHE_LINE)
            _mm_prefetch(b->ahead + g * b->bytes + at, _MM_HINT_T1);
        if (places->acc_below)
            fetch_rows(MR, near.acc + MR * near.acc_stride, near.acc_stride, NR * 4, false);
        begin_sums(MR, sum, places->start ? places->start + g * MR * NR * 4 : NULL);
        products_near(MR, k, a, b->first + g * b->bytes, sum, &near);
        if (places->acc)
            add_sums(MR, sum, (const float *)places->acc + g * NR, places->acc_ld);
        put_sums(MR, sum, type, places->d[0] + g * NR * size, places->d_ld[0]);
        if (places->d[1])
            put_sums(MR, sum, type, places->d[1] + g * NR * size, places->d_ld[1]);
    }
}

static void settle(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_rows(WEFT_F32, k, a, b, places);
}

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    vec sum[MR][2];

    begin_sums(MR, sum, start);
    products(MR, 2, MR, k, a, b, sum);
    put_sums(MR, sum, WEFT_F32, to, NR);
}

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_rows(MR, k, a, b, c, c_ld, add);
}

/* Their places in the kernel's table; `finish` is the file's. */
#define WEFT_SUMS .run = run, .edge = edge, .keep = keep, .keep_block = 1, .finish = finish, .settle = settle

#endif
