/* NaN and infinity propagate, operands are rounded to the type of the product, int8 sums wrap, C is not read
 * when beta is 0, and illegal tiles are named. */
#include "gemm/convert.h"
#include "gemm/gemm_case.h"

enum { M = 13, N = 29, K = 37 };

/* Puts `value` into A(3, 5), B(7, 11) or both sides of one product and looks where it arrives. */
static void test_propagation(const weft_core *core, weft_dtype dtype, double value, bool in_b, bool packed)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    size_t workspace_bytes = weft_gemm_workspace_bytes(bind, M, N, K, packed);
    void *workspace = aligned_alloc(128, (workspace_bytes + 127) / 128 * 128);
    void *memory = aligned_alloc(128, (weft_packed_bytes(bind, K, N) + 127) / 128 * 128);
    float a[M * K], b[K * N], d[M * N];
    char ha[sizeof(a)], hb[sizeof(b)];
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);

    for (int i = 0; i < M * K; i++)
        weft_element_set(dtype, ha, (size_t)i, 1);
    for (int i = 0; i < K * N; i++)
        weft_element_set(dtype, hb, (size_t)i, 1);
    if (in_b)
        weft_element_set(dtype, hb, 7 * N + 11, value);
    else
        weft_element_set(dtype, ha, 3 * K + 5, value);
    tile.m = M;
    tile.n = N;
    tile.k = K;
    tile.a = ha;
    tile.a_rs = K;
    tile.b = hb;
    tile.b_rs = N;
    tile.a_dtype = tile.b_dtype = dtype;
    tile.d_dtype = WEFT_F32;
    tile.d[0] = d;
    tile.d_ld[0] = N;
    if (packed) {
        tile.packed_b = weft_packed_begin(bind, K, N, memory);
        weft_packed_fill(bind, memory, hb, dtype, N, 1, 0, K, 0, N);
    }
    weft_gemm_run_tile(&tile, workspace);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            float x = d[i * N + j];
            bool hit = in_b ? j == 11 : i == 3;

            if (!hit)
                CHECK(x == K);
            else
                CHECK(isnan(value) ? isnan(x) : isinf(x) && (x > 0) == (value > 0));
        }
    }
    free(workspace);
    free(memory);
}

static void test_illegal(const weft_core *core)
{
    const weft_binding *bind = weft_core_binding(core, WEFT_F32, false);
    weft_gemm_tile good = weft_gemm_tile_init(bind, WEFT_F32), bad;
    float memory[64] = {0};
    _Alignas(128) char blob[4096];
    weft_error_text error;

    good.m = good.n = good.k = 2;
    good.a = good.b = good.d[0] = memory;
    good.a_rs = good.b_rs = good.d_ld[0] = 2;
    CHECK_INT(weft_gemm_tile_check(&good, &error), WEFT_OK);
    bad = good;
    bad.a_rs = bad.a_cs = 2;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "strides 2 and 2");
    bad = good;
    bad.b_dtype = WEFT_I32;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "B is int32");
    bad = good;
    bad.d_ld[0] = 1;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    bad = good;
    bad.d_count = 0;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    bad = good;
    bad.k = -1;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    bad = good;
    bad.d_dtype = WEFT_I64;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    bad = good;
    bad.packed_b = weft_packed_begin(bind, 2, 2, blob);
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_OK);
    bad.packed_n0 = 1;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    bad.packed_n0 = 0;
    bad.k = 3;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    memset(blob, 0, sizeof(blob));
    bad.k = 2;
    CHECK_INT(weft_gemm_tile_check(&bad, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, bind->kernel->name);
}

