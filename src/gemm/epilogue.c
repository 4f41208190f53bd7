/* Written so that the compiler vectorizes every loop: no branches inside, one pass per step, rows in pieces.
 */
#include "gemm/epilogue.h"
#include "core/dtype.h"
#include "gemm/convert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { PIECE = 128 };

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* exp for x <= 88, relative error below 3e-7: x = n ln 2 + r, a polynomial in r, n into the exponent. */
static inline float exp_fast(float x)
{
    x = x < -87.0f ? -87.0f : x;

    float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum's low bits hold round(x / ln 2) */
    float n = shifted - 12582912.0f;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 0.0013941108f;
    uint32_t bits;

    p = p * r + 0.0083751264f;
    p = p * r + 0.0416663529f;
    p = p * r + 0.1666641551f;
    p = p * r + 0.5000000047f;
    p = p * r + 1.0000000377f;
    p = p * r + 1.0f;
    memcpy(&bits, &shifted, sizeof(bits));
    return p * float_of((bits + 127u) << 23);
}

static inline float act_silu(float x)
{
    float bounded = x < -87.0f ? -87.0f : x;
    float y = bounded / (1.0f + exp_fast(bounded > 87.0f ? -87.0f : -bounded));

    y = x < -87.0f ? -0.0f : y;
    return x != x ? x : y;
}

/*
 * x * Phi(x) with Phi from erfc(z) = t * exp(-z^2 + polynomial(t)), t = 1 / (1 + z/2), fitted over z in 0..10
 * to a relative error of 5e-8. The tail keeps its relative accuracy.
 */
static inline float act_gelu(float x)
{
    float z = fabsf(x) * 0.707106781f;

    z = z > 9.0f ? 9.0f : z;

    float t = 1.0f / (1.0f + 0.5f * z);
    float p = 0.14804605385740688f;

    p = p * t - 0.69753659004537f;
    p = p * t + 1.195327672926043f;
    p = p * t - 0.7464698924329564f;
    p = p * t - 0.039866319496525415f;
    p = p * t - 0.019508002433383978f;
    p = p * t + 0.041395963823612894f;
    p = p * t + 0.3852836336650091f;
    p = p * t + 0.998782459541073f;
    p = p * t - 1.2654549301825144f;

    float half = 0.5f * t * exp_fast(p - z * z);
    float phi = x < 0 ? half : 1.0f - half;
    float y = x < -14.0f ? -0.0f : x * phi; /* below: -inf * 0 */

    return x != x ? x : y;
}

static void apply_act(weft_act act, float *restrict t, int64_t n)
{
    switch (act) {
    case WEFT_ACT_NONE:
        break;
    case WEFT_ACT_RELU:
        for (int64_t i = 0; i < n; i++)
            t[i] = t[i] < 0 ? 0 : t[i];
        break;
    case WEFT_ACT_GELU:
        for (int64_t i = 0; i < n; i++)
            t[i] = act_gelu(t[i]);
        break;
    case WEFT_ACT_SILU:
        for (int64_t i = 0; i < n; i++)
            t[i] = act_silu(t[i]);
        break;
    }
}

float weft_act_apply(weft_act act, float x)
{
    apply_act(act, &x, 1);
    return x;
}

static void load_row(weft_dtype dtype, const void *src, float *restrict t, int64_t n)
{
    if (dtype == WEFT_I8) {
        for (int64_t i = 0; i < n; i++)
            t[i] = ((const int8_t *)src)[i];
    } else if (dtype == WEFT_I32) {
        for (int64_t i = 0; i < n; i++)
            t[i] = (float)((const int32_t *)src)[i];
    } else {
        weft_convert_row(WEFT_F32, t, dtype, src, n);
    }
}

static void store_row(weft_dtype dtype, void *dst, const float *restrict t, int64_t n)
{
    if (dtype == WEFT_I8) {
        for (int64_t i = 0; i < n; i++) {
            float value = t[i] > -128.0f ? t[i] : -128.0f; /* also NaN */

            ((int8_t *)dst)[i] = (int8_t)rintf(value < 127.0f ? value : 127.0f);
        }
    } else if (dtype == WEFT_I32) {
        for (int64_t i = 0; i < n; i++)
            weft_element_set(WEFT_I32, dst, (size_t)i, t[i]);
    } else {
        weft_convert_row(dtype, dst, WEFT_F32, t, n);
    }
}

/* int32 all the way: doubles hold every int32 and their products with a float scale well enough to be exact.
 */
static void integer_row(const weft_epilogue *e, int64_t n, const int32_t *acc, float row_scale,
                        const float *col_scale, const int32_t *c, const int32_t *bias, int32_t *d)
{
    for (int64_t i = 0; i < n; i++) {
        double value = (double)acc[i] * e->alpha * row_scale * (col_scale ? col_scale[i] : 1.0f);

        if (c)
            value += (double)e->beta * c[i];
        if (bias)
            value += bias[i];
        if (e->act == WEFT_ACT_RELU)
            value = value < 0 ? 0 : value;
        else if (e->act != WEFT_ACT_NONE)
            value = weft_act_apply(e->act, (float)value);
        weft_element_set(WEFT_I32, d, (size_t)i, value);
    }
}

static void add_scaled(float *restrict t, float scale, weft_dtype dtype, const void *src, int64_t n)
{
    float term[PIECE];

    load_row(dtype, src, term, n);
    for (int64_t i = 0; i < n; i++)
        t[i] += scale * term[i];
}

void weft_epilogue_row(const weft_epilogue *e, int64_t n, const void *acc, float row_scale,
                       const float *col_scale, const void *c, const void *bias, void *d)
{
    size_t size = weft_dtype_size(e->d_dtype);
    float scale = e->alpha * row_scale;

    if (e->beta == 0)
        c = NULL;
    if (e->acc_dtype == WEFT_I32 && e->d_dtype == WEFT_I32) {
        integer_row(e, n, acc, row_scale, col_scale, c, bias, d);
        return;
    }
    if (e->acc_dtype == WEFT_F32 && scale == 1 && !col_scale && !c && !bias && e->act == WEFT_ACT_NONE) {
        if (acc != d || e->d_dtype != WEFT_F32)
            store_row(e->d_dtype, d, acc, n);
        return;
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = n - i < PIECE ? n - i : PIECE;
        float t[PIECE];

        load_row(e->acc_dtype, (const float *)acc + i, t, count);
        if (scale != 1) {
            for (int64_t x = 0; x < count; x++)
                t[x] *= scale;
        }
        if (col_scale) {
            for (int64_t x = 0; x < count; x++)
                t[x] *= col_scale[i + x];
        }
        if (c)
            add_scaled(t, e->beta, e->d_dtype, (const char *)c + (size_t)i * size, count);
        if (bias)
            add_scaled(t, 1, e->d_dtype, (const char *)bias + (size_t)i * size, count);
        apply_act(e->act, t, count);
        store_row(e->d_dtype, (char *)d + (size_t)i * size, t, count);
    }
}
