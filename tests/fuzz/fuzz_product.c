/*
 * Products nobody thought of, against float64 under the derived bound: weft_gemm, and the four products over
 * ranks that are threads, with any type, layout, transpose, gap, batch, epilogue, schedule, tile, copiers,
 * chunk, workers and form of B. Every buffer lies between guard pages, in symmetric memory too.
 *
 * usage: test_fuzz_product [seed]        runs that one problem
 *        test_fuzz_product SEED COUNT    as a rank of a job (weft run -n 8 --nodes 3+5 …), from that seed on
 */
#include "plan/plan.h"
#include "run/tp_case.h"
#include "fuzz/job.h"
#include "support/ranks.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>

enum {
    SYMMETRIC_BYTES = 8 << 20,
    ELEMENTS_MOST = 30000,
    LARGE_MOST = 4 << 20, /* multiplications of a product that blocks of k, of rows and of columns cut */
    SAMPLES = 400,        /* elements of such a D that are compared, and its corners */
    THREADS_MOST = 5,
    WORLDS = 5
};

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

/* Often small, sometimes a panel and one more, seldom nothing. */
static int64_t extent(uint64_t *s)
{
    static const int64_t edges[] = {0,  1,  2,  3,  4,  7,  8,  9,  11, 12, 13,
                                    15, 16, 17, 24, 25, 31, 32, 33, 64, 65, 96};

    return pick(s, 3) ? edges[pick(s, sizeof(edges) / sizeof(*edges))] : (int64_t)pick(s, 200);
}

static void pick_extents(uint64_t *s, int64_t *m, int64_t *n, int64_t *k, int64_t *l)
{
    do {
        *m = extent(s);
        *n = extent(s);
        *k = pick(s, 8) == 0 ? extent(s) * 11 : extent(s);
        *l = pick(s, 6) == 0 ? (int64_t)pick(s, 4) : 1;
    } while (*m * *n * *k * *l > ELEMENTS_MOST);
}

/* One of them long enough for several blocks or threads, by turns. */
static void pick_large_extents(uint64_t *s, int64_t *m, int64_t *n, int64_t *k)
{
    int64_t *extents[] = {m, n, k};

    do {
        int longest = (int)pick(s, 3);

        for (int i = 0; i < 3; i++)
            *extents[i] = i == longest ? 200 + (int64_t)pick(s, 4000) : 1 + extent(s) + (int64_t)pick(s, 100);
    } while (*m * *n * *k > LARGE_MOST);
}

static float pick_factor(uint64_t *s)
{
    static const float factors[] = {0, 1, 1, -1, 2, 0.5f, -0.375f};

    return factors[pick(s, sizeof(factors) / sizeof(*factors))];
}

/* ---- one rank ------------------------------------------------------------------------------------- */

typedef struct matrix {
    guarded memory;
    weft_dtype dtype;
    bool transposed;
    int64_t ld, stride;
    size_t bytes;
} matrix;

static matrix make_matrix(uint64_t *s, weft_dtype dtype, int64_t rows, int64_t cols, int64_t l,
                          bool transposed)
{
    int64_t major = transposed ? cols : rows, minor = transposed ? rows : cols;
    matrix a = {
        .dtype = dtype, .transposed = transposed, .ld = minor + (pick(s, 3) ? 0 : (int64_t)pick(s, 5))};
    size_t size = weft_dtype_size(dtype);

    a.stride = major * a.ld + (pick(s, 3) ? 0 : (int64_t)pick(s, 7));
    if (major && minor && l)
        a.bytes = (size_t)((l - 1) * a.stride + (major - 1) * a.ld + minor) * size;
    a.memory = guarded_make(a.bytes);
    memset(a.memory.data, 0xff, a.bytes); /* NaN: what lies in the gaps must not matter */
    for (int64_t b = 0; b < l && major && minor; b++)
        for (int64_t i = 0; i < major; i++)
            for (int64_t j = 0; j < minor; j++) {
                uint64_t r = check_random(s);
                bool integer = dtype == WEFT_I8 || dtype == WEFT_I32;

                weft_element_set(dtype, a.memory.data, (size_t)(b * a.stride + i * a.ld + j),
                                 integer ? (double)(r % 255) - 127 : (double)(r >> 11) * 0x1p-52 - 1);
            }
    return a;
}

