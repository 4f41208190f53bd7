/* int8 by SDOT into int32. Per 4 k: 5 loads, 24 SDOT. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

KERNELS_BY_ELEMENT(4, "add", "sdot", "16b", "4b")

const weft_kernel weft_i8_8x12_sdot = {
    .name = "neon_i8_8x12_sdot",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    RUN_KERNELS,
    FEW_KERNELS,
    STREAM_KERNELS(i8_sdot),
    WEFT_PACKERS(1, 4, 12),
};
