/*
 * GELU and SiLU over all of float32: a relative error of at most 2^-20 as long as the result is a normal
 * number, an absolute one of at most 2^-139 below; the right limits, and NaN stays NaN.
 */
#include "gemm/epilogue.h"
#include "support/check.h"

#include <math.h>
#include <stdbool.h>

static double exact(weft_act act, double x)
{
    return act == WEFT_ACT_GELU ? 0.5 * x * erfc(-x * M_SQRT1_2) : x / (1 + exp(-x));
}

static void check_value(weft_act act, float x)
{
    double want = exact(act, x), error = fabs(weft_act_apply(act, x) - want);
    bool good = error <= (fabs(want) >= 0x1p-126 ? 0x1p-20 * fabs(want) : 0x1p-139);

    CHECK(good);
    if (!good && check_failures < 8)
        fprintf(stderr, "  act %d of %.9g is %.9g, expected %.9g\n", (int)act, (double)x,
                (double)weft_act_apply(act, x), want);
}

int main(void)
{
    static const weft_act acts[] = {WEFT_ACT_GELU, WEFT_ACT_SILU};

    for (int a = 0; a < 2; a++) {
        for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 99991) { /* every exponent, both signs */
            uint32_t word = (uint32_t)bits;
            float x;

            memcpy(&x, &word, sizeof(x));
            if (isfinite(x))
                check_value(acts[a], x);
        }
        for (int i = -20000; i <= 20000; i++) /* where they bend, and where they fade */
            check_value(acts[a], (float)i * 0.005f);
        CHECK(weft_act_apply(acts[a], INFINITY) == INFINITY);
        CHECK(weft_act_apply(acts[a], -INFINITY) == 0);
        CHECK(weft_act_apply(acts[a], -3e38f) == 0);
        CHECK(isnan(weft_act_apply(acts[a], NAN)));
    }
    return check_report("gemm act");
}
