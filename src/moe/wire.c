/* Chooses the kernel of rows as fp8 for this CPU, and holds the portable one. */
#include "moe/wire.h"

#include "core/cpu.h"
#include "gemm/convert.h"
#include "moe/wire_kernels.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void widen(weft_dtype dtype, float *x, const void *row)
{
    weft_convert_row(WEFT_F32, x, dtype, row, WEFT_MOE_WIRE_BLOCK);
}

INLINE void narrow(weft_dtype dtype, void *row, const float *x)
{
    weft_convert_row(dtype, row, WEFT_F32, x, WEFT_MOE_WIRE_BLOCK);
}

#include "moe/wire_loops.h"

const weft_moe_wire_kernel weft_moe_wire_portable = {quantise, expand};

static const weft_moe_wire_kernel *kernel(void)
{
#if defined(__aarch64__)
    return &weft_moe_wire_neon;
#elif defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX512))
        return &weft_moe_wire_avx512;
    return weft_cpu_has(WEFT_CPU_LEVEL_AVX2) ? &weft_moe_wire_avx2 : &weft_moe_wire_portable;
#else
    return &weft_moe_wire_portable;
#endif
}

void weft_moe_quantise(weft_dtype dtype, int64_t hidden, void *to, const void *row)
{
    kernel()->quantise(dtype, hidden, to, row);
}

void weft_moe_expand(weft_dtype dtype, int64_t hidden, void *row, const void *from)
{
    kernel()->expand(dtype, hidden, row, from);
}
