/* Rows of elements from one floating type to another, rounded to nearest even, NaN stays NaN. */
#ifndef WEFT_GEMM_CONVERT_H
#define WEFT_GEMM_CONVERT_H

#include <weft/weft.h>

/* F32, F16, BF16 in both places, or the same type twice. */
void weft_convert_row(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t n);

/* bf16 from fp32 by the CPU's own instruction; kernels/aarch64/convert_bf16.c, needs WEFT_CPU_BF16. */
void weft_convert_bf16_bfcvt(uint16_t *dst, const float *src, int64_t n);

#endif