/* int8 sums beyond int32 wrap, by every way a tile can take. */
static void test_wrap(const weft_core *core, int64_t m, bool transposed, bool raw)
{
    enum { DEPTH = 140000, WIDTH = 13 };
    const weft_binding *bind = weft_core_binding(core, WEFT_I8, false);
    weft_gemm_tile tile = weft_gemm_tile_init(bind, WEFT_I8);
    void *workspace =
        aligned_alloc(128, (weft_gemm_workspace_bytes(bind, m, WIDTH, DEPTH, false) + 127) / 128 * 128);
    int8_t *a = malloc((size_t)m * DEPTH), *b = malloc((size_t)WIDTH * DEPTH);
    int32_t *d = malloc((size_t)(m * WIDTH) * sizeof(int32_t));

    memset(a, -128, (size_t)m * DEPTH);
    memset(b, -128, (size_t)WIDTH * DEPTH);
    tile.m = m;
    tile.n = WIDTH;
    tile.k = DEPTH;
    tile.a = a;
    tile.a_rs = DEPTH;
    tile.b = b;
    tile.b_rs = transposed ? 1 : WIDTH;
    tile.b_cs = transposed ? DEPTH : 1;
    tile.raw = raw;
    tile.d[0] = d;
    tile.d_ld[0] = WIDTH;
    weft_gemm_run_tile(&tile, workspace);
    for (int64_t i = 0; i < m * WIDTH; i++)
        CHECK_INT(d[i], (int32_t)(128u * 128u * DEPTH));
    free(workspace);
    free(a);
    free(b);
    free(d);
}

/* A half product of wider operands is one of operands rounded to the half type, on every core and by every
 * way a tile can take. */
static void test_rounded_operands(const weft_core *core, weft_dtype dtype, bool f16_fast, int64_t m, int form)
{
    const weft_binding *bind = weft_core_binding(core, dtype, f16_fast);
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);
    void *workspace = aligned_alloc(128, (weft_gemm_workspace_bytes(bind, m, N, K, false) + 127) / 128 * 128);
    void *memory = aligned_alloc(128, (weft_packed_bytes(bind, K, N) + 127) / 128 * 128);
    bool transposed = form & 1, packed = form & 2;
    float *a = malloc((size_t)(m * K) * sizeof(float)), *d = malloc((size_t)(m * N) * sizeof(float));
    float b[K * N];

    for (int64_t i = 0; i < m * K; i++)
        a[i] = 1 + 0x1p-13f; /* 1 in both half types */
    for (int i = 0; i < K * N; i++)
        b[i] = 1 + 0x1p-13f;
    tile.m = m;
    tile.n = N;
    tile.k = K;
    tile.a = a;
    tile.a_rs = K;
    tile.b = b;
    tile.b_rs = transposed ? 1 : N;
    tile.b_cs = transposed ? K : 1;
    tile.a_dtype = tile.b_dtype = tile.d_dtype = WEFT_F32;
    tile.d[0] = d;
    tile.d_ld[0] = N;
    if (packed) {
        tile.packed_b = weft_packed_begin(bind, K, N, memory);
        weft_packed_fill(bind, memory, b, WEFT_F32, tile.b_rs, tile.b_cs, 0, K, 0, N);
        if (dtype != WEFT_F32)
            CHECK(!weft_packed_fits(weft_core_binding(core, WEFT_F32, false), memory, K, N));
    }
    weft_gemm_run_tile(&tile, workspace);
    for (int64_t i = 0; i < m * N; i++)
        CHECK(d[i] == K);
    free(workspace);
    free(memory);
    free(a);
    free(d);
}

/*
 * A D of halves has the bits of the fp32 D, rounded: whoever rounds it, the kernel on its way from registers
 * or the epilogue. Products of halves hit every kind of tie; NaN of both signs, infinities and zeros too.
 */
