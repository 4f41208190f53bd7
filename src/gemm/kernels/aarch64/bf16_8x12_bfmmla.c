/* bf16 by BFMMLA. Per 4 k: 10 loads, 24 BFMMLA. */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_MATRIX("bfmmla", "8h", "") STORE_MATRIX_TILE("fadd"), k / 4, a, b, c, c_ld, add);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP_MATRIX("bfmmla", "8h", AHEAD_OF_B) STORE_MATRIX_TILE("fadd"), k / 4, a, b, c,
             c_ld, add);
}

const weft_kernel weft_bf16_8x12_bfmmla = {
    .name = "neon_bf16_8x12_bfmmla",
    .type = WEFT_BF16,
    .mr = 8,
    .nr = 12,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    .run = run,
    .few_rows = 8,
    .run_few = run_few,
    .stream = weft_stream_bf16,
    WEFT_PACKERS(2, 4, 12),
};
