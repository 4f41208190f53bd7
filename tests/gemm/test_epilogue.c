/*
 * The epilogue of int32 sums for an int32 D: the formula, rounded to the nearest (halves to even) and
 * saturated, NaN as the least, for every number of columns, in place or not. Factors have few bits, so that
 * float64 is exact. With factors of any bits, a block is what its columns are one by one. An int8 D likewise,
 * of float32 and of int32 sums.
 */
#include "gemm/epilogue.h"
#include "support/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { ROWS = 3, COLS = 37, LD = 41, COUNT = ROWS * LD };

static const int32_t edges[] = {INT32_MIN, INT32_MIN + 1, -1073741824, -3,           -2, -1, 0, 1, 2, 3,
                                5,         1073741824,    INT32_MAX,   INT32_MAX - 1};
static const float factors[] = {1, 1, 0.5f, -0.25f, 2, -3, 1.5f, 0x1p-20f, 0};

static int32_t acc[COUNT], c[COUNT], bias[LD], d[COUNT];
static float row_scale[ROWS], col_scale[LD];
static uint64_t state = 14;

static uint64_t pick(uint64_t count)
{
    return check_random(&state) % count;
}

static void fill(int32_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = pick(3) ? edges[pick(sizeof(edges) / sizeof(edges[0]))] : (int32_t)check_random(&state);
}

static float factor(void)
{
    return factors[pick(sizeof(factors) / sizeof(factors[0]))];
}

static int32_t wanted(const weft_epilogue *e, int64_t i, int64_t j, int64_t c_ld)
{
    double value = 0;

    if (e->alpha != 0)
        value = (double)acc[i * LD + j] * e->alpha * (e->row_scale ? e->row_scale[i] : 1) *
                (e->col_scale ? e->col_scale[j] : 1);
    if (e->c && e->beta != 0)
        value += (double)e->beta * c[i * c_ld + j];
    if (e->bias)
        value += bias[j];
    if (e->act == WEFT_ACT_RELU && value < 0)
        value = 0;
    if (isnan(value) || value <= INT32_MIN)
        return INT32_MIN;
    return value >= INT32_MAX ? INT32_MAX : (int32_t)nearbyint(value);
}

static weft_epilogue any_epilogue(void)
{
    uint64_t with = check_random(&state);

    fill(acc, COUNT);
    fill(c, COUNT);
    fill(bias, LD);
    for (int i = 0; i < ROWS; i++)
        row_scale[i] = factor();
    for (int j = 0; j < LD; j++)
        col_scale[j] = factor();
    return (weft_epilogue){
        .alpha = with & 1 ? factor() : 1,
        .beta = with & 2 ? factor() : 1,
        .act = with & 4 ? WEFT_ACT_RELU : WEFT_ACT_NONE,
        .acc_dtype = WEFT_I32,
        .d_dtype = WEFT_I32,
        .row_scale = (with & 0x18) == 8 ? row_scale : NULL,
        .col_scale = (with & 0x60) == 0x20 ? col_scale : NULL,
        .c = with & 0x80 ? c : NULL,
        .c_ld = LD,
        .bias = with & 0x100 ? bias : NULL,
    };
}

static void check_exact(int64_t cols)
{
    weft_epilogue e = any_epilogue();
    int32_t want[COUNT], *to = pick(3) ? d : pick(2) ? acc : c;

    for (int64_t i = 0; i < COUNT; i++)
        want[i] = i % LD < cols ? wanted(&e, i / LD, i % LD, LD) : 77;
    for (int64_t i = 0; i < COUNT; i++)
        to[i] = i % LD < cols ? to[i] : 77; /* beyond the columns nothing is written */
    weft_epilogue_block(&e, ROWS, cols, acc, LD, to, LD);
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK_INT(to[i], want[i]);
        if (to[i] != want[i] && check_failures < 8)
            fprintf(stderr, "  column %lld of %lld, alpha %g, beta %g%s%s%s%s\n", (long long)i % LD,
                    (long long)cols, (double)e.alpha, (double)e.beta, e.c ? " c" : "", e.bias ? " bias" : "",
                    e.act ? " relu" : "", e.row_scale || e.col_scale ? " scales" : "");
    }
}

/* Factors of all bits, infinite ones and NaN. */
static void check_one_by_one(void)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 0.1f, 1e-30f};
    weft_epilogue e = any_epilogue(), one;
    int32_t alone[COUNT];

    e.alpha = pick(2) ? odd[pick(6)] : (float)((double)check_random(&state) * 0x1p-64);
    e.beta = (float)((double)check_random(&state) * 0x1p-63) - 1;
    for (int j = 0; j < LD; j++)
        col_scale[j] = pick(4) ? (float)((double)check_random(&state) * 0x1p-62) : odd[pick(6)];
    weft_epilogue_block(&e, ROWS, COLS, acc, LD, d, LD);
    for (int j = 0; j < COLS; j++) {
        one = e;
        one.col_scale = e.col_scale ? e.col_scale + j : NULL;
        one.c = e.c ? (const int32_t *)e.c + j : NULL;
        one.bias = e.bias ? (const int32_t *)e.bias + j : NULL;
        weft_epilogue_block(&one, ROWS, 1, acc + j, LD, alone + j, LD);
        for (int i = 0; i < ROWS; i++)
            CHECK_INT(d[i * LD + j], alone[i * LD + j]);
    }
}

/* Halves, both bounds, what lies beyond them, and NaN, at every place of a vector. */
static void check_bytes(int round)
{
    static const float some[] = {0.5f,   1.5f,    2.5f,   -0.5f,   -1.5f,     126.5f,   127.4f,
                                 127.5f, -127.5f, -128.f, -128.6f, 3e9f,      -3e9f,    1e30f,
                                 -1e30f, 0.f,     -0.f,   77.f,    -INFINITY, INFINITY, NAN};
    int64_t cols = 1 + round % COLS;
    bool integer = round & 1;
    weft_epilogue e = {.alpha = integer ? 0.25f : 1,
                       .acc_dtype = integer ? WEFT_I32 : WEFT_F32,
                       .d_dtype = WEFT_I8,
                       .col_scale = integer ? NULL : col_scale};
    float real[COUNT];
    int8_t bytes[COUNT];

    for (int64_t i = 0; i < COUNT; i++)
        real[i] = some[pick(sizeof(some) / sizeof(some[0]))];
    for (int64_t j = 0; j < LD; j++)
        col_scale[j] = pick(2) ? 1 : -1;
    fill(acc, COUNT);
    for (int64_t i = 0; i < COUNT; i += 2)
        acc[i] = (int32_t)pick(1200) - 600;
    weft_epilogue_block(&e, ROWS, cols, integer ? (const void *)acc : real, LD, bytes, LD);
    for (int64_t i = 0; i < ROWS; i++) {
        for (int64_t j = 0; j < cols; j++) {
            float value = integer ? 0.25f * (float)acc[i * LD + j] : real[i * LD + j] * col_scale[j];
            int want = isnan(value) || value <= -128 ? -128 : value >= 127 ? 127 : (int)nearbyintf(value);

            CHECK_INT(bytes[i * LD + j], want);
        }
    }
}

int main(void)
{
    for (int round = 0; round < 2000; round++)
        check_bytes(round);
    for (int round = 0; round < 20000; round++)
        check_exact(1 + round % COLS);
    for (int round = 0; round < 5000; round++)
        check_one_by_one();
    return check_report("gemm epilogue");
}