static double get(const matrix *a, int64_t b, int64_t i, int64_t j)
{
    return weft_element_get(a->dtype, a->memory.data,
                            (size_t)(b * a->stride + (a->transposed ? j * a->ld + i : i * a->ld + j)));
}

/* As the product sees it: rounded to its type. */
static double operand(const matrix *a, weft_dtype dtype, int64_t b, int64_t i, int64_t j)
{
    uint64_t slot = 0;

    if (weft_dtype_is_fp8(a->dtype)) /* read as it is */
        return get(a, b, i, j);
    weft_element_set(dtype, &slot, 0, get(a, b, i, j));
    return weft_element_get(dtype, &slot, 0);
}

typedef struct local_case {
    weft_gemm_args args;
    matrix a, b, c, d, bias, row_scale, col_scale;
    guarded packed;
    bool in_place, packs;
} local_case;

static weft_dtype pick_real(uint64_t *s)
{
    return (weft_dtype)pick(s, 3);
}

static weft_dtype pick_fp8(uint64_t *s)
{
    return pick(s, 2) ? WEFT_FP8_E4M3 : WEFT_FP8_E5M2;
}

static weft_dtype pick_multiplied(uint64_t *s)
{
    return pick(s, 5) == 0 ? pick_fp8(s) : (weft_dtype)pick(s, 4);
}

static void make_local(uint64_t *s, local_case *t, bool large)
{
    weft_gemm_args *g = &t->args;
    weft_dtype dtype = pick_multiplied(s);
    bool fp8 = weft_dtype_is_fp8(dtype);
    int64_t m, n, k, l;

    pick_extents(s, &m, &n, &k, &l);
    if (large)
        pick_large_extents(s, &m, &n, &k);
    weft_gemm_args_init(g, dtype, m, n, k);
    g->l = l;
    if (dtype != WEFT_I8 && pick(s, 3) == 0) {
        g->a_dtype = fp8 || pick(s, 4) == 0 ? pick_fp8(s) : pick_real(s);
        g->b_dtype = fp8 || pick(s, 4) == 0 ? pick_fp8(s) : pick_real(s);
    }
    g->d_dtype = dtype == WEFT_I8 && pick(s, 2) ? (pick(s, 2) ? WEFT_I8 : WEFT_I32)
                 : fp8 && pick(s, 2)            ? pick_fp8(s)
                                                : pick_real(s);
    g->transa = (int)pick(s, 2);
    g->transb = (int)pick(s, 2);
    g->threads = (int)pick(s, large ? THREADS_MOST + 1 : 3);
    g->f16_fast = dtype == WEFT_F16 && pick(s, 4) == 0;
    t->packs = pick(s, 3) == 0;
    t->a = make_matrix(s, g->a_dtype, m, k, l, g->transa);
    t->b = make_matrix(s, g->b_dtype, k, n, t->packs ? 1 : l, g->transb);
    t->c = make_matrix(s, g->d_dtype, m, n, l, false);
    t->d = make_matrix(s, g->d_dtype, m, n, l, false);
    t->bias = make_matrix(s, g->d_dtype, 1, n, 1, false);
    t->row_scale = make_matrix(s, WEFT_F32, 1, m, 1, false);
    t->col_scale = make_matrix(s, WEFT_F32, 1, n, 1, false);
    if (pick(s, 2)) {
        g->alpha = pick_factor(s);
        g->beta = pick_factor(s);
        g->act = (weft_act)pick(s, 4);
        g->bias = pick(s, 2) ? t->bias.memory.data : NULL;
        g->row_scale = pick(s, 3) ? NULL : t->row_scale.memory.data;
        g->col_scale = pick(s, 3) ? NULL : t->col_scale.memory.data;
    }
    t->in_place = g->beta != 0 && pick(s, 2);
    g->a = t->a.memory.data;
    g->lda = t->a.ld;
    g->stride_a = t->a.stride;
    g->b = t->b.memory.data;
    g->ldb = t->b.ld;
    g->stride_b = t->b.stride;
    g->c = t->in_place ? t->d.memory.data : t->c.memory.data;
    g->ldc = t->in_place ? t->d.ld : t->c.ld;
    g->stride_c = t->in_place ? t->d.stride : t->c.stride;
    g->d = t->d.memory.data;
    g->ldd = t->d.ld;
    g->stride_d = t->d.stride;
}

