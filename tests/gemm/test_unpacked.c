/* Small products, A and B as they lie: every sum has the bits of the same product with B packed, and nothing
 * beyond the operands is read or written. */
#include "gemm/gemm_case.h"

#include <inttypes.h>

enum {
    ROUNDS = 400,
    SOAK_ROUNDS = 40000,
    VECTORS = 256 /* columns of one row that a loop may have at once */
};

static int64_t draw(uint64_t *seed, int64_t most)
{
    double u = (double)(check_random(seed) >> 11) * 0x1p-53;

    return 1 + (int64_t)((double)most * u * u);
}

/* A tile of the case's operands, its D from `d`. */
static weft_gemm_tile tile_of(const weft_binding *bind, const matrix *a, const matrix *b, const matrix *d)
{
    weft_gemm_tile tile = weft_gemm_tile_init(bind, WEFT_F32);

    tile.m = a->rows;
    tile.n = b->cols;
    tile.k = a->cols;
    tile.a = a->data;
    tile.a_rs = a->rs;
    tile.a_cs = a->cs;
    tile.b = b->data;
    tile.b_rs = b->rs;
    tile.b_cs = b->cs;
    tile.d[0] = d->data;
    tile.d_ld[0] = d->rs;
    return tile;
}

static void run(const weft_gemm_tile *tile)
{
    int64_t small = weft_gemm_small_bytes(tile);
    size_t bytes = weft_gemm_workspace_bytes(tile->bind, tile->m, tile->n, tile->k, tile->packed_b != NULL);

    CHECK(small <= (int64_t)bytes);
    bytes = ((small < 0 ? bytes : (size_t)small) + WEFT_GEMM_ALIGNMENT - 1) / WEFT_GEMM_ALIGNMENT *
            WEFT_GEMM_ALIGNMENT;
    char *workspace = guarded_alloc(bytes + WEFT_GEMM_ALIGNMENT);

    weft_gemm_run_tile(tile, workspace + WEFT_GEMM_ALIGNMENT);
    guarded_free(workspace, bytes + WEFT_GEMM_ALIGNMENT);
}

/* The same with B packed, where nothing is small. */
static void run_packed(weft_gemm_tile tile)
{
    void *packed =
        aligned_alloc(WEFT_GEMM_ALIGNMENT, (weft_packed_bytes(tile.bind, tile.k, tile.n) + 127) / 128 * 128);
    weft_packed *begun = weft_packed_begin(tile.bind, tile.k, tile.n, packed);

    weft_packed_fill(tile.bind, begun, tile.b, WEFT_F32, tile.b_rs, tile.b_cs, 0, tile.k, 0, tile.n);
    tile.packed_b = begun;
    run(&tile);
    free(packed);
}

/* Whether D is that of the other product, and its gaps are untouched. */
static bool is_same(const matrix *d, const matrix *want)
{
    return memcmp(d->data, want->data, d->bytes) == 0;
}

static void check_case(const weft_binding *bind, uint64_t seed)
{
    uint64_t state = seed, *s = &state;
    bool wide = check_random(s) % 4 == 0;
    int64_t m = draw(s, wide ? 6 : 90), n = draw(s, wide ? 2 * VECTORS : 120),
            k = draw(s, check_random(s) % 4 ? 90 : 3 * bind->kc / 2);
    matrix a = matrix_make(WEFT_F32, m, k, check_random(s) & 1, (int64_t)(check_random(s) % 6)),
           b = matrix_make(WEFT_F32, k, n, check_random(s) & 1, (int64_t)(check_random(s) % 6)),
           d = matrix_make(WEFT_F32, m, n, false, (int64_t)(check_random(s) % 6)),
           want = matrix_make(WEFT_F32, m, n, false, d.rs - n), bias = matrix_make(WEFT_F32, 1, n, false, 0);
    weft_gemm_tile tile = tile_of(bind, &a, &b, &d);

    matrix_fill(&a, GEMM_REALS, s);
    matrix_fill(&b, GEMM_REALS, s);
    matrix_fill(&bias, GEMM_REALS, s);
    if (check_random(s) % 3 == 0) {
        tile.alpha = 0.75f;
        tile.bias = bias.data;
        tile.act = check_random(s) & 1 ? WEFT_ACT_RELU : WEFT_ACT_GELU;
    }
    run(&tile);
    tile.d[0] = want.data;
    run_packed(tile);
    CHECK(is_same(&d, &want));
    if (!is_same(&d, &want))
        fprintf(stderr, "test_gemm_unpacked: %s, seed %" PRIu64 ": %lld x %lld x %lld\n", bind->kernel->name,
                seed, (long long)m, (long long)n, (long long)k);
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&d);
    matrix_free(&want);
    matrix_free(&bias);
}

