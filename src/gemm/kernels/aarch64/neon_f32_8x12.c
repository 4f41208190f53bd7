/* fp32 by FMLA, on every aarch64. Per k: 5 loads, 24 FMLA. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_BY_ELEMENT("fmla", "4s", "s") STORE_TILE("fadd"), k, a, b, c, c_ld, add);
}

const weft_kernel weft_neon_f32_8x12 = {
    .name = "neon_f32_8x12_fmla",
    .type = WEFT_F32,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    .run = run,
    .few_rows = 4,
    .stream_across = weft_stream_across_f32,
    WEFT_PACKERS(4, 1, 12),
};