/* float64, and how far from it: D as it was before is `before`. */
static bool element_is_right(const local_case *t, const matrix *before, int64_t b, int64_t i, int64_t j)
{
    const weft_gemm_args *g = &t->args;
    weft_problem p;
    double scale = g->alpha * (g->row_scale ? (double)g->row_scale[i] : 1) *
                   (g->col_scale ? (double)g->col_scale[j] : 1);
    double sum = 0, magnitude = 0, got = get(&t->d, b, i, j), exact, bound;

    for (int64_t x = 0; x < g->k; x++) {
        double product = operand(&t->a, g->dtype, b, i, x) * operand(&t->b, g->dtype, t->packs ? 0 : b, x, j);

        sum += product;
        magnitude += fabs(product);
    }
    exact = scale * sum;
    magnitude *= fabs(scale);
    if (g->beta != 0) {
        double c = t->in_place ? get(before, b, i, j) : get(&t->c, b, i, j);

        exact += g->beta * c;
        magnitude += fabs(g->beta * c);
    }
    if (g->bias) {
        exact += get(&t->bias, 0, 0, j);
        magnitude += fabs(get(&t->bias, 0, 0, j));
    }
    exact = tp_activate(g->act, exact);
    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.k = g->k + 4; /* the scales round too */
    p.dtype = g->dtype;
    p.d_dtype = g->d_dtype;
    p.act = g->act;
    if (g->d_dtype == WEFT_I8)
        exact = exact > 127 ? 127 : exact < -128 ? -128 : exact;
    if (weft_dtype_is_fp8(g->d_dtype)) {
        double most = g->d_dtype == WEFT_FP8_E4M3 ? 448 : 57344;

        exact = exact > most ? most : exact < -most ? -most : exact;
    }
    bound = weft_bound_gemm(&p, 1, magnitude, exact);
    if (g->f16_fast) /* sums of float16 inside a block of k */
        bound += 2 * (double)g->k * 0x1p-11 * magnitude + 0x1p-14;
    if (g->d_dtype == WEFT_F16 && isinf(got)) /* beyond the last float16 */
        return fabs(exact) + bound >= 65520 && (got > 0) == (exact > 0);
    return fabs(got - exact) <= bound;
}

/* All elements of a small D; of a large one its corners, and others that `s` picks. */
static int64_t count_wrong(const local_case *t, const matrix *before, bool large, uint64_t *s)
{
    const weft_gemm_args *g = &t->args;
    uint64_t m = (uint64_t)g->m, n = (uint64_t)g->n;
    int64_t wrong = 0;

    for (int64_t b = 0; b < g->l; b++) {
        for (int64_t i = 0; i < g->m && !large; i++)
            for (int64_t j = 0; j < g->n; j++)
                wrong += !element_is_right(t, before, b, i, j);
        for (uint64_t i = 0; i < SAMPLES && large; i++) {
            bool corner = i < 4;

            wrong +=
                !element_is_right(t, before, b, corner ? (int64_t)(i % 2 * (m - 1)) : (int64_t)pick(s, m),
                                  corner ? (int64_t)(i / 2 * (n - 1)) : (int64_t)pick(s, n));
        }
    }
    return wrong;
}

static bool run_local(uint64_t seed, bool large)
{
    uint64_t s = seed;
    local_case t = {0};
    matrix before;
    int64_t wrong = 0;
    weft_status status = WEFT_OK;

    make_local(&s, &t, large);
    before = t.d;
    before.memory = guarded_make(t.d.bytes);
    memcpy(before.memory.data, t.d.memory.data, t.d.bytes);
    if (t.packs) {
        size_t bytes = (weft_pack_bytes(&t.args) + 127) / 128 * 128;

        t.packed = guarded_make(bytes);
        if (bytes)
            status = weft_pack(&t.args, t.packed.data, &t.args.packed_b);
        t.args.b = NULL;
    }
    if (status == WEFT_OK)
        status = weft_gemm(&t.args);
    if (status == WEFT_OK)
        wrong = count_wrong(&t, &before, large, &s);
    CHECK_INT(status, WEFT_OK);
    CHECK_INT(wrong, 0);
    if (status || wrong)
        fprintf(stderr,
                "test_fuzz_product: seed %" PRIu64
                ": weft_gemm %lld x %lld x %lld l %lld dtype %d a %d b %d d %d "
                "trans %d%d packed %d alpha %g beta %g bias %d scales %d%d act %d fast %d threads %d: %s\n",
                seed, (long long)t.args.m, (long long)t.args.n, (long long)t.args.k, (long long)t.args.l,
                t.args.dtype, t.args.a_dtype, t.args.b_dtype, t.args.d_dtype, t.args.transa, t.args.transb,
                t.packs, (double)t.args.alpha, (double)t.args.beta, !!t.args.bias, !!t.args.row_scale,
                !!t.args.col_scale, t.args.act, t.args.f16_fast, t.args.threads,
                status ? weft_error(NULL) : "wrong");
    matrix *all[] = {&t.a, &t.b, &t.c, &t.d, &t.bias, &t.row_scale, &t.col_scale, &before};

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        guarded_drop(&all[i]->memory);
    guarded_drop(&t.packed);
    return !status && !wrong;
}