/* The kernel itself, of every number of rows and columns: onto what is there, too. */
static void check_tiles(const weft_kernel *kernel)
{
    for (int64_t m = 1; m <= kernel->mr + 1; m++)
        for (int64_t n = 1; n <= (m < 4 ? VECTORS : 2 * kernel->nr) + 1; n++) {
            uint64_t seed = (uint64_t)(m * 1000 + n);
            matrix a = matrix_make(WEFT_F32, m, 3, n & 1, 1), b = matrix_make(WEFT_F32, 3, n, false, n % 3),
                   c = matrix_make(WEFT_F32, m, n, false, 2);
            int64_t wrong = 0;

            matrix_fill(&a, GEMM_SMALL_INTEGERS, &seed);
            matrix_fill(&b, GEMM_SMALL_INTEGERS, &seed);
            matrix_fill(&c, GEMM_SMALL_INTEGERS, &seed);
            for (int add = 1; add >= 0; add--) {
                double *before = malloc((size_t)(m * n) * sizeof(double));

                for (int64_t i = 0; i < m * n; i++)
                    before[i] = add ? matrix_get(&c, i / n, i % n) : 0;
                kernel->unpacked(
                    &(weft_unpacked){m, n, 3, a.data, a.rs, a.cs, b.data, b.rs, c.data, c.rs, add});
                for (int64_t i = 0; i < m * n; i++) {
                    for (int64_t p = 0; p < 3; p++)
                        before[i] += matrix_get(&a, i / n, p) * matrix_get(&b, p, i % n);
                    wrong += matrix_get(&c, i / n, i % n) != before[i];
                }
                free(before);
            }
            CHECK_INT(wrong, 0);
            matrix_free(&a);
            matrix_free(&b);
            matrix_free(&c);
        }
}

/* What is small is told from what is not: else nothing here would be tested. */
static void test_small_is_told(const weft_binding *bind)
{
    weft_gemm_tile tile = weft_gemm_tile_init(bind, WEFT_F32);

    tile.m = tile.n = tile.k = tile.a_rs = tile.b_rs = tile.d_ld[0] = 50;
    CHECK_INT(weft_gemm_small_bytes(&tile), 0);
    tile.alpha = 2;
    CHECK(weft_gemm_small_bytes(&tile) > 0);
    tile.alpha = 1;
    tile.m = tile.n = tile.k = tile.a_rs = tile.b_rs = tile.d_ld[0] = 1500;
    CHECK_INT(weft_gemm_small_bytes(&tile), -1);
}

int main(void)
{
    int64_t rounds = check_repeat(ROUNDS, SOAK_ROUNDS);

    for (int i = 0; weft_core_at(i); i++) {
        const weft_binding *bind = weft_core_binding(weft_core_at(i), WEFT_F32, false);

        if (!bind->kernel->unpacked || !gemm_case_is_new(i, WEFT_F32))
            continue;
        check_tiles(bind->kernel);
        test_small_is_told(bind);
        for (int64_t round = 0; round < rounds; round++)
            check_case(bind, (uint64_t)(i * 1000000 + round));
    }
    return check_report("gemm unpacked");
}
