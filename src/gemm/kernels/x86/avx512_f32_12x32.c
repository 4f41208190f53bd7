/*
 * fp32, AVX-512.
 *
 * Tile 12x32: 24 accumulators of 16, 2 for B, broadcasts of A: 27 of 32 registers. The FMA units (2 a cycle)
 * are the limit: 12 cycles for each k, in which 14 loads and 3 fetches have room for 24. Broadcasts inside
 * the FMA would be fewer instructions and more loads: slower where the core is not shared, and little faster
 * where another thread takes half of the 4 instructions that begin in a cycle. Panels come from L2: what a
 * long k saves in sums that are added in memory is more than that costs, once both are fetched ahead.
 */
enum { MR = 12, TYPE_BYTES = 4, A_AHEAD = 512, B_AHEAD = 1024, UNROLLED = 2 };
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/f32_fma.h"

WEFT_F32_WIDENED(avx512, WEFT_F16, f16)
WEFT_F32_WIDENED(avx512, WEFT_BF16, bf16)

const weft_kernel weft_kernel_avx512_f32_12x32 = {
    .name = "avx512_f32_12x32",
    WEFT_F32_KERNEL(weft_avx512),
    .fetches = true,
};
