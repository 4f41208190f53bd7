/* int8 by SMMLA into int32. Per 8 k: 10 loads, 24 SMMLA. */
#include "finish8x12.h"
#include "kernels.h"
#include "pack.h"

KERNELS_MATRIX(8, "add", "smmla", "16b")

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    KEEP_ALL(LOOP_MATRIX("smmla", "16b", ""), k / 8, a, b, start, to);
}

const weft_kernel weft_i8_8x12_smmla = {
    .name = "neon_i8_8x12_smmla",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 8,
    .b_kr = 8,
    .k_step = 8,
    RUN_KERNELS,
    .keep = keep,
    .keep_block = 2,
    STREAM_KERNELS(i8),
    WEFT_PACKERS(1, 8, 12),
    WEFT_WIDE_PACKER(1, 8),
};
