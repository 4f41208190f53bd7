/* The loops of reductions as this build has them: one set for the instructions every CPU has, and others that
 * need a level of x86-64 (core/cpu.h). */
#ifndef WEFT_RUN_CPU_REDUCE_KERNELS_H
#define WEFT_RUN_CPU_REDUCE_KERNELS_H

#include <weft/weft.h>

#include <stdint.h>

typedef struct weft_reduce_loops {
    /* d ← a op b, all of one type; `d2`, when there is one, receives the same. Averages are not of pairs. */
    void (*pair)(weft_dtype dtype, weft_reduction reduction, void *d, void *d2, const void *a, const void *b,
                 int64_t n);
    /* sum ← sum op a, of float16 or bfloat16. */
    void (*widen)(weft_dtype dtype, weft_reduction reduction, float *sum, const void *a, int64_t n);
} weft_reduce_loops;

extern const weft_reduce_loops weft_reduce_portable;
extern const weft_reduce_loops weft_reduce_short;  /* WEFT_CPU_LEVEL_AVX2, in vectors of 128 bits */
extern const weft_reduce_loops weft_reduce_avx2;   /* WEFT_CPU_LEVEL_AVX2 */
extern const weft_reduce_loops weft_reduce_avx512; /* WEFT_CPU_LEVEL_AVX512 */

#endif
