/* fp32 by FMLA, on every aarch64. Per k: 5 loads, 24 FMLA. */
#include "finish8x12.h"
#include "kernels.h"
#include "pack.h"

KERNELS_BY_ELEMENT(1, "fadd", "fmla", "4s", "s")

#define LOOP LOOP_BY_ELEMENT(STEP_BY_ELEMENT, 32, "fmla", "4s", "s", "")

static void finish(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    FINISH_ALL(LOOP, FINISH_TILE, PUT_F32, k, a, b, places, 4);
}

void weft_neon_f32_finish_bf16(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    FINISH_ALL(LOOP, FINISH_ROUNDED_TILE, PUT_ROUNDED, k, a, b, places, 2);
}

void weft_neon_f32_finish_f16(int64_t k, const void *a, const weft_panels *b, const weft_places *places)
{
    FINISH_ALL(LOOP, FINISH_TILE, PUT_F16, k, a, b, places, 2);
}

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    KEEP_ALL(LOOP, k, a, b, start, to);
}

const weft_kernel weft_neon_f32_8x12 = {
    .name = "neon_f32_8x12_fmla",
    .type = WEFT_F32,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    RUN_KERNELS,
    .finish = finish,
    .settle = finish,
    .keep = keep,
    .keep_block = 1,
    FEW_KERNELS,
    STREAM_KERNELS(f32),
    WEFT_PACKERS(4, 1, 12),
    WEFT_WIDE_PACKER(4, 1),
};
