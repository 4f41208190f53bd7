/*
 * bf16 with fp32 sums, AMX.
 *
 * Tile 32x32 as 2x2 tiles of 16x16. Per 32 of k: 2 tile loads of A, 2 of B, 4 TDPBF16PS of 16 cycles each, so
 * loads take half of what the products take.
 * Few rows: 1x32 or 4x32 by VDPBF16PS over the same B, because a tile with 4 of 16 rows would waste the unit;
 * 16x32 by one tile of A.
 */
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/amx_tile.h"
#include "gemm/kernels/x86/avx512_bf16.h"

enum { A_KR = 32, B_KR = 2, FEW = 4, HALF_ROWS = 16, PAGE_BYTES = 4096 };

INLINE void add_block(float *c, int64_t c_ld, const char *sums)
{
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j += LANES)
            vec_store(c + i * c_ld + j,
                      vec_add(vec_load(c + i * c_ld + j), vec_load((const float *)sums + i * NR + j)));
    }
}

AMX_KERNEL(_tile_dpbf16ps, A_KR)

INLINE void finish_as(weft_dtype type, int64_t k, const void *a, const weft_panels *b,
                      const weft_places *places)
{
    const int64_t size = type == WEFT_F32 ? 4 : 2;
    char sums[MR * NR * 4] __attribute__((aligned(64)));

    for (int64_t g = 0; g < b->count; g++) {
        fetches near = fetches_of(k / A_KR, b->ahead + g * b->bytes, g < b->ahead_count ? b->slice : 0,
                                  places->d[0] + g * NR * size, places->d_ld[0] * size);

        begin_tiles(places->start ? places->start + g * MR * NR * 4 : NULL);
        AMX_PRODUCTS(_tile_dpbf16ps, k / A_KR, a, b->first + g * b->bytes, &near, NR * (int)size);
        store_tiles(sums, NR);
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR; j += LANES) {
                vec sum = vec_load((const float *)sums + i * NR + j);

                if (places->acc)
                    sum =
                        vec_add(vec_load((const float *)places->acc + i * places->acc_ld + g * NR + j), sum);
                vec_put(type, places->d[0] + (i * places->d_ld[0] + g * NR + j) * size, sum);
                if (places->d[1])
                    vec_put(type, places->d[1] + (i * places->d_ld[1] + g * NR + j) * size, sum);
            }
        }
    }
}

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_as(WEFT_BF16, k, a, b, places);
}

static void settle(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_as(WEFT_F32, k, a, b, places);
}

INLINE void run_few(int rows, int64_t k, const void *a, const void *b, void *c_tile, int64_t c_ld, int add)
{
    vec sum[FEW][2];
    float *c = c_tile;

    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = vec_zero();
    bf16_products(rows, A_KR, k, a, b, sum);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * rows; i++) {
        float *to = c + i / 2 * c_ld + i % 2 * LANES;

        vec_store(to, add ? vec_add(vec_load(to), sum[i / 2][i % 2]) : sum[i / 2][i % 2]);
    }
}

static void run_1(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(1, k, a, b, c, c_ld, add);
}

static void run_4(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(FEW, k, a, b, c, c_ld, add);
}

/*
 * Half the tile's rows. B is used once and comes from memory. Hardware fetches ahead within a page that it
 * has seen used and no further: two lines of the page after the next are asked for when one begins, so that
 * it is at work on several. That reads 13.7 GB/s where asking for every line has 10.6 and asking for
 * none 11.6.
 */
static void run_16(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const char *a = a_panel, *b = b_panel;
    float sums[HALF_ROWS * NR] __attribute__((aligned(64))), *c = c_tile;

    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = 0; p < k; p += A_KR, a += HALF_ROWS * 64, b += STEP_BYTES) {
        if (((uintptr_t)b & (PAGE_BYTES - 1)) < STEP_BYTES) {
            _mm_prefetch(b + 2 * PAGE_BYTES, _MM_HINT_T0);
            _mm_prefetch(b + 2 * PAGE_BYTES + PAGE_BYTES / 4, _MM_HINT_T0);
        }
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 64, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, sums, NR * 4);
    _tile_stored(1, sums + LANES, NR * 4);
    for (int i = 0; i < HALF_ROWS; i++) {
        for (int j = 0; j < NR; j += LANES) {
            vec sum = vec_load(sums + i * NR + j);

            vec_store(c + i * c_ld + j, add ? vec_add(vec_load(c + i * c_ld + j), sum) : sum);
        }
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
    .run_near = run_near,
    .run_ahead = run_ahead,
    .keep = keep,
    .keep_near = keep_near,
    .keep_block = 1,
    .finish = finish,
    .settle = settle,
    .few = (const weft_few[]){{1, run_1}, {FEW, run_4}, {HALF_ROWS, run_16}, {0}},
    .along = weft_avx512_bf16_amx_along,
    .across = weft_avx512_bf16_amx_across,
    WEFT_PACKERS,
    .pack_b_wide = pack_b_wide,
};
