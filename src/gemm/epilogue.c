/* Written so that the compiler vectorizes every loop: no branches inside, one pass per step, rows in pieces.
 */
#include "gemm/epilogue.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "gemm/convert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
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

/* At most PIECE columns from column j. */
static weft_integer_row piece_of(const weft_integer_row *row, int64_t j)
{
    weft_integer_row piece = *row;

    piece.n = row->n - j < PIECE ? row->n - j : PIECE;
    piece.acc += j;
    piece.c = row->c ? row->c + j : NULL;
    piece.bias = row->bias ? row->bias + j : NULL;
    piece.col_scale = row->col_scale ? row->col_scale + j : NULL;
    piece.d += j;
    return piece;
}

#if defined(__aarch64__)

/*
 * Four at a time, in registers from the sums to D: additions and conversions saturate here, and the maximum
 * of NaN and a number is the number, where compilers make comparisons.
 */

/* Whether sums are only added to, and cut at zero: then integers give what doubles would. */
static bool stays_integer(const weft_integer_row *row)
{
    return row->alpha == 1 && row->row_scale == 1 && !row->col_scale && !(row->c && row->beta != 1);
}

static void add_fours(const weft_integer_row *row, int64_t n)
{
    const int32_t *acc = row->acc, *c = row->c, *bias = row->bias, *term = c ? c : bias;
    int32x4_t least = vdupq_n_s32(row->act == WEFT_ACT_RELU ? 0 : INT32_MIN);
    int32_t *d = row->d;

    if (c && bias) { /* a sum of three is cut once */
        for (int64_t i = 0; i < n; i += 4) {
            int32x4_t x = vld1q_s32(acc + i), y = vld1q_s32(c + i), z = vld1q_s32(bias + i);
            int64x2_t low = vaddw_s32(vaddl_s32(vget_low_s32(x), vget_low_s32(y)), vget_low_s32(z));
            int64x2_t high = vaddw_high_s32(vaddl_high_s32(x, y), z);

            vst1q_s32(d + i, vmaxq_s32(vqmovn_high_s64(vqmovn_s64(low), high), least));
        }
    } else if (term) {
        for (int64_t i = 0; i < n; i += 4)
            vst1q_s32(d + i, vmaxq_s32(vqaddq_s32(vld1q_s32(acc + i), vld1q_s32(term + i)), least));
    } else {
        for (int64_t i = 0; i < n; i += 4)
            vst1q_s32(d + i, vmaxq_s32(vld1q_s32(acc + i), least));
    }
}

typedef struct four {
    float64x2_t low, high;
} four;

static inline four load_four(const int32_t *from)
{
    int32x4_t value = vld1q_s32(from);

    return (four){vcvtq_f64_s64(vmovl_s32(vget_low_s32(value))), vcvtq_f64_s64(vmovl_high_s32(value))};
}

/* The flags are constants where this is called: a loop for each. */
static inline __attribute__((always_inline)) void
scale_fours(const weft_integer_row *row, int64_t n, bool scales, bool adds_c, bool adds_bias, bool cuts)
{
    const double scale = row->alpha == 1 ? row->row_scale : row->alpha, beta = row->beta;
    const double row_scale = row->alpha == 1 ? 1 : row->row_scale;
    const int32_t *acc = row->acc, *c = row->c, *bias = row->bias;
    const float *col_scale = row->col_scale;
    const float64x2_t least = vdupq_n_f64(-2147483648.0), zero = vdupq_n_f64(0);
    int32_t *d = row->d;

    for (int64_t i = 0; i < n; i += 4) {
        four t = load_four(acc + i);

        t = (four){vmulq_n_f64(t.low, scale), vmulq_n_f64(t.high, scale)};
        if (scales) {
            float32x4_t by = col_scale ? vld1q_f32(col_scale + i) : vdupq_n_f32(1);

            t = (four){vmulq_n_f64(t.low, row_scale), vmulq_n_f64(t.high, row_scale)};
            t = (four){vmulq_f64(t.low, vcvt_f64_f32(vget_low_f32(by))),
                       vmulq_f64(t.high, vcvt_high_f64_f32(by))};
        }
        if (adds_c) {
            four more = load_four(c + i);

            t = (four){vfmaq_n_f64(t.low, more.low, beta), vfmaq_n_f64(t.high, more.high, beta)};
        }
        if (adds_bias) {
            four more = load_four(bias + i);

            t = (four){vaddq_f64(t.low, more.low), vaddq_f64(t.high, more.high)};
        }
        if (cuts) /* NaN stays */
            t = (four){vmaxq_f64(t.low, zero), vmaxq_f64(t.high, zero)};
        t = (four){vmaxnmq_f64(t.low, least), vmaxnmq_f64(t.high, least)};
        vst1q_s32(d + i, vqmovn_high_s64(vqmovn_s64(vcvtnq_s64_f64(t.low)), vcvtnq_s64_f64(t.high)));
    }
}

