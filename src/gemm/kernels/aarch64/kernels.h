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

/* stream_<type>.c: for rows of B, and for columns of it, that lie in memory as lines */
extern const weft_stream weft_stream_f32_across[], weft_stream_f32_along[];
extern const weft_stream weft_stream_f16_across[], weft_stream_f16_along[];
extern const weft_stream weft_stream_bf16_across[], weft_stream_bf16_along[];
extern const weft_stream weft_stream_i8_across[], weft_stream_i8_along[];
extern const weft_stream weft_stream_i8_sdot_across[], weft_stream_i8_sdot_along[];

/* of weft_neon_f32_8x12, for a D of halves */
void weft_neon_f32_finish_f16(int64_t k, const void *a, const weft_panels *b, const weft_places *places);
void weft_neon_f32_finish_bf16(int64_t k, const void *a, const weft_panels *b, const weft_places *places);

/* for an A of fp32 */
extern const weft_stream weft_stream_f16_widened_across[], weft_stream_f16_widened_along[];
extern const weft_stream weft_stream_bf16_widened_across[], weft_stream_bf16_widened_along[];

#define STREAM_KERNELS(type) .across = weft_stream_##type##_across, .along = weft_stream_##type##_along

#endif
