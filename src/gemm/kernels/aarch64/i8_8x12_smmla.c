/* int8 by SMMLA into int32. Per 8 k: 10 loads, 24 SMMLA. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

KERNELS_MATRIX(8, "add", "smmla", "16b")

const weft_kernel weft_i8_8x12_smmla = {
    .name = "neon_i8_8x12_smmla",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 8,
    .b_kr = 8,
    .k_step = 8,
    RUN_KERNELS,
    STREAM_KERNELS(i8),
    WEFT_PACKERS(1, 8, 12),
};
