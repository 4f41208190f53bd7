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

#endif