/* ---- over ranks ----------------------------------------------------------------------------------- */

static tp_case make_ranks(uint64_t seed)
{
    static const weft_layout layouts[] = {WEFT_LAYOUT_GATHER_A, WEFT_LAYOUT_GATHER_B,
                                          WEFT_LAYOUT_SCATTER_ROWS, WEFT_LAYOUT_SCATTER_COLS,
                                          WEFT_LAYOUT_DEFAULT};
    uint64_t state = seed, *s = &state;
    tp_case t = {.seed = seed, .integers = pick(s, 3) == 0};
    weft_problem *p = &t.problem;
    const weft_schedule *list;
    int count;

    weft_problem_init(p, (weft_op)pick(s, 4));
    p->layout = p->op <= WEFT_OP_GEMM_RS ? layouts[2 * p->op + pick(s, 2)] : WEFT_LAYOUT_DEFAULT;
    list = weft_schedule_list(p->op, p->layout, &count);
    p->schedule = pick(s, 5) ? list[pick(s, (uint64_t)count)] : WEFT_SCHEDULE_AUTO;
    p->dtype = pick_multiplied(s);
    p->d_dtype = p->dtype == WEFT_I8 ? (pick(s, 2) ? WEFT_I32 : pick_real(s)) : pick_real(s);
    pick_extents(s, &p->m, &p->n, &p->k, &p->l);
    if (t.integers && p->d_dtype != WEFT_I32) /* whose sums must be exact */
        p->d_dtype = WEFT_F32;
    p->transa = (int)pick(s, 2);
    p->transb = (int)pick(s, 2);
    if (pick(s, 3) == 0) {
        p->granule_m = (int64_t)pick(s, 20);
        p->granule_n = (int64_t)pick(s, 40);
        p->granule_k = (int64_t)pick(s, 40);
    }
    p->b_form = (weft_b_form)pick(s, 3);
    if (p->layout == WEFT_LAYOUT_GATHER_B && p->schedule != WEFT_SCHEDULE_DIRECT &&
        p->b_form == WEFT_B_PREPACKED)
        p->b_form = WEFT_B_PACK_IN_RUN;
    if (pick(s, 2)) {
        p->alpha = t.integers ? (float)(1 + pick(s, 2)) : pick_factor(s);
        p->beta = t.integers ? (float)pick(s, 2) : pick_factor(s);
        p->bias = (int)pick(s, 2);
        p->act = (weft_act)pick(s, t.integers ? 2 : 4);
    }
    if (pick(s, 2)) {
        p->tuning.tile_m = (int64_t)pick(s, 40);
        p->tuning.tile_n = (int64_t)pick(s, 60);
        p->tuning.tile_k = (int64_t)pick(s, 60);
    }
    if (pick(s, 2)) {
        p->tuning.copiers = (int)pick(s, 4);
        p->tuning.chunk_k = (int64_t)pick(s, 40);
        p->tuning.raster = (int64_t)pick(s, 4);
    }
    p->tuning.grain_n = pick(s, 3) ? 0 : (int)pick(s, 40);
    p->tuning.workers = (int)pick(s, 3);
    p->tuning.sums_stay = (int)pick(s, 2);
    p->tuning.exchange = (int)pick(s, 4);
    p->tuning.staged = (int)pick(s, 2);
    if (!t.integers && p->dtype != WEFT_I8 && pick(s, 3) == 0)
        p->wire_dtype = pick_real(s);
    t.slack = (int)pick(s, 3) * 3;
    t.symmetric = pick(s, 2) ? 31 : (unsigned)pick(s, 32);
    t.in_place = p->beta != 0 && pick(s, 2);
    t.run_values = pick(s, 3) == 0;
    if (!t.integers || p->d_dtype != WEFT_I32) { /* a half of an odd sum is rounded there */
        t.row_scale = pick(s, 4) == 0;
        t.col_scale = pick(s, 4) == 0;
    }
    return t;
}

