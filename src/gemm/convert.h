/* Rows of elements from one type to another, rounded to nearest even, NaN stays NaN. */
#ifndef WEFT_GEMM_CONVERT_H
#define WEFT_GEMM_CONVERT_H

#include <weft/weft.h>

/* F32, F16, BF16 and fp8 (which saturates) in both places, I8 in the second, or the same type twice. */
void weft_convert_row(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t n);

/* An element of `bytes` (4, 2 or 1) of one, then one of the other: gate and up woven into one matrix. */
void weft_interleave(void *to, const void *one, const void *other, int64_t count, size_t bytes);

/* bf16 from fp32 by the CPU's own instruction; kernels/aarch64/convert_bf16.c, needs WEFT_CPU_BF16. */
void weft_convert_bf16_bfcvt(uint16_t *dst, const float *src, int64_t n);

/* By vectors; kernels/x86/convert_f16c.c, need WEFT_CPU_AVX2 and WEFT_CPU_F16C. */
void weft_convert_f16_f16c(uint16_t *dst, const float *src, int64_t n);
void weft_convert_bf16_avx2(uint16_t *dst, const float *src, int64_t n);
void weft_convert_f32_f16c(float *dst, const uint16_t *src, int64_t n);

#endif
