/* What scale.c chooses from: one set per instruction set, filled by the file named after it. */
#ifndef WEFT_TOOLS_BENCH_STANDIN_SCALE_KERNELS_H
#define WEFT_TOOLS_BENCH_STANDIN_SCALE_KERNELS_H

#include "moe/sum.h"

typedef struct weft_standin_kernels {
    void (*scale)(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements);
    void (*scale_sum)(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                      int64_t factors, const void *other, int64_t elements);
} weft_standin_kernels;

/* The second step of scale_sum, for kernels that take two: adds the row `other`, if there is one, to `out`.
 */
static inline void weft_standin_add_other(weft_dtype dtype, void *out, const void *other, int64_t elements)
{
    const void *row[2] = {out, other};
    const float ones[2] = {1, 1};

    if (other)
        weft_moe_sum(dtype, out, row, ones, 2, elements);
}

extern const weft_standin_kernels weft_standin_kernels_portable; /* the definition */
#if defined(__aarch64__)
extern const weft_standin_kernels weft_standin_kernels_neon;
extern const weft_standin_kernels weft_standin_kernels_fp16; /* needs FP16 arithmetic */
#elif defined(__x86_64__)
extern const weft_standin_kernels weft_standin_kernels_avx2;   /* needs WEFT_CPU_LEVEL_AVX2 */
extern const weft_standin_kernels weft_standin_kernels_avx512; /* needs WEFT_CPU_LEVEL_AVX512 */
#endif

#endif
