/*
 * bf16 with fp32 sums, AVX-512 BF16.
 *
 * Tile 12x32, k in pairs: 24 accumulators of 16, 2 for B, A by broadcast of a pair.
 * Per pair of k: 2 loads of B, 12 broadcasts, 24 VDPBF16PS. Few rows: 4x32.
 */
enum { MR = 12, FEW = 4, TYPE_BYTES = 2 };
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"
#include "gemm/kernels/x86/sums.h"
#include "gemm/kernels/x86/avx512_bf16.h"

INLINE void products(int rows, int vectors, int lines, int64_t k, const void *a, const void *b, vec sum[][2])
{
    bf16_products(rows, vectors, lines, 2, k, a, b, sum);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_rows(FEW, k, a, b, c, c_ld, add);
}

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    finish_rows(WEFT_BF16, k, a, b, places);
}

static void pack_a_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld * 2, k * 2, MR, 0);
}

static void pack_b_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld * 2, k * 2, NR, 0);
}

static void pack_a_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint16_t(panel, source, ld, k, MR, 2, 0);
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

const weft_kernel weft_kernel_avx512_bf16_12x32_dpbf16 = {
    .name = "avx512_bf16_12x32_dpbf16",
    .type = WEFT_BF16,
    .mr = MR,
    .nr = NR,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    WEFT_SUMS,
    .few = (const weft_few[]){{FEW, run_few}, {0}},
    .along = weft_avx512_bf16_pairs_along,
    .across = weft_avx512_bf16_pairs_across,
    WEFT_PACKERS,
    .pack_b_wide = pack_b_wide,
};