static void test_rounded_results(const weft_core *core, weft_dtype dtype, int64_t m, int64_t k, int form)
{
    enum { COLS = 53 };
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    bool twice = form & 1, sums = form & 2;
    size_t bytes = (weft_gemm_workspace_bytes(bind, m, COLS, k, false) + 127) / 128 * 128;
    uint16_t *a = calloc((size_t)(m * k), 2), *b = calloc((size_t)(k * COLS), 2), *half[2], *expected;
    float *whole = calloc((size_t)m * COLS, sizeof(float)), *acc = calloc((size_t)m * COLS, sizeof(float));
    void *workspace = aligned_alloc(WEFT_GEMM_ALIGNMENT, bytes);
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);
    uint64_t seed = 77;

    half[0] = calloc((size_t)m * COLS, 2);
    half[1] = calloc((size_t)m * COLS, 2);
    expected = calloc((size_t)m * COLS, 2);
    for (int64_t i = 0; i < m * k; i++)
        weft_element_set(dtype, a, (size_t)i, (double)(check_random(&seed) % 4096) / 1024 - 2);
    for (int64_t i = 0; i < k * COLS; i++)
        weft_element_set(dtype, b, (size_t)i, (double)(check_random(&seed) % 4096) / 1024 - 2);
    for (int64_t i = 0; i < m * COLS; i++)
        acc[i] = (float)(check_random(&seed) % 65536) / 16384;
    weft_element_set(dtype, a, (size_t)k, NAN);
    a[10 * k] = 0x7fff; /* a NaN of all bits */
    weft_element_set(dtype, a, (size_t)(2 * k), INFINITY);
    weft_element_set(dtype, b, 3, -INFINITY);
    acc[5 * COLS + 7] = -NAN;
    tile.m = m;
    tile.n = COLS;
    tile.k = k;
    tile.a = a;
    tile.a_rs = k;
    tile.b = b;
    tile.b_rs = COLS;
    tile.acc = sums ? acc : NULL;
    tile.acc_ld = COLS;
    tile.d_dtype = WEFT_F32;
    tile.d[0] = whole;
    tile.d_ld[0] = tile.d_ld[1] = COLS;
    weft_gemm_run_tile(&tile, workspace);
    tile.d_dtype = dtype;
    tile.d_count = twice ? 2 : 1;
    tile.d[0] = half[0];
    tile.d[1] = half[1];
    weft_gemm_run_tile(&tile, workspace);
    weft_convert_row(dtype, expected, WEFT_F32, whole, m * COLS);
    for (int64_t i = 0; i < m * COLS; i++) {
        CHECK(half[0][i] == expected[i]);
        CHECK(!twice || half[1][i] == expected[i]);
    }
    free(workspace);
    free(a);
    free(b);
    free(half[0]);
    free(half[1]);
    free(expected);
    free(whole);
    free(acc);
}

static void test_names(void)
{
    const weft_core *core = NULL;
    weft_error_text error;

    CHECK_INT(weft_core_find("portable", &core, &error), WEFT_OK);
    CHECK(strcmp(core->name, weft_core_portable.name) == 0);
    CHECK_INT(weft_core_find("mmx", &core, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "mmx");
    CHECK_HAS(error.text, "portable");
    for (int i = 0; weft_core_at(i); i++) {
        if (!weft_core_available(weft_core_at(i))) {
            CHECK_INT(weft_core_find(weft_core_at(i)->name, &core, &error), WEFT_ERR_UNSUPPORTED);
            CHECK_HAS(error.text, "lacks");
        }
    }
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    static const double values[] = {NAN, INFINITY, -INFINITY};

    for (int i = 0; weft_core_at(i); i++) {
        if (!weft_core_available(weft_core_at(i)))
            continue;
        for (int x = 0; x < 36; x++)
            test_propagation(weft_core_at(i), types[x % 3], values[x / 3 % 3], x / 9 % 2, x / 18);
        test_illegal(weft_core_at(i));
        for (int x = 0; x < 36; x++)
            test_rounded_operands(weft_core_at(i), x % 3 ? WEFT_F16 : WEFT_BF16, x % 3 == 2,
                                  (int64_t[]){1, 3, 14}[x / 3 % 3], x / 9);
        for (int x = 0; x < 24; x++)
            test_rounded_results(weft_core_at(i), x & 1 ? WEFT_F16 : WEFT_BF16, 80 + x % 3 * 4,
                                 (int64_t[]){1, 9, 700}[x / 8], x >> 1 & 3);
        for (int x = 0; x < 12; x++)
            test_wrap(weft_core_at(i), (int64_t[]){1, 3, 14}[x / 4], x & 1, x >> 1 & 1);
    }
    test_names();
    return check_report("gemm special");
}
