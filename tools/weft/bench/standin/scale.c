/* Chooses the kernels of the stand-in expert for this CPU, and holds the portable ones, which are also the
 * definition. */
#include "bench/standin/scale.h"

#include "bench/standin/scale_kernels.h"
#include "core/cpu.h"
#include "core/dtype.h"

/* What a value becomes when it is stored and loaded again. */
static float rounded(weft_dtype dtype, double value)
{
    float memory;

    weft_element_set(dtype, &memory, 0, value);
    return (float)weft_element_get(dtype, &memory, 0);
}

static float load(weft_dtype dtype, const void *base, int64_t i)
{
    return (float)weft_element_get(dtype, base, (size_t)i);
}

static void scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++)
        weft_element_set(dtype, out, (size_t)i, load(dtype, x, i) * factor);
}

static void scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                      int64_t factors, const void *other, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        float value = load(dtype, x, i), total = 0;

        for (int64_t j = 0; j < factors; j++)
            total += weight[j] * rounded(dtype, value * factor[j]);
        weft_element_set(dtype, out, (size_t)i, total);
    }
    weft_standin_add_other(dtype, out, other, elements);
}

const weft_standin_kernels weft_standin_kernels_portable = {scale, scale_sum};

static const weft_standin_kernels *kernels(void)
{
#if defined(__aarch64__)
    return weft_cpu_features() & WEFT_CPU_FP16 ? &weft_standin_kernels_fp16 : &weft_standin_kernels_neon;
#elif defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX512))
        return &weft_standin_kernels_avx512;
    return weft_cpu_has(WEFT_CPU_LEVEL_AVX2) ? &weft_standin_kernels_avx2 : &weft_standin_kernels_portable;
#else
    return &weft_standin_kernels_portable;
#endif
}

void weft_standin_scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    kernels()->scale(dtype, out, x, factor, elements);
}

void weft_standin_scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor,
                            const float *weight, int64_t factors, const void *other, int64_t elements)
{
    kernels()->scale_sum(dtype, out, x, factor, weight, factors, other, elements);
}
