/*
 * The bounds of fp8 against what they are derived for: a model of Hopper's tensor cores, whose sums are
 * promoted to float32 every 128 of k or stay; and the CPU, which adds up in float32, under the bound of that.
 */
#include "core/dtype.h"
#include "run/bound.h"
#include "support/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { AT_ONCE = 32, PROMOTED = 128 };

static uint64_t state = 1;

static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* What is left of x above 2^-13 of the largest. */
static double cut(double x, int exponent)
{
    return ldexp(trunc(ldexp(x, 13 - exponent)), exponent - 13);
}

/* One instruction: a sum and 32 products. */
static double add_products(double sum, const double *products, int64_t count)
{
    double largest = fabs(sum), total;
    int exponent;

    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(products[i]));
    if (largest == 0)
        return 0;
    frexp(largest, &exponent);
    exponent--;
    total = cut(sum, exponent);
    for (int64_t i = 0; i < count; i++)
        total += cut(products[i], exponent);
    return total;
}

static double tensor_sum(const double *products, int64_t k, bool fast)
{
    float all = 0;
    double part = 0;

    for (int64_t i = 0; i < k; i += AT_ONCE) {
        part = add_products(part, products + i, k - i < AT_ONCE ? k - i : AT_ONCE);
        if (!fast && ((i + AT_ONCE) % PROMOTED == 0 || i + AT_ONCE >= k)) {
            all += (float)part;
            part = 0;
        }
    }
    return fast ? part : all;
}

static double fp8(weft_dtype dtype, double x)
{
    char code[8];

    weft_element_set(dtype, code, 0, x);
    return weft_element_get(dtype, code, 0);
}

/* Of any sign; or, bad, of one, with a large sum at the beginning, so that every product's last bits are cut
 * off. */
static void fill(double *products, int64_t k, weft_dtype dtype, bool bad, double *exact, double *magnitude)
{
    *exact = *magnitude = 0;
    for (int64_t i = 0; i < k; i++) {
        bool large = i % PROMOTED == 0;
        double a = bad ? (large ? 448 : 0.234375) : 4 * draw() - 2,
               b = bad ? (large ? 1 : 0.234375) : 4 * draw() - 2;

        products[i] = fp8(dtype, a) * fp8(dtype, b);
        *exact += products[i];
        *magnitude += fabs(products[i]);
    }
}

static double worst_share(weft_dtype dtype, bool fast, bool bad, int64_t k)
{
    weft_problem p = {.op = WEFT_OP_AG_GEMM,
                      .k = k,
                      .dtype = dtype,
                      .d_dtype = WEFT_F32,
                      .wire_dtype = WEFT_F32,
                      .fp8_fast = fast};
    double *products = malloc((size_t)k * sizeof(*products)), exact, magnitude, worst = 0;

    for (int i = 0; i < (bad ? 1 : 200); i++) {
        fill(products, k, dtype, bad, &exact, &magnitude);
        worst = fmax(worst, fabs(tensor_sum(products, k, fast) - exact) /
                                weft_bound_gemm_tensor(&p, 1, magnitude, exact));
    }
    free(products);
    return worst;
}

/* Never beyond the bound; what is promoted is bounded alike for any k, what stays is not; data made for it
 * come near. */
static void test_tensor_cores_stay_within(void)
{
    static const int64_t lengths[] = {1, 32, 96, 128, 200, 1024, 4096, 16384};
    weft_problem p = {
        .op = WEFT_OP_AG_GEMM, .dtype = WEFT_FP8_E4M3, .d_dtype = WEFT_F32, .wire_dtype = WEFT_F32};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (int fast = 0; fast < 2; fast++) {
            CHECK(worst_share(WEFT_FP8_E4M3, fast, false, lengths[i]) <= 1);
            CHECK(worst_share(WEFT_FP8_E5M2, fast, false, lengths[i]) <= 1);
            CHECK(worst_share(WEFT_FP8_E4M3, fast, true, lengths[i]) <= 1);
        }
    CHECK(worst_share(WEFT_FP8_E4M3, false, true, 128) > 0.3);
    p.k = 16384;
    CHECK(weft_bound_gemm_tensor(&p, 1, 1, 0) < 0.02);
    CHECK(weft_bound_gemm_tensor(&p, 1, 1, 0) > weft_bound_gemm(&p, 1, 1, 0));
    p.fp8_fast = 1;
    CHECK(weft_bound_gemm_tensor(&p, 1, 1, 0) > 0.5);
    p.op = WEFT_OP_GEMM_RS; /* a rank adds up an eighth of k */
    CHECK(weft_bound_gemm_tensor(&p, 8, 1, 0) < 0.4);
}

/* The CPU converts and adds up in float32, promoted or not: results under the bound of that, far below that
 * of the tensor cores, so that they are what GPUs' are compared with. */
static void test_cpu_is_closer(void)
{
    enum { M = 3, N = 5, K = 1000 };
    static const weft_dtype dtypes[] = {WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    weft_gemm_args args;
    uint8_t a[M * K], b[K * N];
    float d[M * N];

    for (int t = 0; t < 2; t++) {
        weft_dtype dtype = dtypes[t];
        weft_problem p = {
            .op = WEFT_OP_AG_GEMM, .k = K, .dtype = dtype, .d_dtype = WEFT_F32, .wire_dtype = WEFT_F32};

        for (int i = 0; i < M * K; i++)
            weft_element_set(dtype, a, (size_t)i, 4 * draw() - 2);
        for (int i = 0; i < K * N; i++)
            weft_element_set(dtype, b, (size_t)i, 4 * draw() - 2);
        weft_gemm_args_init(&args, dtype, M, N, K);
        args.d_dtype = WEFT_F32;
        args.a = a;
        args.b = b;
        args.d = d;
        CHECK_INT(weft_gemm(&args), WEFT_OK);
        for (int i = 0; i < M * N; i++) {
            double exact = 0, magnitude = 0;

            for (int k = 0; k < K; k++) {
                double product = weft_element_get(dtype, a, (size_t)(i / N * K + k)) *
                                 weft_element_get(dtype, b, (size_t)(k * N + i % N));
                exact += product;
                magnitude += fabs(product);
            }
            CHECK(fabs((double)d[i] - exact) <= weft_bound_gemm(&p, 1, magnitude, exact));
            CHECK(weft_bound_gemm(&p, 1, magnitude, exact) <
                  0.02 * weft_bound_gemm_tensor(&p, 1, magnitude, exact));
        }
    }
}

int main(void)
{
    test_tensor_cores_stay_within();
    test_cpu_is_closer();
    return check_report("test_run_bound");
}
