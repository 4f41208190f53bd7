/* The workspace for the largest tile suffices for every smaller one: a guard page follows it. */
#include "gemm/gemm_case.h"
#include "gemm/product.h"

static int64_t draw(uint64_t *seed, int64_t most)
{
    double u = (double)(check_random(seed) >> 11) * 0x1p-53;

    return 1 + (int64_t)((double)(most - 1) * u * u * u); /* mostly small: those are cut most differently */
}

static void run_within(const weft_core *core, weft_dtype dtype, uint64_t *seed)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    int64_t m = draw(seed, 400), n = draw(seed, 500), k = draw(seed, 12000);
    bool packs = check_random(seed) & 1, transposed = check_random(seed) & 1;
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);
    size_t size = weft_dtype_size(dtype), workspace_bytes, packed_bytes = 0;

    workspace_bytes = (weft_gemm_workspace_bytes(bind, m, n, k, packs) + 127) / 128 * 128;
    tile.m = check_random(seed) % 3 ? draw(seed, m) : m;
    tile.n = check_random(seed) % 3 ? draw(seed, n) : n;
    tile.k = check_random(seed) % 3 ? draw(seed, k) : k;

    char *a = calloc((size_t)(tile.m * tile.k), size), *b = calloc((size_t)(tile.k * tile.n), size);
    char *d = malloc((size_t)(tile.m * tile.n) * 4), *workspace = guarded_alloc(workspace_bytes),
         *packed = NULL;

    tile.a = a;
    tile.a_rs = tile.k;
    tile.b = b;
    tile.b_rs = transposed ? 1 : tile.n;
    tile.b_cs = transposed ? tile.k : 1;
    tile.d[0] = d;
    tile.d_ld[0] = tile.n;
    if (packs) {
        packed_bytes = (weft_packed_bytes(bind, tile.k, tile.n) + 127) / 128 * 128;
        packed = guarded_alloc(packed_bytes);
        tile.packed_b = weft_packed_begin(bind, tile.k, tile.n, packed);
        weft_packed_fill(bind, (weft_packed *)packed, b, dtype, tile.b_rs, tile.b_cs, 0, tile.k, 0, tile.n);
    }
    weft_gemm_run_tile(&tile, workspace);
    CHECK(weft_element_get(tile.d_dtype, d, (size_t)(tile.m * tile.n - 1)) == 0);
    guarded_free(workspace, workspace_bytes);
    if (packed)
        guarded_free(packed, packed_bytes);
    free(a);
    free(b);
    free(d);
}

/* Weights come from memory: packed ones take what their type takes, also where a kernel of another stands in.
 */
static void test_packed_bytes(const weft_core *core, weft_dtype dtype)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    int64_t k = 512, n = 4 * bind->kernel->nr;

    CHECK_INT(weft_packed_bytes(bind, k, n),
              (int64_t)sizeof(weft_packed) + k * n * (int64_t)weft_dtype_size(dtype));
}

/* Threads that share blocks of k have all columns of each, although those are enough for columns of one's
 * own. */
static void test_blocks_have_all_columns(const weft_core *core, weft_dtype dtype)
{
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);
    const int members = 16;
    tile.n = (int64_t)members * 1024;
    tile.k = 1 << 20;
    tile.a_rs = tile.k;
    tile.a_cs = tile.b_cs = 1;
    tile.b_rs = tile.n;
    for (tile.m = 1; tile.m <= 16; tile.m++)
        if (dtype != WEFT_I8 && weft_gemm_streams(&tile))
            CHECK(weft_product_member_bytes(&tile, members) >=
                  weft_gemm_workspace_bytes(bind, tile.m, tile.n, weft_gemm_block(bind, tile.k), false));
}

/* One thread has all columns, however many strips more would have. */
static void test_one_has_all_columns(const weft_core *core, weft_dtype dtype)
{
    static const int64_t shapes[][3] = {{100, 2000, 500}, {1000, 2000, 500}, {4, 4000, 700}, {64, 512, 0}};
    const weft_binding *bind = weft_core_binding(core, dtype, false);
    weft_gemm_tile tile = weft_gemm_tile_init(bind, dtype);

    for (int i = 0; i < 8; i++) {
        tile.m = shapes[i / 2][0];
        tile.n = shapes[i / 2][1];
        tile.k = shapes[i / 2][2];
        tile.a_rs = tile.k;
        tile.b_rs = i & 1 ? 1 : tile.n;
        tile.b_cs = i & 1 ? tile.k : 1;
        CHECK(weft_product_member_bytes(&tile, 1) >=
              weft_gemm_workspace_bytes(bind, tile.m, tile.n, tile.k, false));
    }
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};
    uint64_t seed = 3;
    long runs = check_repeat(60, 1000);

    for (int i = 0; weft_core_at(i); i++) {
        for (long run = 0; run < runs && weft_core_available(weft_core_at(i)); run++)
            run_within(weft_core_at(i), types[run % 4], &seed);
        for (int t = 0; t < 4; t++)
            test_packed_bytes(weft_core_at(i), types[t]);
        for (int t = 0; t < 4; t++)
            test_blocks_have_all_columns(weft_core_at(i), types[t]);
        for (int t = 0; t < 4; t++)
            test_one_has_all_columns(weft_core_at(i), types[t]);
    }
    (void)gemm_case_run;
    (void)gemm_case_plain;
    return check_report("gemm workspace");
}
