/* Rows of elements from one floating type to another, rounded to nearest even, NaN stays NaN. */
#ifndef WEFT_GEMM_CONVERT_H
#define WEFT_GEMM_CONVERT_H

#include <weft/weft.h>

/* F32, F16, BF16 in both places, or the same type twice. */
void weft_convert_row(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t n);

#endif
