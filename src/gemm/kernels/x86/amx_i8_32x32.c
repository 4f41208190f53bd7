/*
 * int8 to int32, AMX. TDPBSSD takes both sides signed, so nothing is shifted or corrected.
 *
 * Tile 32x32 as 2x2 tiles of 16x16. Per 64 of k: 2 tile loads of A, 2 of B, 4 TDPBSSD of 16 cycles each.
 * Few rows: amx_i8_few.c.
 */
#define VECTOR_BYTES 64
#define MULTIPLY _tile_dpbssd
#include "gemm/kernels/x86/vector.h"

enum { A_KR = 64, B_KR = 4, K_STEP = A_KR };

INLINE words add_words(words a, words b)
{
    return _mm512_add_epi32(a, b);
}

#include "gemm/kernels/x86/amx_tile.h"

static void pack_a_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_steps(panel, source, ld, k);
}

static void pack_b_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld, k, NR, 0);
}

static void pack_a_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint8_t(panel, source, ld, k, MR, A_KR, 0);
}

static void pack_b_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_wide_bytes(panel, 0, source, ld, k, 1, 0);
}

static void pack_b_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_bytes(panels, panel_bytes, source, ld, k, count, 0);
}

const weft_kernel weft_kernel_amx_i8_32x32 = {
    .name = "amx_i8_32x32",
    .type = WEFT_I8,
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
    .keep = keep,
    .keep_row = keep_row,
    .keep_block = 1,
    .few = weft_amx_i8_few,
    .along = weft_avx512_i8_amx_along,
    .across = weft_avx512_i8_amx_across,
    WEFT_PACKERS,
    .pack_b_wide = pack_b_wide,
};
