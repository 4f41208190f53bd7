/*
 * x86-64 cores, best first. Where a core has no instruction for a type, the fp32 kernel does it: fp16 and
 * bf16 widen to fp32 exactly while they are packed, and what else is given is rounded to them.
 *
 * Blocks: mc x kc of A stays in L2 (half of it, of AVX2 up to three quarters), kc x nr of B in L1, kc x nc of
 * B in L3; gemm/blocks.c fits them to the caches that are there. Where adding to sums in memory costs more
 * than reading B from L2, blocks of k are longer than L1 allows: an AMX unit is so fast, and the fp32 and
 * VNNI kernels of AVX-512 fetch ahead. Sums of bf16 that wait for the next of such blocks take workspace: so
 * few columns that they leave room for many rows, since each band of rows packs B again.
 */
#include "core/cpu.h"
#include "gemm/kernels/x86/kernels.h"

#define AVX512_VNNI (WEFT_CPU_LEVEL_AVX512 | WEFT_CPU_AVX512VNNI)
#define AVX512_BF16 (AVX512_VNNI | WEFT_CPU_AVX512BF16)
#define AMX (AVX512_BF16 | WEFT_CPU_AMX_TILE | WEFT_CPU_AMX_BF16 | WEFT_CPU_AMX_INT8)

#define SERVER .caches = {.l1 = 48 << 10, .l2 = 2 << 20, .l3 = 32 << 20}
#define CASCADE .caches = {.l1 = 32 << 10, .l2 = 1 << 20, .l3 = 35 << 20}
#define AVX2_F32 .kernel = &weft_kernel_avx2_f32_6x16, 144, 320, 3264
/* With the same kernel a larger L2 pays for blocks of k half as long again: sums pass D less often. */
#define AVX512_F32 .kernel = &weft_kernel_avx512_f32_12x32, 360, 512, 3072, 1024
#define SERVER_F32 .kernel = &weft_kernel_avx512_f32_12x32, 360, 768, 4096, 1024
#define WIDENED(isa, type, name)                                                                             \
    .narrow = WEFT_##type, .finish = weft_##isa##_finish_##name, .along = weft_##isa##_##name##_along,       \
    .across = weft_##isa##_##name##_across, .widen_a = {.along = weft_##isa##_widen_a_##name},               \
    .widen_b = {weft_##isa##_widen_b_##name, weft_##isa##_widen_wide_##name}, .few = weft_##isa##_few_##name

static const weft_core core_avx2 = {
    .name = "avx2",
    .needs = WEFT_CPU_LEVEL_AVX2,
    .caches = {.l1 = 32 << 10, .l2 = 256 << 10, .l3 = 8 << 20},
    .bind =
        {
            [WEFT_COMPUTE_F32] = {AVX2_F32},
            [WEFT_COMPUTE_F16] = {AVX2_F32, WIDENED(avx2, F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {AVX2_F32, WIDENED(avx2, F16, f16)},
            [WEFT_COMPUTE_BF16] = {AVX2_F32, WIDENED(avx2, BF16, bf16)},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_avx2_i8_6x16_pmaddwd, 144, 1024, 4080},
        },
};

static const weft_core core_avx512 = {
    .name = "avx512",
    .needs = WEFT_CPU_LEVEL_AVX512,
    CASCADE,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {AVX512_F32},
            [WEFT_COMPUTE_F16] = {AVX512_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {AVX512_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_BF16] = {AVX512_F32, WIDENED(avx512, BF16, bf16)},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_avx512_i8_12x32_pmaddwd, 384, 640, 3072},
        },
};

static const weft_core core_avx512_vnni = {
    .name = "avx512_vnni",
    .needs = AVX512_VNNI,
    CASCADE,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {AVX512_F32},
            [WEFT_COMPUTE_F16] = {AVX512_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {AVX512_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_BF16] = {AVX512_F32, WIDENED(avx512, BF16, bf16)},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_avx512_i8_12x32_dpbusd, 360, 2048, 3072, 768},
        },
};

static const weft_core core_avx512_bf16 = {
    .name = "avx512_bf16",
    .needs = AVX512_BF16,
    SERVER,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {SERVER_F32},
            [WEFT_COMPUTE_F16] = {SERVER_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {SERVER_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_BF16] = {.kernel = &weft_kernel_avx512_bf16_12x32_dpbf16, 480, 640, 3072},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_avx512_i8_12x32_dpbusd, 360, 2048, 3072, 768},
        },
};

#ifdef WEFT_HAVE_AVX512FP16
static const weft_core core_avx512_fp16 = {
    .name = "avx512_fp16",
    .needs = AVX512_BF16 | WEFT_CPU_AVX512FP16,
    SERVER,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {SERVER_F32},
            [WEFT_COMPUTE_F16] = {SERVER_F32, WIDENED(avx512, F16, f16)},
            [WEFT_COMPUTE_F16_FAST] = {.kernel = &weft_kernel_avx512_f16_12x64_fmaph, 480, 384, 3072},
            [WEFT_COMPUTE_BF16] = {.kernel = &weft_kernel_avx512_bf16_12x32_dpbf16, 480, 640, 3072},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_avx512_i8_12x32_dpbusd, 360, 2048, 3072, 768},
        },
};
#endif

/* Every CPU with AMX so far has AVX-512 FP16 too. */
static const weft_core core_amx = {
    .name = "amx",
#ifdef WEFT_HAVE_AVX512FP16
    .needs = AMX | WEFT_CPU_AVX512FP16,
#else
    .needs = AMX,
#endif
    SERVER,
    .bind =
        {
            [WEFT_COMPUTE_F32] = {SERVER_F32},
            [WEFT_COMPUTE_F16] = {SERVER_F32, WIDENED(avx512, F16, f16)},
#ifdef WEFT_HAVE_AVX512FP16
            [WEFT_COMPUTE_F16_FAST] = {.kernel = &weft_kernel_avx512_f16_12x64_fmaph, 480, 384, 3072},
#else
            [WEFT_COMPUTE_F16_FAST] = {SERVER_F32, WIDENED(avx512, F16, f16)},
#endif
            [WEFT_COMPUTE_BF16] = {.kernel = &weft_kernel_amx_bf16_32x32, 256, 1536, 1024},
            [WEFT_COMPUTE_I8] = {.kernel = &weft_kernel_amx_i8_32x32, 256, 2048, 2048, 1024},
        },
};

const weft_core *const weft_cores_of_arch[] = {
    &core_amx,
#ifdef WEFT_HAVE_AVX512FP16
    &core_avx512_fp16,
#endif
    &core_avx512_bf16, &core_avx512_vnni, &core_avx512, &core_avx2,
};
const int weft_cores_of_arch_count = sizeof(weft_cores_of_arch) / sizeof(weft_cores_of_arch[0]);
