/*
 * The epilogue of sums that become floats on the way, for a block of columns: a template, compiled with the
 * plain instruction set (epilogue.c) and with wider vectors (kernels/x86/epilogue_avx2.c). None of them has
 * fused multiplies where another has not, so both give the same bits.
 *
 * Written so that the compiler vectorizes every loop: no branches inside, one pass per step, rows in pieces.
 */
#ifndef WEFT_GEMM_EPILOGUE_COLUMNS_H
#define WEFT_GEMM_EPILOGUE_COLUMNS_H

#include "core/dtype.h"
#include "gemm/convert.h"
#include "gemm/epilogue.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PIECE = 512 };

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/*
 * The activations below are polynomials whose halves are evaluated side by side: in one chain, a step waits
 * for the one before, and the core cannot look far enough ahead to do something else. Choices are of the form
 * a > b ? a : b, which vectors have an instruction for; NaN is put back at the end.
 */

/* exp(high + low) for sums of -87 to 88, relative error below 3e-7: the sum is n ln 2 + r, a polynomial in r,
 * n into the exponent. What `high` has lost to rounding may come in `low`. */
static inline float exp_sum(float high, float low)
{
    float shifted = (high + low) * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: low bits hold the sum / ln 2 */
    float n = shifted - 12582912.0f;
    float r = (high - n * 0.693145752f) + (low - n * 1.42860677e-6f), r2 = r * r;
    float even = (1.0f + 1.0000000377f * r) + (0.5000000047f + 0.1666641551f * r) * r2;
    float odd = (0.0416663529f + 0.0083751264f * r) + 0.0013941108f * r2;
    uint32_t bits;

    memcpy(&bits, &shifted, sizeof(bits));
    return (even + odd * (r2 * r2)) * float_of((bits + 127u) << 23);
}

/* Both tails are x times the square of a root that is a normal number as long as the result is one: nothing
 * underflows on the way, and the result does so gradually. */

static inline float act_silu(float x)
{
    float below = x > -174.0f ? x : -174.0f, size = fabsf(below), bounded = size < 174.0f ? size : 174.0f;
    float root = exp_sum(-0.5f * bounded, 0.0f);
    float y = (x < 0 ? below * root * root : x) / (1.0f + root * root);

    return x != x ? x : y;
}

/*
 * x * Phi(x) with Phi from erfc(z) = t * exp(-z^2 + polynomial(t)), t = 1 / (1 + z/2), fitted over z in 0..10
 * to a relative error of 5e-8. z^2 is formed from the upper half of x, exactly, and what is left, so that the
 * tail keeps its relative accuracy.
 */
static inline float act_gelu(float x)
{
    float size = fabsf(x), bounded = size < 14.25f ? size : 14.25f;
    uint32_t bits;

    memcpy(&bits, &bounded, sizeof(bits));

    float upper = float_of(bits & 0xfffff000u), rest = (bounded - upper) * (bounded + upper);
    float t = 1.0f / (1.0f + 0.353553391f * bounded), t2 = t * t, t4 = t2 * t2;
    float p0 = (0.998782459541073f * t - 1.2654549301825144f) +
               (0.041395963823612894f * t + 0.3852836336650091f) * t2;
    float p4 = (-0.039866319496525415f * t - 0.019508002433383978f) +
               (1.195327672926043f * t - 0.7464698924329564f) * t2;
    float p8 = 0.14804605385740688f * t - 0.69753659004537f;
    float root = exp_sum(-0.25f * upper * upper, 0.5f * (p0 + (p4 + p8 * t4) * t4) - 0.25f * rest);
    float tail = 0.5f * t * bounded * root * root; /* |x| Phi(-|x|) */
    float y = x < 0 ? -tail : x - tail;

    y = x > -14.25f ? y : -0.0f;
    return x != x ? x : y;
}

/* n values, in pairs, become half as many. */
#define GATE_PAIRS(gate)                                                                                     \
    for (int64_t i = 0; i < n / 2; i++) {                                                                    \
        float x = t[2 * i];                                                                                  \
        out[i] = (gate)*t[2 * i + 1];                                                                        \
    }

static void gate_pairs(weft_act act, const float *restrict t, int64_t n, float *restrict out)
{
    if (act == WEFT_ACT_GELU_GATED) {
        GATE_PAIRS(act_gelu(x))
    } else if (act == WEFT_ACT_SILU_GATED) {
        GATE_PAIRS(act_silu(x))
    } else {
        GATE_PAIRS(x < 0 ? 0 : x)
    }
}

