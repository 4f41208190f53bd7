/*
 * Products of few rows over several ranks on GPUs, beside their two halves one after the other, all replayed
 * from graphs:
 *
 *     weft run -n 4 -- build/bench/cuda_decode [--all]
 *
 * on the machine's GPUs in turn; ranks that share one need MPS. N = K = 8192 over all ranks, 1 to 128 rows,
 * bfloat16 with sums that travel as bfloat16. `halves` is cuBLASLt's product of this rank (weft's `unfused`
 * of one rank) and weft's own collective, as `auto` has it. --all also times every way of adding up by
 * itself. Every way is run on small integers first and compared with `halves`. Times are of the slowest rank,
 * medians of 15 rounds in which the ways take turns, µs.
 */
#include "core/clock.h"
#include "core/dtype.h"
#include "run/cuda/driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 40, ROUNDS = 15, WAYS_MOST = 9, SIZE = 8192, M_MOST = 128 };

typedef struct way {
    const char *name;
    weft_schedule schedule;
    int library, exchange, tile_m;
    weft_plan *plan, *product, *collective; /* the last two: of `halves` */
    CUgraph graph;
    CUgraphExec replay;
    double us[ROUNDS];
    double median;
    int used;
} way;

typedef struct bench {
    weft_group *all, *alone;
    const weft_cuda_driver *cu;
    CUstream stream;
    int rank, size;
    weft_op op;
    int64_t m;
    uint16_t *a, *b, *d, *whole; /* GPU memory; whole: gathered A, or sums */
    uint16_t *host;
} bench;

static int fail(const weft_group *group, const char *what)
{
    fprintf(stderr, "cuda_decode: %s: %s\n", what, weft_error(group));
    return 1;
}

/* ---- what is computed -------------------------------------------------------------------------------- */

static void shape_of(const bench *x, int64_t *a_elems, int64_t *b_elems, int64_t *d_elems, int64_t *whole)
{
    int64_t part = SIZE / x->size, rows = weft_part(x->m, x->size, x->rank).count;
    bool gathers = x->op == WEFT_OP_AG_GEMM;

    *a_elems = gathers ? rows * SIZE : x->m * part;
    *b_elems = SIZE * part;
    *d_elems = gathers ? x->m * part : x->op == WEFT_OP_GEMM_RS ? rows * SIZE : x->m * SIZE;
    *whole = x->m * SIZE;
}

static weft_problem problem_of(const bench *x, const way *w)
{
    weft_problem p;

    weft_problem_init(&p, x->op);
    p.schedule = w->schedule;
    p.m = x->m;
    p.n = p.k = SIZE;
    p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
    p.tuning.library = w->library;
    p.tuning.exchange = w->exchange;
    p.tuning.tile_m = w->tile_m;
    return p;
}

/* The product of one rank with everything there, and the collective before or behind it. */
static int halves_open(bench *x, way *w)
{
    weft_problem p, c;
    bool gathers = x->op == WEFT_OP_AG_GEMM;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    p.m = x->m;
    p.n = gathers ? SIZE / x->size : SIZE;
    p.k = gathers ? SIZE : SIZE / x->size;
    p.dtype = p.d_dtype = WEFT_BF16;
    if (weft_plan_create(x->alone, &p, &w->product) != WEFT_OK)
        return fail(x->alone, "the product");
    weft_problem_init(&c, gathers                    ? WEFT_OP_ALL_GATHER
                          : x->op == WEFT_OP_GEMM_RS ? WEFT_OP_REDUCE_SCATTER
                                                     : WEFT_OP_ALL_REDUCE);
    c.dtype = WEFT_BF16;
    c.count = x->op == WEFT_OP_GEMM_AR ? x->m * SIZE : x->m * SIZE / x->size;
    return weft_plan_create(x->all, &c, &w->collective) == WEFT_OK ? 0 : fail(x->all, "the collective");
}

static int way_open(bench *x, way *w)
{
    weft_problem p = problem_of(x, w);

    if (!w->name)
        return 0;
    if (strcmp(w->name, "halves") == 0)
        return halves_open(x, w);
    return weft_plan_create(x->all, &p, &w->plan) == WEFT_OK ? 0 : fail(x->all, w->name);
}

static weft_status enqueue(bench *x, way *w)
{
    bool gathers = x->op == WEFT_OP_AG_GEMM;
    weft_operands whole = {.size = sizeof whole, .a = x->a, .b = x->b, .d = x->d},
                  product = {.size = sizeof product,
                             .a = gathers ? x->whole : x->a,
                             .b = x->b,
                             .d = gathers ? x->d : x->whole},
                  moved = {.size = sizeof moved,
                           .send = gathers ? x->a : x->whole,
                           .recv = gathers ? x->whole : x->d};
    weft_status status;

    if (w->plan)
        return weft_run_on(w->plan, &whole, x->stream);
    status = gathers ? weft_run_on(w->collective, &moved, x->stream)
                     : weft_run_on(w->product, &product, x->stream);
    if (status != WEFT_OK)
        return status;
    return gathers ? weft_run_on(w->product, &product, x->stream)
                   : weft_run_on(w->collective, &moved, x->stream);
}

