/*
 * Tiles that hand their sums on in the engine's own order: a product over k in three pieces, each
 * starting from the one before, equals the product in one piece, exactly, for every core, size, epilogue and
 * number of destinations. What is handed on takes m * n elements and not one more.
 */
#include "core/round.h"
#include "gemm/gemm_case.h"

typedef struct carried_case {
    const weft_binding *bind;
    weft_dtype dtype;
    int64_t m, n, k; /* k of each piece; the middle one may be empty */
    bool bias, packed, empty;
    int destinations;
    int order;
} carried_case;

static void fill(void *data, weft_dtype dtype, int64_t count, uint64_t *seed)
{
    for (int64_t i = 0; i < count; i++)
        weft_element_set(dtype, data, (size_t)i, (double)(check_random(seed) % 5) - 2);
}

/* The piece of k from k0 on. */
static weft_gemm_tile piece(const carried_case *c, const char *a, const char *b, const weft_packed *packed,
                            int64_t all, int64_t k0, int64_t k)
{
    weft_gemm_tile tile = weft_gemm_tile_init(c->bind, c->dtype);
    size_t size = weft_dtype_size(c->dtype);

    tile.m = c->m;
    tile.n = c->n;
    tile.k = k;
    tile.order = c->order ? c->order : 1;
    tile.a = a + (size_t)k0 * size;
    tile.a_rs = all;
    tile.b = b + (size_t)(k0 * c->n) * size;
    tile.b_rs = c->n;
    tile.packed_b = packed;
    tile.packed_k0 = k0;
    return tile;
}

static void run(weft_gemm_tile *tile)
{
    size_t bytes =
        (weft_gemm_workspace_bytes(tile->bind, tile->m, tile->n, tile->k, tile->packed_b) + 127) / 128 * 128;
    void *workspace = guarded_alloc(bytes);
    weft_error_text error = {0};

    memset(workspace, 0xff, bytes);
    if (weft_gemm_tile_check(tile, &error) != WEFT_OK) {
        fprintf(stderr, "  %s\n", error.text);
        CHECK(false);
        exit(check_report("carried"));
    }
    weft_gemm_run_tile(tile, workspace);
    guarded_free(workspace, bytes);
}

static void set_end(const carried_case *c, weft_gemm_tile *tile, const void *bias, void **d, int count)
{
    tile->bias = c->bias ? bias : NULL;
    tile->d_count = count;
    for (int i = 0; i < count; i++) {
        tile->d[i] = d[i];
        tile->d_ld[i] = c->n;
    }
}