/* Returns how many are done. */
static int64_t fours(const weft_integer_row *row)
{
    bool scales = row->col_scale || (row->alpha != 1 && row->row_scale != 1);
    int64_t n = row->n - row->n % 4;

    if ((row->act != WEFT_ACT_NONE && row->act != WEFT_ACT_RELU) || row->alpha == 0)
        return 0;
    if (stays_integer(row))
        add_fours(row, n);
    else if (row->act == WEFT_ACT_RELU)
        scale_fours(row, n, scales, row->c, row->bias, true);
    else if (scales)
        scale_fours(row, n, true, row->c, row->bias, false);
    else if (row->c && row->bias)
        scale_fours(row, n, false, true, true, false);
    else if (row->c)
        scale_fours(row, n, false, true, false, false);
    else if (row->bias)
        scale_fours(row, n, false, false, true, false);
    else
        scale_fours(row, n, false, false, false, false);
    return n;
}

#else

static int64_t fours(const weft_integer_row *row)
{
#if defined(__x86_64__)
    if (weft_cpu_features() & WEFT_CPU_AVX2)
        return weft_integer_fours_avx2(row);
#else
    (void)row;
#endif
    return 0;
}

#endif

/* A double holds every int32, and its product with a float scale. */
static void integer_piece(const weft_integer_row *row)
{
    const int32_t *acc = row->acc, *c = row->c, *bias = row->bias;
    const float *col_scale = row->col_scale;
    const double alpha = row->alpha, row_scale = row->row_scale, beta = row->beta;
    const int64_t n = row->n;
    int32_t *d = row->d;
    double t[PIECE];
    float x[PIECE];

    for (int64_t i = 0; i < n; i++)
        t[i] = acc[i] * alpha * row_scale;
    for (int64_t i = 0; i < n && col_scale; i++)
        t[i] *= col_scale[i];
    if (alpha == 0) /* whatever the scales are */
        memset(t, 0, (size_t)n * sizeof(*t));
    for (int64_t i = 0; i < n && c; i++)
        t[i] += beta * c[i];
    for (int64_t i = 0; i < n && bias; i++)
        t[i] += bias[i];
    if (row->act == WEFT_ACT_RELU) {
        for (int64_t i = 0; i < n; i++)
            t[i] = t[i] < 0 ? 0 : t[i];
    } else if (row->act != WEFT_ACT_NONE) {
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)t[i];
        apply_act(row->act, x, n);
        for (int64_t i = 0; i < n; i++)
            t[i] = x[i];
    }
    for (int64_t i = 0; i < n; i++) {
        double low = t[i] > -2147483648.0 ? t[i] : -2147483648.0; /* also NaN */
        double value = low < 2147483647.0 ? low : 2147483647.0;

        d[i] = (int32_t)((value + 0x1.8p52) - 0x1.8p52); /* to the nearest, halves to even */
    }
}

