/* The kernels of the stand-in expert against sums in double, for every type, length and number of experts. */
#include <fenv.h>
#include <math.h>
#include <stdbool.h>

#include "bench/standin/scale.h"
#include "bench/standin/scale_kernels.h"
#include "core/dtype.h"
#include "moe/sums.h"
#include "support/check.h"

enum { MOST = 1200 };

/* How far a sum of experts may be from that in double, before it is rounded: fp32 sums, or for float16 what
 * scale_fp16.c derives. */
static double slack(weft_dtype dtype, int64_t factors, double terms)
{
    if (dtype != WEFT_F16)
        return (double)(factors + 2) * terms * 0x1p-23;
    return (double)(2 * factors + 3) * terms * 0x1p-22 + (double)(factors + 1) * 0x1p-25;
}

/* With another row: the same bits as adding that afterwards. */
static void check_other(weft_dtype dtype, const void *x, const float *factor, const float *weight,
                        int64_t factors, const void *other, int64_t elements)
{
    static float out[MOST], own[MOST], expected[MOST];
    const void *both[2] = {own, other};
    const float ones[2] = {1, 1};

    weft_standin_scale_sum(dtype, own, x, factor, weight, factors, NULL, elements);
    weft_moe_sum(dtype, expected, both, ones, 2, elements);
    weft_standin_scale_sum(dtype, out, x, factor, weight, factors, other, elements);
    CHECK(!memcmp(out, expected, (size_t)elements * weft_dtype_size(dtype)));
}

/* The expert and its sum in one step: within its bound, and the same bits as in two steps where every sum is
 * exact but for the rounding of experts' results and of the whole, which may overflow. */
static void check_scale(weft_dtype dtype, int64_t factors, int64_t elements, float weight_size,
                        uint64_t *state)
{
    static float x[MOST], other[MOST], out[MOST], expected[MOST], scaled[9][MOST];
    const void *row[9];
    float factor[9], weight[9];
    long wrong = 0;

    for (int64_t i = 0; i < elements; i++) {
        weft_element_set(dtype, x, (size_t)i, random_value(state));
        weft_element_set(dtype, other, (size_t)i, random_value(state));
    }
    for (int64_t j = 0; j < factors; j++) {
        factor[j] = (float)(1 + check_random(state) % 256);
        weight[j] = (float)random_value(state) * weight_size;
        weft_standin_scale(dtype, scaled[j], x, factor[j], elements);
        row[j] = scaled[j];
        for (int64_t i = 0; i < elements; i++) {
            float single[1];

            weft_element_set(dtype, single, 0, weft_element_get(dtype, x, (size_t)i) * factor[j]);
            wrong += weft_element_get(dtype, single, 0) != weft_element_get(dtype, scaled[j], (size_t)i);
        }
    }
    weft_standin_scale_sum(dtype, out, x, factor, weight, factors, NULL, elements);
    for (int64_t i = 0; i < elements; i++) {
        double sum = 0, terms = 0, value = weft_element_get(dtype, out, (size_t)i);

        for (int64_t j = 0; j < factors; j++) {
            double term = (double)weight[j] * weft_element_get(dtype, scaled[j], (size_t)i);

            sum += term;
            terms += fabs(term);
        }
        wrong += !(fabs(value - sum) <=
                   rounding(dtype) * fabs(sum) * 1.001 + smallest(dtype) + slack(dtype, factors, terms));
    }
    CHECK_INT(wrong, 0);
    check_other(dtype, x, factor, weight, factors, other, elements);
    for (int64_t i = 0; i < elements; i++)
        weft_element_set(dtype, x, (size_t)i, (double)(check_random(state) % 127) - 63);
    for (int64_t j = 0; j < factors; j++) {
        weight[j] = (float)(check_random(state) % 16) * 0.125f - 1;
        weft_standin_scale(dtype, scaled[j], x, factor[j], elements);
    }
    weft_standin_scale_sum(dtype, out, x, factor, weight, factors, NULL, elements);
    weft_moe_sum(dtype, expected, row, weight, factors, elements);
    CHECK(!memcmp(out, expected, (size_t)elements * weft_dtype_size(dtype)));
}

