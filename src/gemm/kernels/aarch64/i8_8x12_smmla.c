/* int8 by SMMLA into int32. Per 8 k: 10 loads, 24 SMMLA. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_MATRIX("smmla", "16b", "") STORE_MATRIX_TILE("add"), k / 8, a, b, c, c_ld, add);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_MATRIX("smmla", "16b", AHEAD_OF_B) STORE_MATRIX_TILE("add"), k / 8, a, b, c, c_ld,
             add);
}

const weft_kernel weft_i8_8x12_smmla = {
    .name = "neon_i8_8x12_smmla",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 8,
    .b_kr = 8,
    .k_step = 8,
    .run = run,
    .few_rows = 8,
    .run_few = run_few,
    WEFT_PACKERS(1, 8, 12),
};
