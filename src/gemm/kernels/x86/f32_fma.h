/*
 * fp32 by FMA, MR rows of two vectors: the body of the AVX2 and of the AVX-512 kernel. Per k: 2 loads of B,
 * MR broadcasts of A, 2 MR FMA. The including file defines VECTOR_BYTES, MR, and how many bytes ahead panels
 * are fetched, or 0: A_AHEAD, B_AHEAD.
 */
#ifndef WEFT_GEMM_KERNELS_X86_F32_FMA_H
#define WEFT_GEMM_KERNELS_X86_F32_FMA_H

#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"
#include "gemm/kernels/x86/sums.h"

enum { FEW_AHEAD = 4096 }; /* bytes of B: few rows wait for it, and it comes from memory */

INLINE void products(int rows, int64_t k, const void *panel_a, const void *panel_b, vec sum[][2])
{
    const float *a = panel_a, *b = panel_b;
    const int b_ahead = rows <= 4 ? FEW_AHEAD : B_AHEAD;

    for (int64_t p = 0; p < k; p++) {
        vec b0 = vec_load(b), b1 = vec_load(b + LANES);

        for (int at = 0; b_ahead && at < NR * 4; at += CACHE_LINE)
            _mm_prefetch((const char *)b + b_ahead + at, _MM_HINT_T0);
        if (A_AHEAD > 0 && rows > 4)
            _mm_prefetch((const char *)a + A_AHEAD, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec x = vec_one(a[i]);

            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
        a += rows;
        b += NR;
    }
}

#define RUN_FEW(rows)                                                                                        \
    static void run_##rows(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)          \
    {                                                                                                        \
        run_rows(rows, k, a, b, c, c_ld, add);                                                               \
    }

RUN_FEW(1)
RUN_FEW(2)
RUN_FEW(4)

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

static void pack_b_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_words(panels, panel_bytes, source, ld * 4, k, count, NR * 4);
}

/* What a binding for a half type has of its own: a D of it, and packing of what is given in it. */
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
    }

#define WEFT_F32_KERNEL(stream)                                                                              \
    .type = WEFT_F32, .mr = MR, .nr = NR, .a_kr = 1, .b_kr = 1, .k_step = 1, WEFT_SUMS,                      \
    .few = (const weft_few[]){{1, run_1}, {2, run_2}, {4, run_4}, {0}}, .along = stream##_f32_along,         \
    .across = stream##_f32_across, WEFT_PACKERS, .pack_b_wide = pack_b_wide

#endif