static void apply_act(weft_act act, float *restrict t, int64_t n)
{
    switch (act) {
    case WEFT_ACT_NONE:
    case WEFT_ACT_RELU_GATED:
    case WEFT_ACT_GELU_GATED:
    case WEFT_ACT_SILU_GATED:
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

/* Sixteen at a time, returns how many are done. Compilers make so many choices of the two bounds that they
 * took ten times as long. */
static inline int64_t store_sixteens(int8_t *dst, const float *t, int64_t n)
{
    int64_t i = 0;

#if defined(__x86_64__)
    const __m128 most = _mm_set1_ps(127.0f);

    /* Of NaN and a number the second is taken; NaN becomes the least integer, as what is below all does. */
    for (; i + 16 <= n; i += 16) {
        __m128i x0 = _mm_cvtps_epi32(_mm_min_ps(most, _mm_loadu_ps(t + i)));
        __m128i x1 = _mm_cvtps_epi32(_mm_min_ps(most, _mm_loadu_ps(t + i + 4)));
        __m128i x2 = _mm_cvtps_epi32(_mm_min_ps(most, _mm_loadu_ps(t + i + 8)));
        __m128i x3 = _mm_cvtps_epi32(_mm_min_ps(most, _mm_loadu_ps(t + i + 12)));

        _mm_storeu_si128((__m128i *)(void *)(dst + i),
                         _mm_packs_epi16(_mm_packs_epi32(x0, x1), _mm_packs_epi32(x2, x3)));
    }
#else
    (void)dst, (void)t, (void)n;
#endif
    return i;
}

static void store_row(weft_dtype dtype, void *dst, const float *restrict t, int64_t n)
{
    if (dtype == WEFT_I8) {
        for (int64_t i = store_sixteens(dst, t, n); i < n; i++) {
            float low = t[i] > -128.0f ? t[i] : -128.0f; /* also NaN */
            float value = low < 127.0f ? low : 127.0f;

            ((int8_t *)dst)[i] =
                (int8_t)((value + 0x1.8p23f) - 0x1.8p23f); /* to the nearest, halves to even */
        }
    } else if (dtype == WEFT_I32) {
        for (int64_t i = 0; i < n; i++)
            weft_element_set(WEFT_I32, dst, (size_t)i, t[i]);
    } else {
        weft_convert_row(dtype, dst, WEFT_F32, t, n);
    }
}

/* Rows of a few bytes each; the widths of common tiles are copied inline. */
static void copy_rows(char *to, size_t to_stride, const char *from, size_t from_stride, int64_t rows,
                      size_t bytes)
{
#define COPY_ROWS(width)                                                                                     \
    case width:                                                                                              \
        for (int64_t i = 0; i < rows; i++)                                                                   \
            memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, width);                       \
        break
    switch (bytes) {
        COPY_ROWS(16);
        COPY_ROWS(24);
        COPY_ROWS(32);
        COPY_ROWS(48);
        COPY_ROWS(64);
        COPY_ROWS(96);
        COPY_ROWS(128);
    default:
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, bytes);
    }
#undef COPY_ROWS
}

typedef struct some_rows {
    int64_t rows, cols;
    float t[PIECE];
    float col_scale[PIECE], bias[PIECE]; /* of the columns */
} some_rows;

/* Sums and their factors in one pass; those that are 1 change nothing. */
#define SCALE_ROW(type)                                                                                      \
    for (int64_t j = 0; j < n; j++)                                                                          \
        t[j] = (float)((const type *)sums)[j] * alpha * row_scale * col_scale[j];

static void scale_row(weft_dtype dtype, const void *restrict sums, float alpha, float row_scale,
                      const float *restrict col_scale, float *restrict t, int64_t n)
{
    if (dtype == WEFT_I32) {
        SCALE_ROW(int32_t)
    } else {
        SCALE_ROW(float)
    }
}

static void scale_piece(const weft_epilogue *e, some_rows *p, int64_t row0, const char *sums, int64_t ld)
{
    if (e->alpha == 0) { /* whatever the sums are */
        memset(p->t, 0, (size_t)(p->rows * p->cols) * sizeof(float));
        return;
    }
    if (e->acc_dtype == WEFT_F32 && e->alpha == 1 && !e->row_scale && !e->col_scale) {
        copy_rows((char *)p->t, (size_t)p->cols * 4, sums, (size_t)ld * 4, p->rows, (size_t)p->cols * 4);
        return;
    }
    for (int64_t r = 0; r < p->rows; r++)
        scale_row(e->acc_dtype, sums + (size_t)(r * ld) * 4, e->alpha,
                  e->row_scale ? e->row_scale[row0 + r] : 1, p->col_scale, p->t + r * p->cols, p->cols);
}

