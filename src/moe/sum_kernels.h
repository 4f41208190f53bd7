/* What weft_moe_sum chooses from: one table per instruction set, filled by the file named after it. */
#ifndef WEFT_MOE_SUM_KERNELS_H
#define WEFT_MOE_SUM_KERNELS_H

#include <stdint.h>

typedef struct weft_moe_kernels {
    void (*sum)(void *out, const void *const *row, const float *weight, int64_t rows, int64_t elements);
    void (*scale)(void *out, const void *x, float factor, int64_t elements);
    void (*scale_sum)(void *out, const void *x, const float *factor, const float *weight, int64_t factors,
                      int64_t elements);
} weft_moe_kernels;

/* Indexed by WEFT_F32, WEFT_F16, WEFT_BF16. */
extern const weft_moe_kernels weft_moe_kernels_portable[3];
#if defined(__aarch64__)
extern const weft_moe_kernels weft_moe_kernels_neon[3];
extern const weft_moe_kernels weft_moe_kernels_fhm; /* WEFT_F16 only; needs FP16 arithmetic and FMLAL */
#elif defined(__x86_64__)
extern const weft_moe_kernels weft_moe_kernels_avx2[3]; /* needs AVX2, FMA and F16C */
#endif

#endif
