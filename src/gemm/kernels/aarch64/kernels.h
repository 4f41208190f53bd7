/* The kernels of this folder. */
#ifndef WEFT_KERNELS_AARCH64_KERNELS_H
#define WEFT_KERNELS_AARCH64_KERNELS_H

#include "gemm/kernel.h"

extern const weft_kernel weft_neon_f32_8x12;
extern const weft_kernel weft_neon_i8_8x12;
extern const weft_kernel weft_f16_8x12_fmlal;
extern const weft_kernel weft_f16_8x24_fmla;
extern const weft_kernel weft_bf16_8x12_bfdot;
extern const weft_kernel weft_bf16_8x12_bfmmla;
extern const weft_kernel weft_i8_8x12_sdot;
extern const weft_kernel weft_i8_8x12_smmla;

/* stream_bf16.c */
void weft_stream_bf16(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,
                      int64_t ldb, void *c, int64_t c_ld, int add);

/* stream_f32.c */
void weft_stream_across_f32(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,
                            int64_t ldb, void *c, int64_t c_ld, int add);

#endif
