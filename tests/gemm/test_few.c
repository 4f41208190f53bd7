/*
 * Few rows, where kernels stream B: every edge of rows, columns and k, packed and as it lies, exact on small
 * integers; NaN stays in its row or column; float32 gives the same bits however B lies, halves that are
 * widened too from 3 rows on.
 */
#include "gemm/gemm_case.h"

static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};

enum { PACKED, ACROSS, ALONG, LAYOUTS };

static gemm_case case_of(const weft_core *core, weft_dtype dtype, int layout, int64_t m, int64_t n, int64_t k)
{
    gemm_case c = gemm_case_plain(core, dtype, m, n, k);

    c.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32;
    c.packed_b = layout == PACKED;
    c.transpose_b = layout == ALONG;
    return c;
}

static void test_edges(const weft_core *core, weft_dtype dtype)
{
    static const int64_t wide[] = {47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 129, 191, 192, 193, 201};
    uint64_t seed = 31 + (uint64_t)dtype;
    int64_t wides = sizeof(wide) / sizeof(wide[0]);
    long rounds = check_repeat(1, 30);

    for (long round = 0; round < rounds; round++) {
        for (int64_t m = 1; m <= 17; m += m < 9 ? 1 : 8) {
            for (int64_t x = 0; x < 27 + wides; x++) {
                int64_t n = x < 27 ? x + 1 : wide[x - 27], k = 1 + (int64_t)(check_random(&seed) % 140);
                gemm_case c = case_of(core, dtype, (int)(check_random(&seed) % LAYOUTS), m, n, k);

                c.seed = check_random(&seed);
                c.slack = (int64_t)(c.seed % 3) * 5;
                c.acc = c.seed >> 8 & 1;
                c.bias = c.seed >> 9 & 1;
                gemm_case_run(&c);
            }
        }
    }
}

/* Several blocks of k, more columns than there is room for sums of, and more than stay near over a block. */
static void test_long(const weft_core *core, weft_dtype dtype)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);

    for (int layout = 0; layout < LAYOUTS; layout++) {
        for (int64_t m = 1; m <= 16; m *= 2) {
            gemm_case deep = case_of(core, dtype, layout, m, 31, 2 * bind->kc + 13);
            gemm_case wide = case_of(core, dtype, layout, m, WEFT_STREAM_BYTES / 4 / m + 29, 5);
            gemm_case both = case_of(core, dtype, layout, m, (32 << 10) / 4 / m + 77, bind->kc + 13);

            deep.acc = m == 2;
            wide.slack = m == 4 ? 3 : 0;
            gemm_case_run(&deep);
            if (layout == ACROSS && bind->kernel->across)
                gemm_case_run(&wide);
            if (layout == ACROSS && bind->kernel->across && m > 1)
                gemm_case_run(&both);
        }
    }
}

/* NaN in A(1, 5) or B(7, 11), or in row 0 if there is but one. */
static void test_nan(const weft_core *core, weft_dtype dtype, int layout, int64_t m, bool in_b)
{
    gemm_case c = case_of(core, dtype, layout, m, 53, 37);
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    int64_t row = m > 1 ? 1 : 0;
    operands o;

    make_operands(&c, bind, &o);
    if (in_b)
        weft_element_set(dtype, o.b.data, (size_t)(7 * o.b.rs + 11 * o.b.cs), NAN);
    else
        weft_element_set(dtype, o.a.data, (size_t)(row * o.a.rs + 5 * o.a.cs), NAN);
    weft_gemm_tile tile = make_tile(&c, bind, &o);

    weft_gemm_run_tile(&tile, o.workspace);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < c.n; j++) {
            if (in_b ? j == 11 : i == row)
                CHECK(isnan(matrix_get(&o.d[0], i, j)));
            else
                check_element(&c, &o, i, j);
        }
    }
    free_operands(&c, &o);
}

/* `values` that fade leave zeros, whose sign is part of the bits. Whole blocks of k, and what does not fill
 * what a kernel takes at a time. */
static void test_same_bits(const weft_core *core, weft_dtype dtype, int64_t m, gemm_values values, int64_t k)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    operands o[LAYOUTS];

    for (int layout = 0; layout < LAYOUTS; layout++) {
        gemm_case c = case_of(core, dtype, layout, m, 61, k);

        c.values = values;
        make_operands(&c, bind, &o[layout]);
        weft_gemm_tile tile = make_tile(&c, bind, &o[layout]);

        weft_gemm_run_tile(&tile, o[layout].workspace);
        CHECK(!memcmp(o[0].d[0].data, o[layout].d[0].data, o[0].d[0].bytes));
    }
    for (int layout = 0; layout < LAYOUTS; layout++) {
        gemm_case c = case_of(core, dtype, layout, m, 61, k);

        free_operands(&c, &o[layout]);
    }
}

