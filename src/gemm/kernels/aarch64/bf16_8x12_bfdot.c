/* bf16 by BFDOT. Per 2 k: 5 loads, 24 BFDOT. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_BY_ELEMENT("bfdot", "8h", "2h") STORE_TILE("fadd"), k / 2, a, b, c, c_ld, add);
}

const weft_kernel weft_bf16_8x12_bfdot = {
    .name = "neon_bf16_8x12_bfdot",
    .type = WEFT_BF16,
    .mr = 8,
    .nr = 12,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    .run = run,
    WEFT_PACKERS(2, 2, 12),
};
