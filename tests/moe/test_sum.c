/* The kernels of combine against sums in double, for every type, length and number of rows. */
#include <math.h>

#include "core/dtype.h"
#include "moe/sum.h"
#include "moe/sum_kernels.h"
#include "support/check.h"

enum { ROWS = 70, MOST = 1200 };

static double rounding(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-24;
}

static double smallest(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-24 : 0x1p-126;
}

static double random_value(uint64_t *state)
{
    return ((double)(check_random(state) >> 11) * 0x1p-52 - 1) * 4;
}

static void check_sum(weft_dtype dtype, int64_t rows, int64_t elements, float weight_size, uint64_t *state)
{
    static float memory[ROWS][MOST + 16], out[MOST + 16];
    size_t size = weft_dtype_size(dtype);
    const void *row[ROWS];
    float weight[ROWS];
    long wrong = 0;

    for (int64_t r = 0; r < rows; r++) {
        /* one element in: vectors start anywhere */
        row[r] = (char *)memory[r] + size;
        weight[r] = (float)random_value(state) * weight_size;
        for (int64_t i = 0; i < elements; i++)
            weft_element_set(dtype, (char *)row[r], (size_t)i, random_value(state));
    }
    memset(out, 0x7e, sizeof(out));
    weft_moe_sum(dtype, out, row, weight, rows, elements);
    for (int64_t i = 0; i < elements; i++) {
        double sum = 0, terms = 0, value = weft_element_get(dtype, out, (size_t)i);

        for (int64_t r = 0; r < rows; r++) {
            double term = (double)weight[r] * weft_element_get(dtype, row[r], (size_t)i);

            sum += term;
            terms += fabs(term);
        }
        if (dtype == WEFT_F16 && fabs(sum) > 65000) {
            wrong += !(fabs(value) > 64000); /* near the largest, or infinite */
            continue;
        }
        wrong += !(fabs(value - sum) <= rounding(dtype) * fabs(sum) * 1.001 + smallest(dtype) +
                                            (double)(rows + 2) * terms * 0x1p-23);
    }
    CHECK_INT(wrong, 0);
    for (size_t i = (size_t)elements * size; i < sizeof(out); i++)
        wrong += ((char *)out)[i] != 0x7e;
    CHECK_INT(wrong, 0);
}

/* The expert and its sum in one step: within the bound of a sum, and the same bits as in two steps where the
 * type holds the weights. With another row: the same bits as adding that afterwards. */
static void check_scale(weft_dtype dtype, int64_t factors, int64_t elements, float weight_size,
                        uint64_t *state)
{
    static float x[MOST], other[MOST], out[MOST], expected[MOST], scaled[9][MOST];
    size_t bytes = (size_t)elements * weft_dtype_size(dtype);
    const void *row[9], *both[2] = {out, other};
    float factor[9], weight[9];
    const float ones[2] = {1, 1};
    long wrong = 0;

    for (int64_t i = 0; i < elements; i++) {
        weft_element_set(dtype, x, (size_t)i, random_value(state));
        weft_element_set(dtype, other, (size_t)i, random_value(state));
    }
    for (int64_t j = 0; j < factors; j++) {
        factor[j] = (float)(1 + check_random(state) % 256);
        weight[j] = (float)random_value(state) * weight_size;
        weft_moe_scale(dtype, scaled[j], x, factor[j], elements);
        row[j] = scaled[j];
        for (int64_t i = 0; i < elements; i++) {
            float single[1];

            weft_element_set(dtype, single, 0, weft_element_get(dtype, x, (size_t)i) * factor[j]);
            wrong += weft_element_get(dtype, single, 0) != weft_element_get(dtype, scaled[j], (size_t)i);
        }
    }
    weft_moe_scale_sum(dtype, out, x, factor, weight, factors, NULL, elements);
    for (int64_t i = 0; i < elements; i++) {
        double sum = 0, terms = 0, value = weft_element_get(dtype, out, (size_t)i);

        for (int64_t j = 0; j < factors; j++) {
            double term = (double)weight[j] * weft_element_get(dtype, scaled[j], (size_t)i);

            sum += term;
            terms += fabs(term);
        }
        wrong += !(fabs(value - sum) <= rounding(dtype) * fabs(sum) * 1.001 + smallest(dtype) +
                                            (double)(factors + 2) * terms * 0x1p-23);
    }
    CHECK_INT(wrong, 0);
    memcpy(expected, out, bytes);
    weft_moe_sum(dtype, expected, both, ones, 2, elements);
    weft_moe_scale_sum(dtype, out, x, factor, weight, factors, other, elements);
    CHECK(!memcmp(out, expected, bytes));
    for (int64_t j = 0; j < factors; j++)
        weight[j] = (float)(check_random(state) % 16) * 0.125f - 1;
    weft_moe_scale_sum(dtype, out, x, factor, weight, factors, NULL, elements);
    weft_moe_sum(dtype, expected, row, weight, factors, elements);
    CHECK(!memcmp(out, expected, bytes));
}