#if defined(__x86_64__)
/* Every core that has vectors reads one row's B where it lies, of every type. */
static void test_streams(const weft_core *core, weft_dtype dtype)
{
    gemm_case c = case_of(core, dtype, ACROSS, 1, 64, 64);
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    operands o;

    make_operands(&c, bind, &o);
    weft_gemm_tile tile = make_tile(&c, bind, &o);

    CHECK(weft_gemm_streams(&tile));
    free_operands(&c, &o);
}
#endif

/* A B that is packed in pieces, since L2 cannot hold it, gives the bits of narrow tiles of it, which are
 * packed whole. */
static void test_pieces(const weft_core *core, weft_dtype dtype, int64_t m)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    int64_t nr = bind->kernel->nr, n = bind->mc + 2 * nr + 5, k = bind->kc - 3, step = nr + 3;
    size_t size = weft_dtype_size(dtype);
    size_t bytes = (weft_gemm_workspace_bytes(bind, m, n, k, false) + 127) / 128 * 128;
    char *a = malloc((size_t)(m * k) * size), *b = malloc((size_t)(k * n) * size);
    uint32_t *d[2] = {malloc((size_t)(m * n) * 4), malloc((size_t)(m * n) * 4)};
    void *workspace = aligned_alloc(128, bytes);
    uint64_t seed = 5;

    for (int64_t i = 0; i < m * k; i++)
        weft_element_set(dtype, a, (size_t)i,
                         (double)(check_random(&seed) % 251) / (dtype == WEFT_I8 ? 2 : 97));
    for (int64_t i = 0; i < k * n; i++)
        weft_element_set(dtype, b, (size_t)i,
                         (double)(check_random(&seed) % 241) / (dtype == WEFT_I8 ? 2 : 89));
    for (int narrow = 0; narrow < 2; narrow++) {
        for (int64_t j = 0; j < n; j += narrow ? step : n) {
            weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);

            tile.m = m;
            tile.n = narrow && n - j > step ? step : n - j;
            tile.k = tile.a_rs = k;
            tile.a = a;
            tile.b = b + (size_t)j * size;
            tile.b_rs = tile.d_ld[0] = n;
            tile.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32;
            tile.d[0] = d[narrow] + j;
            weft_gemm_run_tile(&tile, workspace);
        }
    }
    CHECK(memcmp(d[0], d[1], (size_t)(m * n) * 4) == 0);
    free(a);
    free(b);
    free(d[0]);
    free(d[1]);
    free(workspace);
}

int main(void)
{
    for (int i = 0; weft_core_at(i); i++) {
        const weft_core *core = weft_core_at(i);

        for (int t = 0; t < 4; t++) {
            if (!gemm_case_is_new(i, types[t]))
                continue;
#if defined(__x86_64__)
            if (strcmp(core->name, "portable"))
                test_streams(core, types[t]);
#endif
            test_edges(core, types[t]);
            test_long(core, types[t]);
            for (int64_t m = 9; m <= 16; m += 7)
                test_pieces(core, types[t], m);
            for (int x = 0; x < 2 * LAYOUTS && types[t] != WEFT_I8; x++) {
                for (int64_t m = 1; m <= 8; m++)
                    test_nan(core, types[t], x / 2, m, x % 2);
            }
        }
        if (!gemm_case_is_new(i, WEFT_F32) && !gemm_case_is_new(i, WEFT_BF16))
            continue;
        for (int64_t m = 1; m <= 17; m++) {
            int64_t block = weft_core_binding(core, WEFT_F32, false)->kc;

            test_same_bits(core, WEFT_F32, m, GEMM_REALS, block + 39);
            for (int64_t k = 1; k < 12; k += 5)
                test_same_bits(core, WEFT_F32, m, GEMM_FADING, k);
            test_same_bits(core, WEFT_F32, m, GEMM_FADING, block + 11);
            if (m > 2 && weft_core_binding(core, WEFT_BF16, false)->kernel->type == WEFT_F32)
                test_same_bits(core, WEFT_BF16, m, GEMM_FADING, 11);
        }
    }
    return check_report("gemm few");
}
