/*
 * bf16 with fp32 sums, AVX-512 BF16.
 *
 * Tile 12x32, k in pairs: 24 accumulators of 16, 2 for B, A by broadcast of a pair.
 * Per pair of k: 2 loads of B, 12 broadcasts, 24 VDPBF16PS. Few rows: 4x32.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/avx512_bf16.h"

enum { MR = WEFT_AVX512_BF16_ROWS_MAX, NR = 32, FEW = 4 };

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    weft_avx512_bf16_tile(MR, 2, k, a, b, c, c_ld, add);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    weft_avx512_bf16_tile(FEW, 2, k, a, b, c, c_ld, add);
}

WEFT_DEFINE_PACKERS(uint16_t, 2, 2, 0)

const weft_kernel weft_kernel_avx512_bf16_12x32_dpbf16 = {
    .name = "avx512_bf16_12x32_dpbf16",
    .type = WEFT_BF16,
    .mr = MR,
    .nr = NR,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    .run = run,
    .few = (const weft_few[]){{FEW, run_few}, {0}},
    WEFT_PACKERS,
};
