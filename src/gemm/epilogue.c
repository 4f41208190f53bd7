/* Which code finishes a block, and integers that stay integers. */
#include "gemm/epilogue.h"
#include "core/cpu.h"
#include "core/round.h"
#include "gemm/epilogue_columns.h"

#include <stdbool.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

float weft_act_apply(weft_act act, float x)
{
    apply_act(act, &x, 1);
    return x;
}

/* At most PIECE columns from column j. */
static weft_integer_row piece_of(const weft_integer_row *row, int64_t j)
{
    weft_integer_row piece = *row;

    piece.n = weft_min(row->n - j, PIECE);
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

void weft_epilogue_block(const weft_epilogue *e, int64_t rows, int64_t cols, const void *acc, int64_t acc_ld,
                         void *d, int64_t d_ld)
{
    weft_finish_columns finish = finish_columns;

    if (e->acc_dtype == WEFT_I32 && e->d_dtype == WEFT_I32) {
        finish_integers(e, rows, cols, acc, acc_ld, d, d_ld);
        return;
    }
#if defined(__x86_64__)
    if (weft_cpu_features() & WEFT_CPU_AVX2)
        finish = weft_finish_columns_avx2;
#endif
    for (int64_t j = 0; j < cols; j += PIECE)
        finish(e, rows, j, weft_min(cols - j, PIECE), acc, acc_ld, d, d_ld);
}