static void add_terms(const weft_epilogue *e, some_rows *p, const char *c, size_t size)
{
    for (int64_t r = 0; r < p->rows && c; r++) {
        float term[PIECE];

        load_row(e->d_dtype, c + (size_t)(r * e->c_ld) * size, term, p->cols);
        for (int64_t j = 0; j < p->cols; j++)
            p->t[r * p->cols + j] += e->beta * term[j];
    }
    for (int64_t r = 0; r < p->rows && e->bias; r++) {
        for (int64_t j = 0; j < p->cols; j++)
            p->t[r * p->cols + j] += p->bias[j];
    }
}

/* Floats that stay floats, with factors and a bias: in one pass from the sums, which lie elsewhere, to D, in
 * the order of the steps above. */
static void finish_floats(const weft_epilogue *e, const some_rows *p, int64_t rows, const float *sums,
                          int64_t ld, float *d, int64_t d_ld)
{
    for (int64_t r = 0; r < rows; r++, sums += ld, d += d_ld) {
        scale_row(WEFT_F32, sums, e->alpha, e->row_scale ? e->row_scale[r] : 1, p->col_scale, d, p->cols);
        for (int64_t j = 0; j < p->cols && e->bias; j++)
            d[j] += p->bias[j];
    }
}

/* All rows, of at most PIECE columns from column j0. */
static void finish_columns(const weft_epilogue *e, int64_t rows, int64_t j0, int64_t cols, const char *acc,
                           int64_t acc_ld, char *d, int64_t d_ld)
{
    size_t size = weft_dtype_size(e->d_dtype);
    int64_t height = PIECE / cols;
    int64_t width = weft_act_width(e->act);
    size_t row_bytes = (size_t)(cols / width) * size;
    _Alignas(16) char out[PIECE * sizeof(float)];
    float gated[PIECE / 2];
    const float *finished;
    some_rows p;
    bool only_rounds = e->acc_dtype == WEFT_F32 && e->alpha == 1 && e->act == WEFT_ACT_NONE &&
                       !e->row_scale && !e->col_scale && !e->bias && (!e->c || e->beta == 0);
    bool stays_float = e->acc_dtype == WEFT_F32 && e->d_dtype == WEFT_F32 && e->alpha != 0 &&
                       e->act == WEFT_ACT_NONE && (!e->c || e->beta == 0) && acc != d;

    p.cols = cols;
    for (int64_t j = 0; j < cols; j++)
        p.col_scale[j] = e->col_scale ? e->col_scale[j0 + j] : 1;
    if (e->bias)
        load_row(e->d_dtype, (const char *)e->bias + (size_t)j0 * size, p.bias, cols);
    if (stays_float && !only_rounds) {
        finish_floats(e, &p, rows, (const float *)(const void *)acc + j0, acc_ld, (float *)(void *)d + j0,
                      d_ld);
        return;
    }
    for (int64_t i = 0; i < rows; i += height) {
        const char *c = e->c && e->beta != 0 ? (const char *)e->c + (size_t)(i * e->c_ld + j0) * size : NULL;

        p.rows = rows - i < height ? rows - i : height;
        const char *sums = acc + (size_t)(i * acc_ld + j0) * 4;
        char *to = d + (size_t)(i * d_ld + j0 / width) * size;

        if (only_rounds && acc_ld == cols) {
            store_row(e->d_dtype, out, (const float *)(const void *)sums, p.rows * cols);
            copy_rows(to, (size_t)d_ld * size, out, (size_t)cols * size, p.rows, (size_t)cols * size);
            continue;
        }
        scale_piece(e, &p, i, sums, acc_ld);
        add_terms(e, &p, c, size);
        if (width == 2)
            gate_pairs(e->act, p.t, p.rows * cols, gated);
        else
            apply_act(e->act, p.t, p.rows * cols);
        finished = width == 2 ? gated : p.t;
        if (e->d_dtype != WEFT_F32)
            store_row(e->d_dtype, out, finished, p.rows * cols / width);
        copy_rows(to, (size_t)d_ld * size, e->d_dtype == WEFT_F32 ? (const char *)finished : out, row_bytes,
                  p.rows, row_bytes);
    }
}

#endif
