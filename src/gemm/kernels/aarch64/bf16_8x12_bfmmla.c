/* bf16 by BFMMLA. Per 4 k: 10 loads, 24 BFMMLA. */
#include "finish8x12.h"
#include "kernels.h"
#include "pack.h"

KERNELS_MATRIX(4, "fadd", "bfmmla", "8h")

#define LOOP LOOP_MATRIX("bfmmla", "8h", "")

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    FINISH_ALL(LOOP, FINISH_MATRIX_TILE, PUT_BF16, k / 4, a, b, places, 2);
}

static void settle(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    SETTLE_ALL(LOOP, FINISH_MATRIX_TILE, k / 4, a, b, places);
}

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    KEEP_ALL(LOOP, k / 4, a, b, start, to);
}

const weft_kernel weft_bf16_8x12_bfmmla = {
    .name = "neon_bf16_8x12_bfmmla",
    .type = WEFT_BF16,
    .mr = 8,
    .nr = 12,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    RUN_KERNELS,
    .finish = finish,
    .settle = settle,
    .keep = keep,
    .keep_block = 2,
    STREAM_KERNELS(bf16),
    WEFT_PACKERS(2, 4, 12),
    WEFT_WIDE_PACKER(2, 4),
};
