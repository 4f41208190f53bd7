/* fp32 by FMLA, on every aarch64. Per k: 5 loads, 24 FMLA; of what is not packed 11 loads. */
#include <arm_neon.h>

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

/* For unpacked_f32.h. */
typedef float32x4_t vec;

static inline vec vec_zero(void)
{
    return vdupq_n_f32(0);
}

static inline vec vec_load(const float *from)
{
    return vld1q_f32(from);
}

static inline vec vec_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}

static inline vec vec_load_some(const float *from, int count)
{
    vec v = vdupq_n_f32(0);

    __asm__("" : "+r"(count)); /* else each loop is compiled once for every count */
    if (count == 4)
        return vld1q_f32(from);
    if (count >= 2)
        v = vcombine_f32(vld1_f32(from), vdup_n_f32(0));
    if (count == 3)
        v = vld1q_lane_f32(from + 2, v, 2);
    return count == 1 ? vld1q_lane_f32(from, v, 0) : v;
}

static inline void vec_store_some(float *to, vec v, int count)
{
    if (count == 4)
        vst1q_f32(to, v);
    else if (count >= 2)
        vst1_f32(to, vget_low_f32(v));
    if (count == 3)
        vst1q_lane_f32(to + 2, v, 2);
    if (count == 1)
        vst1q_lane_f32(to, v, 0);
}

static inline void add_row(int i, int vectors, const float *x, const vec *b, vec *sum)
{
    (void)i;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        sum[v] = vfmaq_n_f32(sum[v], b[v], *x);
}

enum { MR = 8, TILE_VECTORS = 3, LANES = 4 };
#include "gemm/kernels/unpacked_f32.h"

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
    .unpacked = unpacked,
    WEFT_PACKERS(4, 1, 12),
    WEFT_WIDE_PACKER(4, 1),
};
