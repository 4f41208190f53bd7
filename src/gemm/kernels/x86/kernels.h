/* The x86-64 micro-kernels, one file each. Their cards stand at the head of the files. */
#ifndef WEFT_GEMM_KERNELS_X86_KERNELS_H
#define WEFT_GEMM_KERNELS_X86_KERNELS_H

#include "gemm/kernel.h"

extern const weft_kernel weft_kernel_avx2_f32_6x16;
extern const weft_kernel weft_kernel_avx2_i8_6x16_pmaddwd;
extern const weft_kernel weft_kernel_avx512_f32_12x32;
extern const weft_kernel weft_kernel_avx512_i8_12x32_pmaddwd;
extern const weft_kernel weft_kernel_avx512_bf16_12x32_dpbf16;
extern const weft_kernel weft_kernel_avx512_f16_12x64_fmaph;
extern const weft_kernel weft_kernel_avx512_i8_12x32_dpbusd;
extern const weft_kernel weft_kernel_amx_bf16_32x32;
extern const weft_kernel weft_kernel_amx_i8_32x32;

/* The fp32 kernels' `finish` for a D of halves, packers that widen halves, and few rows of panels of halves
 * (f32_fma.h). */
#define WEFT_F32_WIDENED_NAMES(isa, name)                                                                    \
    void weft_##isa##_finish_##name(int64_t k, const void *a, const weft_panels *b,                          \
                                    const weft_places *places);                                              \
    void weft_##isa##_widen_a_##name(void *panel, const void *source, int64_t ld, int64_t k);                \
    void weft_##isa##_widen_b_##name(void *panel, const void *source, int64_t ld, int64_t k);                \
    void weft_##isa##_widen_wide_##name(void *panels, int64_t panel_bytes, const void *source, int64_t ld,   \
                                        int64_t k, int64_t count);                                           \
    extern const weft_few weft_##isa##_few_##name[];

WEFT_F32_WIDENED_NAMES(avx2, f16)
WEFT_F32_WIDENED_NAMES(avx2, bf16)
WEFT_F32_WIDENED_NAMES(avx512, f16)
WEFT_F32_WIDENED_NAMES(avx512, bf16)

/*
 * Few rows of a B as it lies (stream_<isa>.c): lists by rows. `f16` and `bf16` take an A of fp32, as the fp32
 * kernels pack it; `bf16_pairs` and `bf16_amx` take the A of the bf16 kernels, `i8`, `i8_pairs` and `i8_amx`
 * those of the int8 kernels.
 */
extern const weft_stream weft_avx2_f32_along[], weft_avx2_f32_across[];
extern const weft_stream weft_avx2_f16_along[], weft_avx2_f16_across[];
extern const weft_stream weft_avx2_bf16_along[], weft_avx2_bf16_across[];
extern const weft_stream weft_avx2_i8_along[], weft_avx2_i8_across[];
extern const weft_stream weft_avx512_f32_along[], weft_avx512_f32_across[];
extern const weft_stream weft_avx512_f16_along[], weft_avx512_f16_across[];
extern const weft_stream weft_avx512_bf16_along[], weft_avx512_bf16_across[];
extern const weft_stream weft_avx512_bf16_pairs_along[], weft_avx512_bf16_pairs_across[];
extern const weft_stream weft_avx512_bf16_amx_along[], weft_avx512_bf16_amx_across[];
extern const weft_stream weft_avx512_i8_along[], weft_avx512_i8_across[];
extern const weft_stream weft_avx512_i8_pairs_along[], weft_avx512_i8_pairs_across[];
extern const weft_stream weft_avx512_i8_amx_along[], weft_avx512_i8_amx_across[];

/* Few rows of a B as the AMX kernel for int8 packs it. */
extern const weft_few weft_amx_i8_few[];

#endif
