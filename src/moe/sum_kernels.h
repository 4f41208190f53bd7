/* What weft_moe_sum chooses from: one kernel per instruction set, in the file named after it. */
#ifndef WEFT_MOE_SUM_KERNELS_H
#define WEFT_MOE_SUM_KERNELS_H

#include <weft/weft.h>

#include <stdbool.h>

/* dtype is WEFT_F16, WEFT_BF16 or WEFT_F32. With weights of one, `out` may be one of the rows. */
typedef void weft_moe_sum_kernel(weft_dtype dtype, void *out, const void *const *row, const float *weight,
                                 int64_t rows, int64_t elements);

weft_moe_sum_kernel weft_moe_sum_portable;
#if defined(__aarch64__)
weft_moe_sum_kernel weft_moe_sum_neon;
weft_moe_sum_kernel weft_moe_sum_fp16; /* needs FP16 arithmetic */
weft_moe_sum_kernel weft_moe_sum_fhm;  /* that and FMLAL */

/* What the last two have in common: sums of one row or two of weight one, if this is one. */
bool weft_moe_adds_fp16(weft_dtype dtype, const float *weight, int64_t rows);
void weft_moe_add_fp16(void *out, const void *const *row, int64_t rows, int64_t elements);
#elif defined(__x86_64__)
weft_moe_sum_kernel weft_moe_sum_avx2;   /* needs WEFT_CPU_LEVEL_AVX2 */
weft_moe_sum_kernel weft_moe_sum_avx512; /* needs WEFT_CPU_LEVEL_AVX512 */
#endif

#endif
