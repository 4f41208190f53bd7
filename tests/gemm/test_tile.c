/*
 * Tiles of every core this CPU has: exact on small integers for every type, transpose, stride, window and
 * epilogue, sizes 1..67 and across every block boundary; under a derived bound for real values.
 */
#include "gemm/gemm_case.h"

static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8, WEFT_FP8_E4M3, WEFT_FP8_E5M2};

/* Draws the options of a case; every pair of values turns up among a few hundred draws. */
static void draw_options(gemm_case *c, uint64_t *seed)
{
    static const float scales[] = {1, 2, -1, 0.5f};
    uint64_t r = check_random(seed);

    c->seed = *seed;
    c->transpose_a = r & 1;
    c->transpose_b = r >> 1 & 1;
    c->slack = (r >> 2) % 4 ? (int64_t)((r >> 2) % 4) * 3 - 2 : 0;
    c->packed_b = r >> 8 & 1;
    c->acc = r >> 9 & 1;
    c->raw = (r >> 10) % 4 == 0;
    c->bias = r >> 12 & 1;
    c->row_scale = (r >> 13) % 4 == 0;
    c->col_scale = (r >> 15) % 4 == 0;
    c->alpha = scales[r >> 17 & 3];
    c->beta = r >> 19 & 1 ? scales[r >> 20 & 3] : 0;
    c->c_is_d = r >> 22 & 1;
    c->act = (r >> 23) % 3 == 0 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
    c->destinations = 1 + (int)((r >> 26) % 3);
    if (c->dtype == WEFT_I8) {
        static const weft_dtype outputs[] = {WEFT_I32, WEFT_F32, WEFT_BF16, WEFT_I8, WEFT_I32, WEFT_F16};

        c->d_dtype = outputs[(r >> 30) % 6];
        if (c->d_dtype == WEFT_I32)
            c->alpha = c->alpha == 0.5f ? 2 : c->alpha; /* keep the exact result an integer */
        if (c->d_dtype == WEFT_I32 || c->d_dtype == WEFT_I8)
            c->beta = c->beta == 0.5f ? 2 : c->beta;
    } else if (weft_dtype_is_fp8(c->dtype)) {
        static const weft_dtype outputs[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_FP8_E4M3, WEFT_FP8_E5M2};

        c->d_dtype = outputs[(r >> 30) % 5];
        c->a_dtype = outputs[3 + (r >> 36) % 2];
        c->b_dtype = outputs[3 + (r >> 38) % 2];
    } else {
        static const weft_dtype sources[] = {WEFT_F32,      WEFT_F16,      WEFT_BF16,
                                             WEFT_FP8_E4M3, WEFT_FP8_E5M2, WEFT_I8};

        if ((r >> 30) % 2)
            c->d_dtype = sources[(r >> 33) % 3];
        if ((r >> 36) % 4 == 0)
            c->a_dtype = sources[(r >> 38) % 6];
        if ((r >> 41) % 4 == 0)
            c->b_dtype = sources[(r >> 43) % 6];
        c->f16_fast = c->dtype == WEFT_F16 && r >> 46 & 1;
    }
    if (c->packed_b && (r >> 48) % 2) {
        const weft_binding *bind = weft_core_binding(c->core, c->dtype, c->f16_fast);

        c->packed_k0 = (int64_t)((r >> 50) % 3) * bind->kernel->k_step;
        c->packed_n0 = (int64_t)((r >> 52) % 3) * bind->kernel->nr;
    }
}

static void test_small_sizes(const weft_core *core, weft_dtype dtype)
{
    uint64_t seed = 1000 + (uint64_t)dtype;
    long rounds = check_repeat(weft_dtype_is_fp8(dtype) ? 1 : 2, 20);

    for (long round = 0; round < rounds; round++) {
        for (int64_t m = 1; m <= 67; m++) {
            int64_t n = 1 + (int64_t)(check_random(&seed) % 67);
            gemm_case c = gemm_case_plain(core, dtype, m, n, 1 + (int64_t)(check_random(&seed) % 67));
            int64_t sizes[3] = {c.m, c.n, c.k};
            int turn = (int)(check_random(&seed) % 3); /* each dimension sweeps 1..67 in its turn */

            c.m = sizes[turn];
            c.n = sizes[(turn + 1) % 3];
            c.k = sizes[(turn + 2) % 3];
            draw_options(&c, &seed);
            gemm_case_run(&c);
        }
    }
}