static int settle(bench *x, way *w)
{
    if (w->plan)
        return weft_run_wait(w->plan, x->stream) == WEFT_OK ? 0 : fail(x->all, w->name);
    return weft_run_wait(w->collective, x->stream) == WEFT_OK ? 0 : fail(x->all, w->name);
}

/* ---- one row of the table ---------------------------------------------------------------------------- */

/* Small integers, whose sums are exact in bfloat16: mostly zeros. */
static int fill(bench *x, uint16_t *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t z = ((uint64_t)i + seed) * 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
        z ^= z >> 32;
        weft_element_set(WEFT_BF16, x->host, (size_t)i, z % 64 == 0 ? (z >> 8) % 2 ? 1 : -1 : 0);
    }
    return weft_memcpy(x->all, to, x->host, (size_t)count * 2) == WEFT_OK ? 0 : fail(x->all, "copying");
}

/* Runs once, D poisoned before; the bits of D into `bits`. */
static int run_once(bench *x, way *w, int64_t d_elems, uint16_t *bits)
{
    memset(x->host, 0xff, (size_t)d_elems * 2);
    if (weft_memcpy(x->all, x->d, x->host, (size_t)d_elems * 2) != WEFT_OK ||
        weft_barrier(x->all) != WEFT_OK || enqueue(x, w) != WEFT_OK || settle(x, w) ||
        weft_memcpy(x->all, bits, x->d, (size_t)d_elems * 2) != WEFT_OK)
        return fail(x->all, w->name);
    return 0;
}

