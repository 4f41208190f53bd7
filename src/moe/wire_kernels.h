/* What weft_moe_quantise and weft_moe_expand choose from: one kernel per instruction set, in the file named
 * after it. */
#ifndef WEFT_MOE_WIRE_KERNELS_H
#define WEFT_MOE_WIRE_KERNELS_H

#include "moe/wire.h"

/* dtype is WEFT_F16, WEFT_BF16 or WEFT_F32. */
typedef struct weft_moe_wire_kernel {
    void (*quantise)(weft_dtype dtype, int64_t hidden, void *to, const void *row);
    void (*expand)(weft_dtype dtype, int64_t hidden, void *row, const void *from);
} weft_moe_wire_kernel;

extern const weft_moe_wire_kernel weft_moe_wire_portable;
#if defined(__aarch64__)
extern const weft_moe_wire_kernel weft_moe_wire_neon;
#elif defined(__x86_64__)
extern const weft_moe_wire_kernel weft_moe_wire_avx2;   /* needs WEFT_CPU_LEVEL_AVX2 */
extern const weft_moe_wire_kernel weft_moe_wire_avx512; /* needs WEFT_CPU_LEVEL_AVX512 */
#endif

#endif
