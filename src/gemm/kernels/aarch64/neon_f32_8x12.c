/* fp32 by FMLA, on every aarch64. Per k: 5 loads, 24 FMLA. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

KERNELS_BY_ELEMENT(1, "fadd", "fmla", "4s", "s")

const weft_kernel weft_neon_f32_8x12 = {
    .name = "neon_f32_8x12_fmla",
    .type = WEFT_F32,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    RUN_KERNELS,
    FEW_KERNELS,
    .across = (const weft_stream[]){{4, weft_stream_across_f32}, {0}},
    WEFT_PACKERS(4, 1, 12),
};
