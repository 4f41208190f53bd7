/*
 * The aarch64 cores, best first: which kernel and which blocks for each compute type. Where a core has no
 * instruction for a half type, the fp32 kernel is bound: halves are then widened while they are packed.
 *
 * Blocks are for 64 KiB of L1 and 1 MiB of L2 (gemm/blocks.c fits them to others): a panel of A and one of B
 * together fill most of L1, the block of A half of L2.
 */
#include "core/cpu.h"
#include "kernels.h"

#define MEASURED .caches = {.l1 = 64 << 10, .l2 = 1 << 20, .l3 = 32 << 20}
#define F32_BLOCKS .mc = 256, .kc = 640, .nc = 6144
#define F16_BLOCKS .mc = 192, .kc = 1280, .nc = 6144
#define F16_FAST_BLOCKS .mc = 192, .kc = 512, .nc = 6144
#define WIDENED(type, name)                                                                                  \
    .narrow = WEFT_##type, .finish = weft_neon_f32_finish_##name, STREAM_KERNELS(name##_widened)
#define I8_BLOCKS .mc = 192, .kc = 2048, .nc = 6144

static const weft_core core_neon = {
    .name = "neon",
    .needs = WEFT_CPU_ASIMD,
    MEASURED,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&weft_neon_f32_8x12, F32_BLOCKS},
            [WEFT_COMPUTE_F16] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(F16, f16)},
            [WEFT_COMPUTE_BF16] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(BF16, bf16)},
            [WEFT_COMPUTE_I8] = {&weft_neon_i8_8x12, I8_BLOCKS},
        },
};

static const weft_core core_dot = {
    .name = "neon_dot",
    .needs = WEFT_CPU_ASIMD | WEFT_CPU_FP16 | WEFT_CPU_DOTPROD,
    MEASURED,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&weft_neon_f32_8x12, F32_BLOCKS},
            [WEFT_COMPUTE_F16] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {&weft_f16_8x24_fmla, F16_FAST_BLOCKS},
            [WEFT_COMPUTE_BF16] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(BF16, bf16)},
            [WEFT_COMPUTE_I8] = {&weft_i8_8x12_sdot, I8_BLOCKS},
        },
};

static const weft_core core_fhm = {
    .name = "neon_fhm",
    .needs = WEFT_CPU_ASIMD | WEFT_CPU_FP16 | WEFT_CPU_DOTPROD | WEFT_CPU_FHM,
    MEASURED,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&weft_neon_f32_8x12, F32_BLOCKS},
            [WEFT_COMPUTE_F16] = {&weft_f16_8x12_fmlal, F16_BLOCKS},
            [WEFT_COMPUTE_F16_FAST] = {&weft_f16_8x24_fmla, F16_FAST_BLOCKS},
            [WEFT_COMPUTE_BF16] = {&weft_neon_f32_8x12, F32_BLOCKS, WIDENED(BF16, bf16)},
            [WEFT_COMPUTE_I8] = {&weft_i8_8x12_sdot, I8_BLOCKS},
        },
};

static const weft_core core_bfdot = {
    .name = "neon_bfdot",
    .needs = WEFT_CPU_ASIMD | WEFT_CPU_FP16 | WEFT_CPU_DOTPROD | WEFT_CPU_FHM | WEFT_CPU_BF16,
    MEASURED,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&weft_neon_f32_8x12, F32_BLOCKS},
            [WEFT_COMPUTE_F16] = {&weft_f16_8x12_fmlal, F16_BLOCKS},
            [WEFT_COMPUTE_F16_FAST] = {&weft_f16_8x24_fmla, F16_FAST_BLOCKS},
            [WEFT_COMPUTE_BF16] = {&weft_bf16_8x12_bfdot, F16_BLOCKS},
            [WEFT_COMPUTE_I8] = {&weft_i8_8x12_sdot, I8_BLOCKS},
        },
};

static const weft_core core_mm = {
    .name = "neon_mm",
    .needs = WEFT_CPU_ASIMD | WEFT_CPU_FP16 | WEFT_CPU_DOTPROD | WEFT_CPU_FHM | WEFT_CPU_BF16 | WEFT_CPU_I8MM,
    MEASURED,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&weft_neon_f32_8x12, F32_BLOCKS},
            [WEFT_COMPUTE_F16] = {&weft_f16_8x12_fmlal, F16_BLOCKS},
            [WEFT_COMPUTE_F16_FAST] = {&weft_f16_8x24_fmla, F16_FAST_BLOCKS},
            [WEFT_COMPUTE_BF16] = {&weft_bf16_8x12_bfmmla, F16_BLOCKS},
            [WEFT_COMPUTE_I8] = {&weft_i8_8x12_smmla, I8_BLOCKS},
        },
};

const weft_core *const weft_cores_of_arch[] = {&core_mm, &core_bfdot, &core_fhm, &core_dot, &core_neon};
const int weft_cores_of_arch_count = sizeof(weft_cores_of_arch) / sizeof(weft_cores_of_arch[0]);