static void test_carried(const carried_case *c, uint64_t *seed)
{
    size_t size = weft_dtype_size(c->dtype), sums = (size_t)(c->m * c->n) * 4;
    weft_dtype d_dtype = c->dtype == WEFT_I8 ? WEFT_I32 : c->dtype;
    size_t d_bytes = (size_t)(c->m * c->n) * weft_dtype_size(d_dtype);
    int64_t all = 3 * c->k, middle = c->empty ? 0 : c->k;
    char *a = calloc((size_t)(c->m * all + 1), size), *b = calloc((size_t)(all * c->n + 1), size);
    void *first = guarded_alloc(sums), *second = guarded_alloc(sums);
    void *bias = calloc((size_t)c->n, 4), *d[4], *memory = NULL;
    weft_packed *packed = NULL;
    weft_gemm_tile tile;

    fill(a, c->dtype, c->m * all, seed);
    fill(b, c->dtype, all * c->n, seed);
    fill(bias, d_dtype, c->n, seed);
    if (c->empty)
        for (int64_t i = 0; i < c->m; i++)
            memset(a + (size_t)(i * all + c->k) * size, 0, (size_t)c->k * size);
    for (int i = 0; i < 4; i++) {
        d[i] = guarded_alloc(d_bytes);
        memset(d[i], 0xff, d_bytes);
    }
    if (c->packed) {
        memory = aligned_alloc(128, (weft_packed_bytes(c->bind, all, c->n) + 127) / 128 * 128);
        packed = weft_packed_begin(c->bind, all, c->n, memory);
        weft_packed_fill(c->bind, packed, b, c->dtype, c->n, 1, 0, all, 0, c->n);
    }
    tile = piece(c, a, b, packed, all, 0, all);
    set_end(c, &tile, bias, &d[3], 1);
    run(&tile);

    tile = piece(c, a, b, packed, all, 0, c->k);
    tile.raw = tile.d_in_order = true;
    tile.d[0] = first;
    run(&tile);
    tile = piece(c, a, b, packed, all, c->k, middle);
    tile.acc = first;
    tile.raw = tile.d_in_order = tile.acc_in_order = true;
    tile.d[0] = second;
    run(&tile);
    tile = piece(c, a, b, packed, all, 2 * c->k, c->k);
    tile.acc = second;
    tile.acc_in_order = true;
    set_end(c, &tile, bias, d, c->destinations);
    run(&tile);
    for (int i = 0; i < c->destinations; i++) {
        bool equal = memcmp(d[i], d[3], d_bytes) == 0;

        CHECK(equal);
        if (!equal && check_failures < 8)
            fprintf(stderr, "  %s m %lld n %lld k %lld packed %d bias %d empty %d order %d D%d of %d\n",
                    c->bind->kernel->name, (long long)c->m, (long long)c->n, (long long)c->k, c->packed,
                    c->bias, c->empty, c->order, i, c->destinations);
    }
    for (int i = 0; i < 4; i++)
        guarded_free(d[i], d_bytes);
    guarded_free(first, sums);
    guarded_free(second, sums);
    free(a);
    free(b);
    free(bias);
    free(memory);
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I8};
    uint64_t seed = 77;

    for (int i = 0; weft_core_at(i); i++) {
        const weft_core *core = weft_core_at(i);

        for (int t = 0; t < 4; t++) {
            if (!gemm_case_is_new(i, types[t]))
                continue;
            carried_case c = {.bind = weft_core_binding(core, types[t], false), .dtype = types[t]};
            weft_gemm_steps steps = weft_gemm_steps_of(c.bind);

            for (long round = 0; round < check_repeat(60, 1000); round++) {
                uint64_t r = check_random(&seed);

                c.m = 1 + (int64_t)(check_random(&seed) % 80);
                c.n = 1 + (int64_t)(check_random(&seed) % 230);
                c.k = steps.k_step * (1 + (int64_t)(check_random(&seed) % 6));
                c.packed = r & 1;
                c.bias = r >> 1 & 1;
                c.destinations = 1 + (int)((r >> 2) % 3);
                c.empty = (r >> 8) % 4 == 0;
                c.order = 1 << (r >> 16) % 5;
                test_carried(&c, &seed);
            }
            /* So wide that further destinations are written in several blocks, whole groups each. */
            for (int order = 1; order <= 5 && t < 2; order += 4) {
                c = (carried_case){.bind = c.bind, .dtype = types[t], .packed = true, .destinations = 2};
                c.m = steps.m_tile;
                c.n = (3 << 19) / 4 / c.m + 5;
                c.k = steps.k_step;
                c.order = order;
                test_carried(&c, &seed);
            }
            /* More columns than are packed at once, in groups that do not divide them. */
            c = (carried_case){.bind = c.bind, .dtype = types[t], .destinations = 2, .order = 16};
            c.m = steps.mr + 1;
            c.n = (int64_t)c.bind->nc + 5 * steps.nr + 1;
            c.k = steps.k_step;
            test_carried(&c, &seed);
            c.order = weft_gemm_order(c.bind, 4096, c.k, false);
            test_carried(&c, &seed);
            /* A k so long that sums of a group wait between pieces of it. */
            c = (carried_case){.bind = c.bind, .dtype = types[t], .packed = true, .destinations = 2};
            c.m = 2 * steps.mr + 1;
            c.n = 7 * steps.nr + 1;
            c.k = (int64_t)c.bind->kc / 3 / steps.k_step * steps.k_step;
            c.order = weft_gemm_order(c.bind, 4096, c.k, false);
            test_carried(&c, &seed);
            /* Several k blocks, several stretches, more rows than are packed at once. Halves of bf16 are
             * exact up to 256: small values keep the sums below. */
            c = (carried_case){.bind = c.bind, .dtype = types[t], .packed = true, .destinations = 2};
            if (types[t] == WEFT_F32 || types[t] == WEFT_I8) {
                c.m = steps.m_tile + steps.mr + 3;
                c.n = 5 * steps.nr + 1;
                c.k = (int64_t)c.bind->kc / steps.k_step * steps.k_step + steps.k_step;
                test_carried(&c, &seed);
                c.m = 2 * steps.mr + 1;
                c.k *= 4;
                test_carried(&c, &seed);
                c.packed = false;
                test_carried(&c, &seed);
                /* As many sums as wait for one block of rows, twice. */
                c.packed = true;
                c.m = 2 * weft_round_up(c.bind->mc, steps.mr);
                c.k = 2 * weft_round_up(c.bind->kc, steps.k_step);
                test_carried(&c, &seed);
            }
            /* The same in groups, where there are any over several k blocks. */
            c = (carried_case){.bind = c.bind, .dtype = types[t], .packed = true, .destinations = 2};
            c.m = 2 * steps.mr + 1;
            c.n = 7 * steps.nr + 1;
            c.k = 2 * (int64_t)c.bind->kc / steps.k_step * steps.k_step + steps.k_step;
            c.order = weft_gemm_order(c.bind, 4096, c.k, false);
            test_carried(&c, &seed);
        }
    }
    return check_report("carried");
}
