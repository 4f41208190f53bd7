/*
 * What becomes of the fp32 sums of a micro-tile, for kernels of MR rows and two vectors of columns: into C,
 * rounded into D, or left for a later call (kernel.h). The including file defines MR and
 *
 *     products(rows, k, a, b, sum)    sum += panel of A (`rows` rows) * panel of B
 */
#ifndef WEFT_GEMM_KERNELS_X86_SUMS_H
#define WEFT_GEMM_KERNELS_X86_SUMS_H

#include "gemm/kernels/x86/vector.h"

enum { NR = 2 * LANES, CACHE_LINE = 64 };

INLINE void products(int rows, int64_t k, const void *a, const void *b, vec sum[][2]);

/* From zero, or from what `keep` left. */
INLINE void begin_sums(int rows, vec sum[][2], const char *start)
{
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        sum[i][0] = start ? vec_load((const float *)start + i * NR) : vec_zero();
        sum[i][1] = start ? vec_load((const float *)start + i * NR + LANES) : vec_zero();
    }
}

INLINE void add_sums(int rows, vec sum[][2], const float *acc, int64_t ld)
{
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        sum[i][0] = vec_add(vec_load(acc + i * ld), sum[i][0]);
        sum[i][1] = vec_add(vec_load(acc + i * ld + LANES), sum[i][1]);
    }
}

INLINE void put_sums(int rows, vec sum[][2], weft_dtype type, char *to, int64_t ld)
{
    const int64_t size = type == WEFT_F32 ? 4 : 2;

#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        vec_put(type, to + i * ld * size, sum[i][0]);
        vec_put(type, to + (i * ld + LANES) * size, sum[i][1]);
    }
}

/* Rows of C may share a set of every cache, and then come from far: asked for before they are needed. */
INLINE void fetch_rows(int rows, const float *c, int64_t ld)
{
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        for (int at = 0; at < NR * 4; at += CACHE_LINE)
            _mm_prefetch((const char *)(c + i * ld) + at, _MM_HINT_T0);
    }
}

INLINE void run_rows(int rows, int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    vec sum[MR][2];

    fetch_rows(rows, c, c_ld);
    begin_sums(rows, sum, NULL);
    products(rows, k, a, b, sum);
    if (add)
        add_sums(rows, sum, c, c_ld);
    put_sums(rows, sum, WEFT_F32, c, c_ld);
}

/* weft_finisher */
INLINE void finish_rows(weft_dtype type, int64_t k, const void *a, const weft_panels *b,
                        const weft_places *places)
{
    const int64_t size = type == WEFT_F32 ? 4 : 2;

    for (int64_t g = 0; g < b->count; g++) {
        vec sum[MR][2];

        for (int64_t at = 0; at < b->slice && g < b->ahead_count; at += CACHE_LINE)
            _mm_prefetch(b->ahead + g * b->bytes + at, _MM_HINT_T1);
        for (int i = MR; i < 2 * MR && places->acc_below; i++) {
            for (int at = 0; at < NR * 4; at += CACHE_LINE)
                _mm_prefetch(places->acc + i * places->acc_ld * 4 + g * NR * 4 + at, _MM_HINT_T0);
        }
        begin_sums(MR, sum, places->start ? places->start + g * MR * NR * 4 : NULL);
        products(MR, k, a, b->first + g * b->bytes, sum);
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
    products(MR, k, a, b, sum);
    put_sums(MR, sum, WEFT_F32, to, NR);
}

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_rows(MR, k, a, b, c, c_ld, add);
}

/* Their places in the kernel's table; `finish` is the file's. */
#define WEFT_SUMS .run = run, .keep = keep, .keep_block = 1, .finish = finish, .settle = settle

#endif