/* One past, at and before the blocks of the cache, and the empty k. */
static void test_block_boundaries(const weft_core *core, weft_dtype dtype, bool f16_fast)
{
    const weft_binding *bind = weft_core_binding(core, dtype, f16_fast);
    uint64_t seed = 77;

    for (int delta = -1; delta <= 1; delta++) {
        int64_t sizes[][3] = {
            {bind->mc + delta, 2 * bind->kernel->nr + delta, 9},
            {2 * bind->mc + delta, 5, bind->kc + delta},
            {3, bind->nc + delta, 5},
            {bind->kernel->mr + 1, bind->kernel->nr - 1, 3 * bind->kc + delta},
            {bind->kernel->mr, 97 + bind->kernel->nr, 2 * bind->kc + delta},
            {1, 7, bind->kc + delta},
            {WEFT_GEMM_STREAM_ROWS + bind->kernel->mr + 3, 2 * bind->kernel->nr + 5, 5 * bind->kc + delta},
        };
        size_t count = sizeof(sizes) / sizeof(sizes[0]) - (dtype != WEFT_F32); /* whose D holds sums */

        for (size_t s = 0; s < count; s++) {
            for (int plain = 0; plain < 2; plain++) {
                gemm_case c = gemm_case_plain(core, dtype, sizes[s][0], sizes[s][1], sizes[s][2]);

                if (!plain)
                    draw_options(&c, &seed);
                c.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32; /* long sums do not fit a half exactly */
                c.alpha = 1;
                c.beta = c.beta == 0.5f ? 2 : c.beta;
                c.a_dtype = c.b_dtype = dtype;
                c.f16_fast = f16_fast;
                if (f16_fast)
                    c.values = GEMM_REALS;
                c.packed_k0 = c.packed_n0 = 0;
                gemm_case_run(&c);
            }
        }
    }
    for (int acc = 0; acc < 2; acc++) {
        gemm_case c = gemm_case_plain(core, dtype, 5, 131, 0);

        c.acc = acc;
        c.bias = true;
        c.destinations = 2;
        c.packed_b = acc;
        gemm_case_run(&c);
    }
}

static void test_reals(const weft_core *core, weft_dtype dtype)
{
    static const weft_act acts[] = {WEFT_ACT_NONE, WEFT_ACT_RELU, WEFT_ACT_GELU, WEFT_ACT_SILU};
    uint64_t seed = 5;

    for (int round = 0; round < 12; round++) {
        gemm_case c = gemm_case_plain(core, dtype, 1 + (int64_t)(check_random(&seed) % 40),
                                      1 + (int64_t)(check_random(&seed) % 200),
                                      1 + (int64_t)(check_random(&seed) % 900));

        draw_options(&c, &seed);
        c.values = GEMM_REALS;
        c.act = acts[round % 4];
        if (c.dtype == WEFT_I8 && c.d_dtype != WEFT_I32)
            c.alpha = 0.001f; /* into the range of int8 and fp16 */
        gemm_case_run(&c);
    }
}

int main(void)
{
    for (int i = 0; weft_core_at(i); i++) {
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
            if (!gemm_case_is_new(i, types[t]))
                continue;
            test_small_sizes(weft_core_at(i), types[t]);
            test_block_boundaries(weft_core_at(i), types[t], false);
            test_reals(weft_core_at(i), types[t]);
        }
        if (gemm_case_is_new(i, WEFT_F16))
            test_block_boundaries(weft_core_at(i), WEFT_F16, true);
    }
    return check_report("gemm tile");
}
