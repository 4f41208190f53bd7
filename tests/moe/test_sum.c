/* The kernels of combine against sums in double, for every type, length and number of rows. */
#include <fenv.h>
#include <math.h>
#include <stdbool.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "moe/sum.h"
#include "moe/sum_kernels.h"
#include "moe/sums.h"
#include "support/check.h"

enum { ROWS = 70, MOST = 1200 };

static weft_moe_sum_kernel *chosen;

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
    chosen(dtype, out, row, weight, rows, elements);
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

/* Values that rounding or splitting a weight could lose. */
static void check_special(weft_dtype dtype)
{
    float a[9], b[9], out[9], weight[2] = {INFINITY, 1};
    const void *row[2] = {a, b};

    for (int i = 0; i < 9; i++) {
        weft_element_set(dtype, a, (size_t)i, i % 3);
        weft_element_set(dtype, b, (size_t)i, -1);
    }
    chosen(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++) {
        double value = weft_element_get(dtype, out, (size_t)i);

        CHECK(i % 3 ? value == INFINITY : value != value);
    }
    weight[0] = NAN;
    chosen(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        CHECK(weft_element_get(dtype, out, (size_t)i) != weft_element_get(dtype, out, (size_t)i));
    weight[0] = 1e6f;
    weight[1] = 1e6f;
    chosen(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        if (i % 3 == 1)
            CHECK(weft_element_get(dtype, out, (size_t)i) == 0);
    chosen(dtype, out, row, weight, 0, 9);
    for (int i = 0; i < 9; i++)
        CHECK(weft_element_get(dtype, out, (size_t)i) == 0);
    /* a NaN row stays in its column */
    weft_element_set(dtype, a, 4, NAN);
    weight[0] = weight[1] = 0.5f;
    chosen(dtype, out, row, weight, 2, 9);
    for (int i = 0; i < 9; i++)
        CHECK((weft_element_get(dtype, out, (size_t)i) != weft_element_get(dtype, out, (size_t)i)) ==
              (i == 4));
    /* and so does an infinite one, also among the last, whatever its weight is in float16 */
    for (int at = 4; at <= 8; at += 4) {
        weft_element_set(dtype, a, 4, at == 4 ? INFINITY : 0);
        weft_element_set(dtype, a, 8, at == 8 ? INFINITY : 0);
        for (int i = 0; i < 5; i++) {
            weight[0] = (float[]){0.3f, 0.7f, 1e-9f, 1e-20f, 0.5f}[i];
            chosen(dtype, out, row, weight, 2, 9);
            for (int j = 0; j < 9; j++)
                CHECK((weft_element_get(dtype, out, (size_t)j) == INFINITY) == (j == at));
        }
    }
}

/* The portable kernel is the definition: on exact data the one this CPU uses must agree with it. */
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
    chosen(dtype, out, row, weight, 5, MOST);
    weft_moe_sum_portable(dtype, expected, row, weight, 5, MOST);
    CHECK(!memcmp(out, expected, MOST * weft_dtype_size(dtype)));
    /* rows of weight one: any values, and -0 */
    for (int rows = 1; rows <= 2; rows++) {
        const float ones[2] = {1, 1};

        for (int i = 0; i < MOST; i++) {
            weft_element_set(dtype, memory[0], (size_t)i, i % 7 ? random_value(state) : -0.0);
            weft_element_set(dtype, memory[1], (size_t)i,
                             i % 5 ? random_value(state) * ldexp(1, i % 24 - 20) : -0.0);
        }
        chosen(dtype, out, row, ones, rows, MOST - 3);
        weft_moe_sum_portable(dtype, expected, row, ones, rows, MOST - 3);
        CHECK(!memcmp(out, expected, (MOST - 3) * weft_dtype_size(dtype)));
    }
}

static void check_kernel(weft_moe_sum_kernel *kernel)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    uint64_t state = 9;

    chosen = kernel;
    for (int d = 0; d < 3; d++) {
        for (int64_t elements = 1; elements < MOST; elements += elements < 140 ? 1 : 101)
            for (int64_t rows = 0; rows < 10; rows++)
                check_sum(types[d], rows, elements, 1, &state);
        check_sum(types[d], ROWS, MOST, 1, &state);
        for (float size = 1e-8f; size < 1e6f; size *= 10)
            check_sum(types[d], 2, MOST, size, &state);
        check_special(types[d]);
        check_portable(types[d], &state);
    }
}

/* What this CPU uses, and what the others of its kind do. */
int main(void)
{
    check_kernel(weft_moe_sum);
    check_kernel(weft_moe_sum_portable);
#if defined(__aarch64__)
    check_kernel(weft_moe_sum_neon);
    if (weft_cpu_has(WEFT_CPU_FP16))
        check_kernel(weft_moe_sum_fp16);
#elif defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX2))
        check_kernel(weft_moe_sum_avx2);
#endif
    return check_report("test_moe_sum");
}
