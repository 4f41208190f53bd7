/* What weft_moe_sum chooses from: one set per instruction set, filled by the file named after it. */
#ifndef WEFT_MOE_SUM_KERNELS_H
#define WEFT_MOE_SUM_KERNELS_H

#include <weft/weft.h>

#include <stdbool.h>

/* dtype is WEFT_F16, WEFT_BF16 or WEFT_F32. With weights of one, `out` of a sum may be one of its rows. */
typedef void weft_moe_sum_kernel(weft_dtype dtype, void *out, const void *const *row, const float *weight,
                                 int64_t rows, int64_t elements);

typedef struct weft_moe_kernels {
    weft_moe_sum_kernel *sum;
    void (*scale)(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements);
    void (*scale_sum)(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                      int64_t factors, const void *other, int64_t elements);
} weft_moe_kernels;

/* The second step of scale_sum, for kernels that take two: adds the row `other`, if there is one, to `out`.
 */
static inline void weft_moe_add_other(weft_moe_sum_kernel *sum, weft_dtype dtype, void *out,
                                      const void *other, int64_t elements)
{
    const void *row[2] = {out, other};
    const float ones[2] = {1, 1};

    if (other)
        sum(dtype, out, row, ones, 2, elements);
}

extern const weft_moe_kernels weft_moe_kernels_portable;
#if defined(__aarch64__)
extern const weft_moe_kernels weft_moe_kernels_neon;
extern const weft_moe_kernels weft_moe_kernels_fp16; /* needs FP16 arithmetic; sum.c has it */
extern const weft_moe_kernels weft_moe_kernels_fhm;  /* that and FMLAL */

/* What both have in common: sums of one row or two of weight one, if this is one, and the stand-in. */
weft_moe_sum_kernel weft_moe_sum_fp16;
bool weft_moe_adds_fp16(weft_dtype dtype, const float *weight, int64_t rows);
void weft_moe_add_fp16(void *out, const void *const *row, int64_t rows, int64_t elements);
void weft_moe_scale_fp16(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements);
void weft_moe_scale_sum_fp16(weft_dtype dtype, void *out, const void *x, const float *factor,
                             const float *weight, int64_t factors, const void *other, int64_t elements);
#elif defined(__x86_64__)
extern const weft_moe_kernels weft_moe_kernels_avx2; /* needs AVX2, FMA and F16C */
#endif

#endif