static int capture(bench *x, way *w)
{
    bool good = x->cu->cuStreamBeginCapture(x->stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;

    for (int i = 0; i < CALLS && good; i++)
        good = enqueue(x, w) == WEFT_OK;
    good = x->cu->cuStreamEndCapture(x->stream, &w->graph) == CUDA_SUCCESS && good;
    return good && x->cu->cuGraphInstantiate(&w->replay, w->graph, 0) == CUDA_SUCCESS
               ? 0
               : fail(x->all, "capturing a graph");
}

/* From the moment all ranks are there until this one is done. */
static int time_once(bench *x, way *w, double *us)
{
    int64_t begun;

    if (weft_barrier(x->all) != WEFT_OK)
        return fail(x->all, "a barrier");
    begun = weft_clock_ns();
    if (x->cu->cuGraphLaunch(w->replay, x->stream) != CUDA_SUCCESS || settle(x, w))
        return fail(x->all, "a graph");
    *us = (double)(weft_clock_ns() - begun) / 1e3 / CALLS;
    return 0;
}

static int by_size(const void *one, const void *other)
{
    double x = *(const double *)one, y = *(const double *)other;

    return (x > y) - (x < y);
}

static int measure(bench *x, way *ways)
{
    for (int round = -1; round < ROUNDS; round++)
        for (int i = 0; i < WAYS_MOST; i++) {
            way *w = &ways[(i + round + 1) % WAYS_MOST];
            double us;

            if (!w->used)
                continue;
            if (time_once(x, w, &us))
                return 1;
            if (round >= 0)
                w->us[round] = us;
        }
    for (int i = 0; i < WAYS_MOST; i++) {
        qsort(ways[i].us, ROUNDS, sizeof(double), by_size);
        ways[i].median = ways[i].us[ROUNDS / 2];
    }
    return 0;
}

static void way_close(bench *x, way *w)
{
    if (w->replay)
        x->cu->cuGraphExecDestroy(w->replay);
    if (w->graph)
        x->cu->cuGraphDestroy(w->graph);
    weft_plan_destroy(w->plan);
    weft_plan_destroy(w->product);
    weft_plan_destroy(w->collective);
}

static bool can(const bench *x, const way *w)
{
    if (!w->name || (strcmp(w->name, "halves") == 0 && x->op != WEFT_OP_GEMM_AR && x->m % x->size))
        return false;
    if (w->exchange && x->m < x->size && (x->op == WEFT_OP_GEMM_RS || w->exchange == 2))
        return false; /* some rank has no rows */
    return x->op == WEFT_OP_GEMM_AR || (x->op == WEFT_OP_GEMM_RS && w->exchange < 2) || !w->exchange;
}

static int row(bench *x, bool all, double *sum, int *count)
{
    way ways[WAYS_MOST] = {{.name = "auto"},
                           {.name = "halves"},
                           {.name = "unfused", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 1},
                           {.name = "splitk", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 3},
                           {.name = "fetch", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 1, .tile_m = 32},
                           {.name = "send1", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 3, .exchange = 1},
                           {.name = "send2", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 3, .exchange = 2},
                           {.name = "lt1", .schedule = WEFT_SCHEDULE_UNFUSED, .library = 1, .exchange = 1},
                           {.name = "fused", .library = 2}};
    int64_t a, b, d, whole;
    uint16_t *bits = malloc((size_t)M_MOST * SIZE * 2), *first = malloc((size_t)M_MOST * SIZE * 2);
    int status = !bits || !first, shown = 0, wrong = 0;

    shape_of(x, &a, &b, &d, &whole);
    status =
        status || fill(x, x->a, a, 1000003u * (unsigned)x->rank) || fill(x, x->b, b, 77 + (unsigned)x->rank);
    for (int i = 0; i < WAYS_MOST && !status; i++) {
        way *w = &ways[i];

        if (!can(x, w) || (i > 2 && !all))
            continue;
        w->used = true;
        status = way_open(x, w) || run_once(x, w, d, shown ? bits : first);
        if (!status && shown++ && memcmp(bits, first, (size_t)d * 2)) {
            wrong = 1;
            fprintf(stderr, "rank %d: %s differs\n", x->rank, w->name);
        }
        status = status || capture(x, w);
    }
    status = status || measure(x, ways);
    if (!status && x->rank == 0) {
        const weft_problem *chosen = weft_plan_problem(ways[0].plan);

        printf("%-8s %4d", weft_op_name(x->op), (int)x->m);
        for (int i = 0; i < WAYS_MOST; i++)
            if (ways[i].used)
                printf("  %s %.1f", ways[i].name, ways[i].median);
        if (ways[1].used) {
            printf("  halves/auto %.2f", ways[1].median / ways[0].median);
            *sum += log(ways[1].median / ways[0].median);
            ++*count;
        }
        printf("  (%s, library %d, exchange %d)%s\n", weft_schedule_name(x->op, chosen->schedule),
               chosen->tuning.library, chosen->tuning.exchange, wrong ? "  WRONG" : "");
        fflush(stdout);
    }
    for (int i = 0; i < WAYS_MOST; i++)
        if (ways[i].used)
            way_close(x, &ways[i]);
    free(bits);
    free(first);
    return status;
}

static int open_gpu(bench *x, weft_group *world)
{
    CUcontext primary;
    weft_error_text error = {0};
    int gpus = 0;

    if (weft_group_split(world, 0, weft_rank(world), &x->all) != WEFT_OK)
        return fail(world, "a group");
    if (weft_group_use_gpu(x->all, -1) != WEFT_OK)
        return fail(x->all, "a GPU");
    if (weft_cuda_gpus.count(&gpus, &error) != WEFT_OK || weft_group_threads(1, &x->alone) != WEFT_OK)
        return fail(NULL, error.text);
    if (weft_group_use_gpu(x->alone, weft_rank(world) % gpus) != WEFT_OK)
        return fail(x->alone, "a GPU");
    x->cu = weft_cuda_driver_open(&error);
    if (!x->cu || x->cu->cuDevicePrimaryCtxRetain(&primary, weft_rank(world) % gpus) != CUDA_SUCCESS ||
        x->cu->cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
        x->cu->cuStreamCreate(&x->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return fail(NULL, "a stream");
    x->rank = weft_rank(x->all);
    x->size = weft_size(x->all);
    return 0;
}

int main(int argc, char **argv)
{
    static const int rows[] = {1, 8, 32, 64, 128};
    static const weft_op ops[] = {WEFT_OP_GEMM_AR, WEFT_OP_GEMM_RS, WEFT_OP_AG_GEMM};
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    bench x = {0};
    weft_group *world;
    void *memory[4];
    size_t bytes = (size_t)M_MOST * SIZE * 2;
    int status;

    if (weft_init(&world) != WEFT_OK)
        return fail(NULL, "weft_init");
    status = open_gpu(&x, world);
    for (int i = 0; i < 4 && !status; i++)
        if (weft_alloc(x.all, i == 1 ? (size_t)SIZE * SIZE / (size_t)x.size * 2 : bytes, 0, &memory[i]) !=
            WEFT_OK)
            status = fail(x.all, "memory");
    x.host = malloc((size_t)SIZE * SIZE * 2);
    status = status || !x.host;
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]) && !status; o++) {
        double sum = 0;
        int count = 0;

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !status; i++) {
            x.op = ops[o], x.m = rows[i];
            x.a = memory[0], x.b = memory[1], x.d = memory[2], x.whole = memory[3];
            status = row(&x, all, &sum, &count);
        }
        if (!status && x.rank == 0 && count)
            printf("%s over %d ranks: halves / auto %.3f in the geometric mean\n", weft_op_name(ops[o]),
                   x.size, exp(sum / count));
    }
    free(x.host);
    if (x.stream)
        x.cu->cuStreamDestroy(x.stream);
    weft_group_free(x.alone);
    weft_group_free(x.all);
    weft_finalize(world);
    return status;
}
