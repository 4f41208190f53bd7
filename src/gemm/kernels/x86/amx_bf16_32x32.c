/*
 * bf16 with fp32 sums, AMX.
 *
 * Tile 32x32 as 2x2 tiles of 16x16. Per 32 of k: 2 tile loads of A, 2 of B, 4 TDPBF16PS of 16 cycles each, so
 * loads take half of what the products take.
 * Few rows: amx_few.h, 1x32 and 4x32 by VDPBF16PS.
 */
#define VECTOR_BYTES 64
#define MULTIPLY _tile_dpbf16ps
#include "gemm/kernels/x86/vector.h"

enum { A_KR = 32, B_KR = 2, K_STEP = A_KR };

INLINE words add_words(words a, words b)
{
    return words_of_vec(vec_add(vec_of_words(a), vec_of_words(b)));
}

#include "gemm/kernels/x86/amx_few.h"
#include "gemm/kernels/x86/amx_tile.h"
#include "gemm/kernels/x86/avx512_bf16.h"

/* Rows of sums added on the way. */
INLINE vec sum_at(const row_places *places, int64_t g, const char *sums, int64_t i, int j)
{
    vec sum = vec_load((const float *)sums + i * NR + j);

    if (places->acc)
        sum = vec_add(vec_load((const float *)(places->acc + i * places->acc_stride) + g * NR + j), sum);
    return sum;
}

/* Rounded, whole lines at a time. */
INLINE void put_bf16(const row_places *places, int64_t g, const char *sums, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        words both =
            (words)_mm512_cvtne2ps_pbh(sum_at(places, g, sums, i, LANES), sum_at(places, g, sums, i, 0));

        words_store(places->to[0] + i * places->to_stride[0] + g * NR * 2, both);
        if (places->to[1])
            words_store(places->to[1] + i * places->to_stride[1] + g * NR * 2, both);
    }
}

INLINE void put_f32(const row_places *places, int64_t g, const char *sums, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        for (int j = 0; j < NR; j += LANES)
            vec_store((float *)(places->to[0] + i * places->to_stride[0]) + g * NR + j,
                      sum_at(places, g, sums, i, j));
    }
}

INLINE void finish_as(int size, put_rows put, int64_t k, const void *a, const weft_panels *b,
                      const weft_places *places)
{
    row_places rows = {
        .to = {places->d[0], places->d[1]},
        .to_stride = {places->d_ld[0] * size, places->d_ld[1] * size},
        .across = NR * size,
        .acc_stride = places->acc_ld * 4,
        .acc = places->acc,
        .size = size,
    };
    SUMS(sums, ROW_MOST);

    run_row_of(k, a, b, places->start, sums, put, &rows);
}

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_as(2, put_bf16, k, a, b, places);
}

static void finish_ahead(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    weft_panels panels = panels_ahead(k, b->first, b->bytes, b->count);

    finish_as(2, put_bf16, k, a, &panels, places);
}

static void settle(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_as(4, put_f32, k, a, b, places);
}

INLINE void run_few(int rows, int64_t k, const void *a, const void *b, void *c_tile, int64_t c_ld, int add)
{
    vec sum[FEW][2];
    float *c = c_tile;

    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = vec_zero();
    bf16_products(rows, 2, rows, A_KR, k, a, b, sum);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * rows; i++) {
        float *to = c + i / 2 * c_ld + i % 2 * LANES;

        vec_store(to, add ? vec_add(vec_load(to), sum[i / 2][i % 2]) : sum[i / 2][i % 2]);
    }
}

static void pack_a_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_steps(panel, source, ld * 2, k * 2);
}

static void pack_b_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld * 2, k * 2, NR, 0);
}

static void pack_a_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint16_t(panel, source, ld, k, MR, A_KR, 0);
}

static void pack_b_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_wide_halves(panel, 0, source, ld * 2, k, 1);
}

static void pack_b_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_halves(panels, panel_bytes, source, ld * 2, k, count);
}

const weft_kernel weft_kernel_amx_bf16_32x32 = {
    .name = "amx_bf16_32x32",
    .type = WEFT_BF16,
    .mr = MR,
    .nr = NR,
    .a_kr = A_KR,
    .b_kr = B_KR,
    .k_step = A_KR,
    .prepare = prepare,
    .release = release,
    .run = run,
    .run_row = run_row,
    .row_panels = ROW_PANELS,
    .row_most = ROW_MOST,
    .run_ahead = run_ahead,
    .finish_ahead = finish_ahead,
    .keep = keep,
    .keep_row = keep_row,
    .keep_block = 1,
    .finish = finish,
    .settle = settle,
    .few = (const weft_few[])AMX_FEW,
    .along = weft_avx512_bf16_amx_along,
    .across = weft_avx512_bf16_amx_across,
    WEFT_PACKERS,
    .pack_b_wide = pack_b_wide,
};
