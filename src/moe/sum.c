/* Chooses the kernels of combine for this CPU, and holds the portable ones, which are also the definition. */
#include "moe/sum.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "moe/sum_kernels.h"

static inline __attribute__((always_inline)) float load(weft_dtype dtype, const void *base, int64_t i)
{
    if (dtype == WEFT_F16)
        return weft_f16_to_f32(((const uint16_t *)base)[i]);
    if (dtype == WEFT_BF16)
        return weft_bf16_to_f32(((const uint16_t *)base)[i]);
    return ((const float *)base)[i];
}

static inline __attribute__((always_inline)) void store(weft_dtype dtype, void *base, int64_t i, float value)
{
    if (dtype == WEFT_F16)
        ((uint16_t *)base)[i] = weft_f32_to_f16(value);
    else if (dtype == WEFT_BF16)
        ((uint16_t *)base)[i] = weft_f32_to_bf16(value);
    else
        ((float *)base)[i] = value;
}

/* What a value becomes when it is stored and loaded again. */
static inline __attribute__((always_inline)) float rounded(weft_dtype dtype, float value)
{
    uint16_t half;

    if (dtype == WEFT_F32)
        return value;
    store(dtype, &half, 0, value);
    return load(dtype, &half, 0);
}

static inline __attribute__((always_inline)) void sum_rows(weft_dtype dtype, void *out,
                                                           const void *const *row, const float *weight,
                                                           int64_t rows, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        float sum = 0;

        for (int64_t r = 0; r < rows; r++)
            sum += weight[r] * load(dtype, row[r], i);
        store(dtype, out, i, sum);
    }
}

static inline __attribute__((always_inline)) void scale_rows(weft_dtype dtype, void *out, const void *x,
                                                             float factor, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++)
        store(dtype, out, i, load(dtype, x, i) * factor);
}

static inline __attribute__((always_inline)) void scale_sum_rows(weft_dtype dtype, void *out, const void *x,
                                                                 const float *factor, const float *weight,
                                                                 int64_t factors, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        float value = load(dtype, x, i), sum = 0;

        for (int64_t j = 0; j < factors; j++)
            sum += weight[j] * rounded(dtype, value * factor[j]);
        store(dtype, out, i, sum);
    }
}

static void sum_f32(void *out, const void *const *row, const float *weight, int64_t rows, int64_t elements)
{
    sum_rows(WEFT_F32, out, row, weight, rows, elements);
}

static void sum_f16(void *out, const void *const *row, const float *weight, int64_t rows, int64_t elements)
{
    sum_rows(WEFT_F16, out, row, weight, rows, elements);
}

static void sum_bf16(void *out, const void *const *row, const float *weight, int64_t rows, int64_t elements)
{
    sum_rows(WEFT_BF16, out, row, weight, rows, elements);
}

static void scale_f32(void *out, const void *x, float factor, int64_t elements)
{
    scale_rows(WEFT_F32, out, x, factor, elements);
}

static void scale_f16(void *out, const void *x, float factor, int64_t elements)
{
    scale_rows(WEFT_F16, out, x, factor, elements);
}

static void scale_bf16(void *out, const void *x, float factor, int64_t elements)
{
    scale_rows(WEFT_BF16, out, x, factor, elements);
}

static void scale_sum_f32(void *out, const void *x, const float *factor, const float *weight, int64_t factors,
                          int64_t elements)
{
    scale_sum_rows(WEFT_F32, out, x, factor, weight, factors, elements);
}

static void scale_sum_f16(void *out, const void *x, const float *factor, const float *weight, int64_t factors,
                          int64_t elements)
{
    scale_sum_rows(WEFT_F16, out, x, factor, weight, factors, elements);
}

static void scale_sum_bf16(void *out, const void *x, const float *factor, const float *weight,
                           int64_t factors, int64_t elements)
{
    scale_sum_rows(WEFT_BF16, out, x, factor, weight, factors, elements);
}

const weft_moe_kernels weft_moe_kernels_portable[3] = {
    [WEFT_F32] = {sum_f32, scale_f32, scale_sum_f32},
    [WEFT_F16] = {sum_f16, scale_f16, scale_sum_f16},
    [WEFT_BF16] = {sum_bf16, scale_bf16, scale_sum_bf16},
};

static const weft_moe_kernels *kernels(weft_dtype dtype)
{
#if defined(__aarch64__)
    const uint32_t need = WEFT_CPU_FP16 | WEFT_CPU_FHM;

    if (dtype == WEFT_F16 && (weft_cpu_features() & need) == need)
        return &weft_moe_kernels_fhm;
    return &weft_moe_kernels_neon[dtype];
#elif defined(__x86_64__)
    const uint32_t need = WEFT_CPU_AVX2 | WEFT_CPU_FMA | WEFT_CPU_F16C;

    if ((weft_cpu_features() & need) == need)
        return &weft_moe_kernels_avx2[dtype];
#endif
    return &weft_moe_kernels_portable[dtype];
}

void weft_moe_sum(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                  int64_t elements)
{
    kernels(dtype)->sum(out, row, weight, rows, elements);
}

void weft_moe_scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    kernels(dtype)->scale(out, x, factor, elements);
}

void weft_moe_scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                        int64_t factors, int64_t elements)
{
    kernels(dtype)->scale_sum(out, x, factor, weight, factors, elements);
}