/* Whether what was asked for by name is not to be had over nodes, and said so. */
static bool cannot_travel(const weft_group *group, const weft_problem *p, weft_status status)
{
    return status == WEFT_ERR_UNSUPPORTED && p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B &&
           p->b_form == WEFT_B_PREPACKED && p->schedule != WEFT_SCHEDULE_AUTO &&
           strstr(weft_error(group), "over several nodes: a packed operand does not travel");
}

static void run_ranks(weft_group *group, void *argument)
{
    const seeds *it = argument;
    int world = weft_size(group), rank = weft_rank(group);
    void *symmetric = NULL;

    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (long i = 0; i < it->count; i++) {
        tp_case t = make_ranks(it->first + (uint64_t)i);
        tp_instance s[TP_OPERANDS];
        weft_operands operands;
        weft_problem planned;
        weft_plan *plan = NULL;
        guarded scales, packed = {0};
        weft_status status;
        int64_t wrong = 0;
        bool refused;

        tp_place(&t, world, rank, symmetric, s);
        for (int which = 0; which < TP_OPERANDS; which++)
            tp_fill(&t, which, &s[which]);
        operands = tp_operands(s);
        if (t.problem.b_form == WEFT_B_PREPACKED) {
            packed = tp_pack(&t, &s[TP_B]);
            operands.b = packed.data;
        }
        planned = tp_planned(&t);
        scales = guarded_make((size_t)(s[TP_D].rows.count + 2 * s[TP_D].cols.count) * sizeof(float));
        tp_values(&t, &s[TP_D], scales.data, &operands);
        status = weft_plan_create(group, &planned, &plan);
        refused = cannot_travel(group, &t.problem, status);
        if (status == WEFT_OK)
            status = weft_run(plan, &operands);
        if (status == WEFT_OK)
            wrong = tp_wrong(&t, world, &s[TP_D]);
        if (refused)
            status = WEFT_OK;
        CHECK_INT(status, WEFT_OK);
        CHECK_INT(wrong, 0);
        if (status || wrong) {
            fprintf(stderr, "test_fuzz_product: seed %" PRIu64 " over %d ranks: %s\n  ", t.seed, world,
                    status ? weft_error(group) : "wrong");
            tp_print(&t, world, rank);
        }
        weft_plan_destroy(plan);
        guarded_drop(&packed);
        guarded_drop(&scales);
        tp_release(s);
    }
    weft_free(group, symmetric);
}

/* ---- all of them ---------------------------------------------------------------------------------- */

static uint64_t running;

/* A fault at a guard page names the problem it happened in, or the first of those that ranks were at. */
static void name_seed(int number)
{
    char words[80];
    int length =
        snprintf(words, sizeof(words), "test_fuzz_product: signal %d at seed %" PRIu64 " or soon after\n",
                 number, running);

    if (write(STDERR_FILENO, words, (size_t)length) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}

static void run_in_part(weft_group *group, void *argument)
{
    running = ((const seeds *)argument)->first;
    run_ranks(group, argument);
}

int main(int argc, char **argv)
{
    const long rounds = check_repeat(40, 500), local = 20, large = 3, ranked = 10;

    signal(SIGSEGV, name_seed);
    signal(SIGBUS, name_seed);
    signal(SIGABRT, name_seed);
    if (argc > 2) {
        run_in_job((seeds){strtoull(argv[1], NULL, 10), strtol(argv[2], NULL, 10)}, 10, INT_MAX, run_in_part);
        return check_report("test_fuzz_product");
    }
    if (argc > 1) {
        seeds one = {running = strtoull(argv[1], NULL, 10), 1};

        run_local(one.first, false);
        run_local(one.first, true);
        for (int world = 1; world <= WORLDS; world++)
            ranks_run(world, run_ranks, &one);
        return check_report("test_fuzz_product");
    }
    for (long round = 0; round < rounds; round++) {
        seeds next = {1000 * (uint64_t)round, ranked};

        for (long i = 0; i < local; i++)
            run_local(running = next.first + (uint64_t)i, i < large);
        running = next.first;
        ranks_run(1 + (int)(round % WORLDS), run_ranks, &next);
        next.first += 100;
        ranks_run(2, run_ranks, &next);
    }
    return check_report("test_fuzz_product");
}
