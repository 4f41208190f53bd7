/*
 * fp32 by FMA, MR rows of two vectors: the body of the AVX2 and of the AVX-512 kernel. Per k: 2 loads of B,
 * MR broadcasts of A, 2 MR FMA. The including file defines VECTOR_BYTES, MR, how many bytes ahead panels are
 * fetched, or 0: A_AHEAD, B_AHEAD, and how many of k are one turn of the loop: UNROLLED.
 */
#ifndef WEFT_GEMM_KERNELS_X86_F32_FMA_H
#define WEFT_GEMM_KERNELS_X86_F32_FMA_H

#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"
#include "gemm/kernels/x86/sums.h"

enum { FEW_AHEAD = 4096 }; /* bytes of B: few rows wait for it, and it comes from memory */

/* One of k. In assembly, because compilers load what is used twice once, and copy registers between turns. */
INLINE void product(int rows, int vectors, const float *a, const float *b, vec sum[][2])
{
    vec b0 = vec_load(b), b1 = vectors > 1 ? vec_load(b + LANES) : b0;

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        vec x = vec_one(a[i]);

        __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum[i][0]) : "v"(x), "v"(b0));
        if (vectors > 1)
            __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum[i][1]) : "v"(x), "v"(b1));
    }
}

INLINE void products(int rows, int vectors, int lines, int64_t k, const void *panel_a, const void *panel_b,
                     vec sum[][2])
{
    const float *a = panel_a, *b = panel_b;
    const int b_ahead = lines <= 4 ? FEW_AHEAD : B_AHEAD, a_ahead = lines <= 4 ? 0 : A_AHEAD;
    int64_t p = 0;

    for (; p + UNROLLED <= k; p += UNROLLED) {
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++) {
            for (int at = 0; b_ahead && at < vectors * VECTOR_BYTES; at += CACHE_LINE)
                _mm_prefetch((const char *)(b + u * NR) + b_ahead + at, _MM_HINT_T0);
            if (a_ahead)
                _mm_prefetch((const char *)(a + u * lines) + a_ahead, _MM_HINT_T0);
            product(rows, vectors, a + u * lines, b + u * NR, sum);
        }
        a += UNROLLED * lines;
        b += UNROLLED * NR;
    }
    for (; p < k; p++, a += lines, b += NR)
        product(rows, vectors, a, b, sum);
}

/* For unpacked_f32.h. Instructions are the limit there: where it takes no more loads than there is room for,
 * and an address of one register, a broadcast is a part of its FMA. */
INLINE void add_row(int i, int vectors, const float *x, const vec *b, vec *sum)
{
#if VECTOR_BYTES == 64
    if (vectors == 1 || (vectors == 2 && i % 4 == 0)) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum[v]) : "v"(b[v]), "m"(*x));
        return;
    }
#endif
    vec one = vec_one(*x);

#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum[v]) : "v"(one), "v"(b[v]));
    (void)i;
}

INLINE vec vec_load_some(const float *from, int count)
{
    return vec_of_words(words_load_some(from, count));
}

/* AVX2 is slow to store under a mask. */
INLINE void vec_store_some(float *to, vec v, int count)
{
    if (count == LANES)
        vec_store(to, v);
    else
        words_store_some(to, words_of_vec(v), count);
}

enum { TILE_VECTORS = 2 };
#include "gemm/kernels/unpacked_f32.h"

#define RUN_FEW(rows)                                                                                        \
    static void run_##rows(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)          \
    {                                                                                                        \
        run_rows(rows, k, a, b, c, c_ld, add);                                                               \
    }

RUN_FEW(1)
RUN_FEW(2)
RUN_FEW(4)

/* The same with a panel of B of halves. The sums have the same order. */
INLINE void run_halves(weft_dtype type, int rows, int64_t k, const float *a, const uint16_t *b, float *c,
                       int64_t c_ld, int add)
{
    vec sum[MR][2];

    begin_sums(rows, sum, NULL);
    for (int64_t p = 0; p < k; p++, a += rows, b += NR) {
        vec b0 = type == WEFT_BF16 ? vec_load_bf16(b) : vec_load_f16(b);
        vec b1 = type == WEFT_BF16 ? vec_load_bf16(b + LANES) : vec_load_f16(b + LANES);

        _mm_prefetch((const char *)b + FEW_AHEAD, _MM_HINT_T0);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec x = vec_one(a[i]);

            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
    }
    if (add)
        add_sums(rows, sum, c, c_ld);
    put_sums(rows, sum, WEFT_F32, (char *)c, c_ld);
}

#define RUN_HALVES(type, name, rows)                                                                         \
    static void run_##name##_##rows(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add) \
    {                                                                                                        \
        run_halves(type, rows, k, a, b, c, c_ld, add);                                                       \
    }

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_rows(WEFT_F32, k, a, b, places);
}

static void pack_a_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld * 4, k * 4, MR, 0);
}

static void pack_b_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld * 4, k * 4, NR, 0);
}

static void pack_a_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint32_t(panel, source, ld, k, MR, 1, 0);
}

static void pack_b_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint32_t(panel, source, ld, k, NR, 1, 0);
}

static void pack_a_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_words(panels, panel_bytes, source, ld * 4, k, count, MR * 4);
}

static void pack_b_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_words(panels, panel_bytes, source, ld * 4, k, count, NR * 4);
}

/* What a binding for a half type has of its own: a D of it, packing of what is given in it, few rows. */
#define WEFT_F32_WIDENED(isa, type, name)                                                                    \
    void weft_##isa##_finish_##name(int64_t k, const void *a, const weft_panels *b,                          \
                                    const weft_places *places)                                               \
    {                                                                                                        \
        finish_rows(type, k, a, b, places);                                                                  \
    }                                                                                                        \
                                                                                                             \
    void weft_##isa##_widen_a_##name(void *panel, const void *source, int64_t ld, int64_t k)                 \
    {                                                                                                        \
        widen_along(type, panel, source, ld * 2, k, MR);                                                     \
    }                                                                                                        \
                                                                                                             \
    void weft_##isa##_widen_b_##name(void *panel, const void *source, int64_t ld, int64_t k)                 \
    {                                                                                                        \
        widen_along(type, panel, source, ld * 2, k, NR);                                                     \
    }                                                                                                        \
                                                                                                             \
    void weft_##isa##_widen_wide_##name(void *panels, int64_t panel_bytes, const void *source, int64_t ld,   \
                                        int64_t k, int64_t count)                                            \
    {                                                                                                        \
        widen_wide(type, panels, panel_bytes, source, ld, k, count, NR);                                     \
    }                                                                                                        \
                                                                                                             \
    RUN_HALVES(type, name, 1)                                                                                \
    RUN_HALVES(type, name, 2)                                                                                \
    RUN_HALVES(type, name, 4)                                                                                \
    RUN_HALVES(type, name, MR)                                                                               \
    const weft_few weft_##isa##_few_##name[] = {                                                             \
        {1, run_##name##_1}, {2, run_##name##_2}, {4, run_##name##_4}, {MR, run_##name##_MR}, {0}};

#define WEFT_F32_KERNEL(stream)                                                                              \
    .type = WEFT_F32, .mr = MR, .nr = NR, .a_kr = 1, .b_kr = 1, .k_step = 1, WEFT_SUMS,                      \
    .few = (const weft_few[]){{1, run_1}, {2, run_2}, {4, run_4}, {0}}, .along = stream##_f32_along,         \
    .across = stream##_f32_across, .unpacked = unpacked, WEFT_PACKERS, .pack_a_wide = pack_a_wide,           \
    .pack_b_wide = pack_b_wide

#endif
