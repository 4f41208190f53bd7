/* int8 by SDOT into int32. Per 4 k: 5 loads, 24 SDOT. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_BY_ELEMENT("sdot", "16b", "4b") STORE_TILE("add"), k / 4, a, b, c, c_ld, add);
}

const weft_kernel weft_i8_8x12_sdot = {
    .name = "neon_i8_8x12_sdot",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    .run = run,
    WEFT_PACKERS(1, 4, 12),
};
