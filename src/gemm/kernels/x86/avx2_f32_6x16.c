/*
 * fp32, AVX2 + FMA.
 *
 * Tile 6x16: 12 accumulators of 8, 2 for B, 1 for the broadcast of A: 15 of 16 registers. The FMA units (2 a
 * cycle) are the limit, not the loads: 12 FMA and 8 loads in 6 cycles leave a core that begins 4 instructions
 * in one room for 4 more, so that the loop counts once in four of k.
 */
enum { MR = 6, TYPE_BYTES = 4, A_AHEAD = 0, B_AHEAD = 0, UNROLLED = 4 };
#define VECTOR_BYTES 32
#include "gemm/kernels/x86/f32_fma.h"

WEFT_F32_WIDENED(avx2, WEFT_F16, f16)
WEFT_F32_WIDENED(avx2, WEFT_BF16, bf16)

const weft_kernel weft_kernel_avx2_f32_6x16 = {
    .name = "avx2_f32_6x16",
    WEFT_F32_KERNEL(weft_avx2),
};