/* Values that rounding or splitting a weight could lose. */
static void check_special(weft_dtype dtype)
{
    float a[9], b[9], out[9], weight[2] = {INFINITY, 1};
    const void *row[2] = {a, b};

    for (int i = 0; i < 9; i++) {
        weft_element_set(dtype, a, (size_t)i, i % 3);
        weft_element_set(dtype, b, (size_t)i, -1);
    }
    weft_moe_sum(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++) {
        double value = weft_element_get(dtype, out, (size_t)i);

        CHECK(i % 3 ? value == INFINITY : value != value);
    }
    weight[0] = NAN;
    weft_moe_sum(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        CHECK(weft_element_get(dtype, out, (size_t)i) != weft_element_get(dtype, out, (size_t)i));
    weight[0] = 1e6f;
    weight[1] = 1e6f;
    weft_moe_sum(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        if (i % 3 == 1)
            CHECK(weft_element_get(dtype, out, (size_t)i) == 0);
    weft_moe_sum(dtype, out, row, weight, 0, 9);
    for (int i = 0; i < 9; i++)
        CHECK(weft_element_get(dtype, out, (size_t)i) == 0);
    /* a NaN row stays in its column */
    weft_element_set(dtype, a, 4, NAN);
    weight[0] = weight[1] = 0.5f;
    weft_moe_sum(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        CHECK((weft_element_get(dtype, out, (size_t)i) != weft_element_get(dtype, out, (size_t)i)) ==
              (i == 4));
}

/* The portable kernels are the definition: on exact data the ones this CPU uses must agree with them. */
static void check_portable(weft_dtype dtype, uint64_t *state)
{
    static float memory[5][MOST], out[MOST], expected[MOST];
    const void *row[5];
    float weight[5];

    for (int r = 0; r < 5; r++) {
        row[r] = memory[r];
        weight[r] = (float)(check_random(state) % 16) * 0.125f - 1;
        for (int i = 0; i < MOST; i++)
            weft_element_set(dtype, memory[r], (size_t)i, (double)(check_random(state) % 8) - 4);
    }
    weft_moe_sum(dtype, out, row, weight, 5, MOST);
    weft_moe_kernels_portable.sum(dtype, expected, row, weight, 5, MOST);
    CHECK(!memcmp(out, expected, MOST * weft_dtype_size(dtype)));
    /* rows of weight one: any values, and -0 */
    for (int rows = 1; rows <= 2; rows++) {
        const float ones[2] = {1, 1};

        for (int i = 0; i < MOST; i++) {
            weft_element_set(dtype, memory[0], (size_t)i, i % 7 ? random_value(state) : -0.0);
            weft_element_set(dtype, memory[1], (size_t)i,
                             i % 5 ? random_value(state) * ldexp(1, i % 24 - 20) : -0.0);
        }
        weft_moe_sum(dtype, out, row, ones, rows, MOST - 3);
        weft_moe_kernels_portable.sum(dtype, expected, row, ones, rows, MOST - 3);
        CHECK(!memcmp(out, expected, (MOST - 3) * weft_dtype_size(dtype)));
    }
    for (int i = 0; i < MOST; i++)
        weft_element_set(dtype, memory[0], (size_t)i, (double)(check_random(state) % 8) - 4);
    weft_moe_scale_sum(dtype, out, memory[0], weight, weight, 5, NULL, MOST);
    weft_moe_kernels_portable.scale_sum(dtype, expected, memory[0], weight, weight, 5, NULL, MOST);
    CHECK(!memcmp(out, expected, MOST * weft_dtype_size(dtype)));
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    uint64_t state = 9;

    for (int d = 0; d < 3; d++) {
        for (int64_t elements = 1; elements < MOST; elements += elements < 70 ? 1 : 101)
            for (int64_t rows = 0; rows < 10; rows++) {
                check_sum(types[d], rows, elements, 1, &state);
                if (rows)
                    check_scale(types[d], rows, elements, 1, &state);
            }
        check_sum(types[d], ROWS, MOST, 1, &state);
        for (float size = 1e-8f; size < 1e6f; size *= 10)
            check_sum(types[d], 2, MOST, size, &state);
        for (float size = 1e-8f; size < 5; size *= 10)
            check_scale(types[d], 3, MOST, size, &state);
        check_special(types[d]);
        check_portable(types[d], &state);
    }
    return check_report("test_moe_sum");
}
