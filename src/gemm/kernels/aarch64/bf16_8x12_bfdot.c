/* bf16 by BFDOT. Per 2 k: 5 loads, 24 BFDOT. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

KERNELS_BY_ELEMENT(2, "fadd", "bfdot", "8h", "2h")

const weft_kernel weft_bf16_8x12_bfdot = {
    .name = "neon_bf16_8x12_bfdot",
    .type = WEFT_BF16,
    .mr = 8,
    .nr = 12,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    RUN_KERNELS,
    FEW_KERNELS,
    WEFT_PACKERS(2, 2, 12),
};