static void finish_integers(const weft_epilogue *e, int64_t rows, int64_t cols, const int32_t *acc,
                            int64_t acc_ld, int32_t *d, int64_t d_ld)
{
    for (int64_t r = 0; r < rows; r++) {
        weft_integer_row row = {
            .n = cols,
            .acc = acc + r * acc_ld,
            .c = e->c && e->beta != 0 ? (const int32_t *)e->c + r * e->c_ld : NULL,
            .bias = e->bias,
            .alpha = e->alpha,
            .row_scale = e->row_scale ? e->row_scale[r] : 1,
            .beta = e->beta,
            .col_scale = e->col_scale,
            .act = e->act,
            .d = d + r * d_ld,
        };

        for (int64_t j = fours(&row); j < cols; j += PIECE) {
            weft_integer_row piece = piece_of(&row, j);

            integer_piece(&piece);
        }
    }
}

typedef struct piece {
    int64_t rows, cols;
    float t[PIECE];
    float col_scale[PIECE], bias[PIECE]; /* of the columns */
} piece;

static void scale_piece(const weft_epilogue *e, piece *p, int64_t row0)
{
    int64_t count = p->rows * p->cols;

    if (e->alpha == 0) { /* whatever the sums are */
        memset(p->t, 0, (size_t)count * sizeof(float));
        return;
    }
    if (e->alpha != 1) {
        for (int64_t i = 0; i < count; i++)
            p->t[i] *= e->alpha;
    }
    for (int64_t r = 0; r < p->rows && e->row_scale; r++) {
        for (int64_t j = 0; j < p->cols; j++)
            p->t[r * p->cols + j] *= e->row_scale[row0 + r];
    }
    for (int64_t r = 0; r < p->rows && e->col_scale; r++) {
        for (int64_t j = 0; j < p->cols; j++)
            p->t[r * p->cols + j] *= p->col_scale[j];
    }
}

static void add_terms(const weft_epilogue *e, piece *p, const char *c, size_t size)
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
    piece p;
    bool only_rounds = e->acc_dtype == WEFT_F32 && e->alpha == 1 && e->act == WEFT_ACT_NONE &&
                       !e->row_scale && !e->col_scale && !e->bias && (!e->c || e->beta == 0);

    p.cols = cols;
    if (e->col_scale)
        memcpy(p.col_scale, e->col_scale + j0, (size_t)cols * sizeof(float));
    if (e->bias)
        load_row(e->d_dtype, (const char *)e->bias + (size_t)j0 * size, p.bias, cols);
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
        if (e->acc_dtype == WEFT_F32) {
            copy_rows((char *)p.t, (size_t)cols * 4, sums, (size_t)acc_ld * 4, p.rows, (size_t)cols * 4);
        } else {
            for (int64_t r = 0; r < p.rows; r++)
                load_row(WEFT_I32, sums + (size_t)(r * acc_ld) * 4, p.t + r * cols, cols);
        }
        scale_piece(e, &p, i);
        add_terms(e, &p, c, size);
        if (width == 2)
            gate_pairs(e->act, p.t, p.rows * cols, gated);
        else
            apply_act(e->act, p.t, p.rows * cols);
        store_row(e->d_dtype, out, width == 2 ? gated : p.t, p.rows * cols / width);
        copy_rows(to, (size_t)d_ld * size, out, row_bytes, p.rows, row_bytes);
    }
}

void weft_epilogue_block(const weft_epilogue *e, int64_t rows, int64_t cols, const void *acc, int64_t acc_ld,
                         void *d, int64_t d_ld)
{
    if (e->acc_dtype == WEFT_I32 && e->d_dtype == WEFT_I32) {
        finish_integers(e, rows, cols, acc, acc_ld, d, d_ld);
        return;
    }
    for (int64_t j = 0; j < cols; j += PIECE)
        finish_columns(e, rows, j, cols - j < PIECE ? cols - j : PIECE, acc, acc_ld, d, d_ld);
}