/* Zeros of both signs and values too small for their sum to be anything else, with rows that wait for one. */
static void check_small(weft_dtype dtype)
{
    static const float weights[][3] = {{0.3f, 0.1f, 0.1f}, {1, 0.5f, -0.5f}, {-1, -0.5f, 2}, {-2, 0.1f, -1}};
    static const double values[] = {0, 1, -1, 2, -2, 1000, -3000};
    const float factor[3] = {1, 1, 2};
    float x[49], other[49];

    for (int i = 0; i < 49; i++) {
        weft_element_set(dtype, x, (size_t)i, i % 7 ? values[i % 7] * smallest(dtype) : -0.0);
        weft_element_set(dtype, other, (size_t)i, i / 7 ? values[i / 7] * smallest(dtype) : -0.0);
    }
    for (int w = 0; w < 4; w++)
        check_other(dtype, x, factor, weights[w], 3, other, 49);
}

/* Infinite tokens and experts that overflow: as by definition. The floating-point exceptions that the caller
 * had seen, if any, stay. */
static void check_infinite(weft_dtype dtype, bool noted)
{
    static const double values[] = {INFINITY, -INFINITY, NAN, 60000, -60000, 400, 1, -0.0};
    static const float weights[][3] = {{0.3f, 0.2f, 0.1f}, {1, -1, 0.5f}, {0, 1, 1e-9f}};
    const float factor[3] = {3, 1, 200};
    float x[64], other[64], out[64], expected[64];

    for (int i = 0; i < 64; i++) {
        weft_element_set(dtype, x, (size_t)i, values[i % 8]);
        weft_element_set(dtype, other, (size_t)i, values[i / 8]);
    }
    for (int w = 0; w < 3; w++)
        for (int with = 0; with < 2; with++) {
            feclearexcept(FE_ALL_EXCEPT);
            if (noted)
                feraiseexcept(FE_OVERFLOW);
            weft_standin_scale_sum(dtype, out, x, factor, weights[w], 3, with ? other : NULL, 64);
            weft_standin_kernels_portable.scale_sum(dtype, expected, x, factor, weights[w], 3,
                                                    with ? other : NULL, 64);
            for (int i = 0; i < 64; i++) {
                double value = weft_element_get(dtype, out, (size_t)i),
                       right = weft_element_get(dtype, expected, (size_t)i);

                CHECK(isnan(right)
                          ? isnan(value)
                          : value == right || fabs(value - right) <= 2 * rounding(dtype) * fabs(right));
            }
        }
    for (int i = 0; i < 64; i++)
        weft_element_set(dtype, x, (size_t)i, 1);
    feclearexcept(FE_ALL_EXCEPT);
    if (noted)
        feraiseexcept(FE_OVERFLOW);
    weft_standin_scale_sum(dtype, out, x, factor, weights[0], 3, NULL, 64);
    CHECK(fetestexcept(FE_OVERFLOW) == (noted ? FE_OVERFLOW : 0));
}

/* The portable kernels are the definition: on exact data the ones this CPU uses must agree with them. */
static void check_portable(weft_dtype dtype, uint64_t *state)
{
    static float x[MOST], out[MOST], expected[MOST];
    float weight[5];

    for (int j = 0; j < 5; j++)
        weight[j] = (float)(check_random(state) % 16) * 0.125f - 1;
    for (int i = 0; i < MOST; i++)
        weft_element_set(dtype, x, (size_t)i, (double)(check_random(state) % 8) - 4);
    weft_standin_scale_sum(dtype, out, x, weight, weight, 5, NULL, MOST);
    weft_standin_kernels_portable.scale_sum(dtype, expected, x, weight, weight, 5, NULL, MOST);
    CHECK(!memcmp(out, expected, MOST * weft_dtype_size(dtype)));
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    uint64_t state = 9;

    for (int d = 0; d < 3; d++) {
        for (int64_t elements = 1; elements < MOST; elements += elements < 70 ? 1 : 101)
            for (int64_t factors = 1; factors < 10; factors++)
                check_scale(types[d], factors, elements, 1, &state);
        for (float size = 1e-8f; size < 5; size *= 10)
            check_scale(types[d], 3, MOST, size, &state);
        check_small(types[d]);
        check_infinite(types[d], false);
        check_infinite(types[d], true);
        check_portable(types[d], &state);
    }
    return check_report("test_moe_standin");
}
