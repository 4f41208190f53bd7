/*
 * fp32, AVX-512.
 *
 * Tile 12x32: 24 accumulators of 16, 2 for B, broadcasts of A: 27 of 32 registers. The FMA units (2 a cycle)
 * are the limit: 12 cycles for each k, in which 16 loads and 3 fetches have room for 24. Where another thread
 * of the core takes half of the 4 instructions that begin in a cycle, their number is: 41 for each k (45 with
 * a broadcast for every row and without unrolling). More embedded broadcasts are slower where the core is not
 * shared, none where it is. Panels come from L2: what a long k saves in sums that are added in memory is more
 * than that costs, once both are fetched ahead.
 */
enum { MR = 12, TYPE_BYTES = 4, A_AHEAD = 512, B_AHEAD = 1024, EMBEDDED = 2, UNROLLED = 2 };
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/f32_fma.h"

WEFT_F32_WIDENED(avx512, WEFT_F16, f16)
WEFT_F32_WIDENED(avx512, WEFT_BF16, bf16)

const weft_kernel weft_kernel_avx512_f32_12x32 = {
    .name = "avx512_f32_12x32",
    WEFT_F32_KERNEL(weft_avx512),
    .fetches = true,
};
