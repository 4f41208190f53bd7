/* Chooses the kernel of combine for this CPU, and holds the portable one, which is also the definition. */
#include "moe/sum.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "moe/sum_kernels.h"

static float load(weft_dtype dtype, const void *base, int64_t i)
{
    if (dtype == WEFT_F16)
        return weft_f16_to_f32(((const uint16_t *)base)[i]);
    if (dtype == WEFT_BF16)
        return weft_bf16_to_f32(((const uint16_t *)base)[i]);
    return ((const float *)base)[i];
}

static void store(weft_dtype dtype, void *base, int64_t i, float value)
{
    if (dtype == WEFT_F16)
        ((uint16_t *)base)[i] = weft_f32_to_f16(value);
    else if (dtype == WEFT_BF16)
        ((uint16_t *)base)[i] = weft_f32_to_bf16(value);
    else
        ((float *)base)[i] = value;
}

void weft_moe_sum_portable(weft_dtype dtype, void *out, const void *const *row, const float *weight,
                           int64_t rows, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        float total = 0;

        for (int64_t r = 0; r < rows; r++)
            total += weight[r] * load(dtype, row[r], i);
        store(dtype, out, i, total);
    }
}

static weft_moe_sum_kernel *kernel(void)
{
#if defined(__aarch64__)
    uint32_t has = weft_cpu_features();

    if (!(has & WEFT_CPU_FP16))
        return weft_moe_sum_neon;
    return has & WEFT_CPU_FHM ? weft_moe_sum_fhm : weft_moe_sum_fp16;
#elif defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX512))
        return weft_moe_sum_avx512;
    return weft_cpu_has(WEFT_CPU_LEVEL_AVX2) ? weft_moe_sum_avx2 : weft_moe_sum_portable;
#else
    return weft_moe_sum_portable;
#endif
}

void weft_moe_sum(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                  int64_t elements)
{
    kernel()(dtype, out, row, weight, rows, elements);
}
