/*
 * The products on GPUs with a process for each rank: what a program that uses weft.h gets. The ranks take the
 * machine's GPUs in turn and share them when there are more ranks than GPUs. Each schedule is checked with
 * small integers first, as virtual ranks are, then timed on random data beside a rank's own product and
 * weft's unfused schedule, several runs in the order of a stream at a time.
 */
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/verdict.h"
#include "bench/tp/data.h"

#include "core/dtype.h"
#include "plan/plan.h"
#include "run/cuda/driver.h"
#include "cli/sets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 10, SAMPLES = 200 };

static const double SECONDS_PER_SHAPE = 4;

/* A plan on GPUs with its operands there. */
typedef struct gpu_product {
    weft_group *group;
    weft_problem problem;
    tp_layout layout;
    weft_plan *plan;
    weft_operands operands;
    size_t d_bytes;
} gpu_product;

typedef struct gpu_ranks {
    bench_context *context;
    weft_group *all, *alone; /* the ranks of the bench, and this one by itself, on GPUs */
    uint64_t seed;
} gpu_ranks;

/* ---- operands ---------------------------------------------------------------------------------------- */

/* An element of a global operand: -2 .. 2, or a number in [-1, 1). */
static double value_of(const gpu_ranks *ranks, tp_operand operand, int64_t row, int64_t col, bool integer)
{
    uint64_t z = ranks->seed + (uint64_t)operand * 0x9e3779b97f4a7c15u + (uint64_t)row * 0xd1342543de82ef95u +
                 (uint64_t)col * 0xbf58476d1ce4e5b9u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return integer ? (double)(z % 5) - 2 : (double)(z >> 40) * 0x1p-23 - 1;
}

static int fail(const gpu_product *product, const char *what)
{
    fprintf(stderr, "weft bench: rank %d: %s: %s\n", weft_rank(product->group), what,
            weft_error(product->group));
    return 1;
}

static int upload(const gpu_ranks *ranks, const gpu_product *product, tp_operand operand, bool integer)
{
    const weft_problem *p = &product->problem;
    tp_block block = operand == TP_A ? product->layout.a : product->layout.b;
    bool transposed = operand == TP_A ? p->transa : p->transb;
    size_t bytes = (size_t)(block.rows * block.cols) * weft_dtype_size(p->dtype);
    void *host = malloc(bytes + 1),
         *device = (void *)(uintptr_t)(operand == TP_A ? product->operands.a : product->operands.b);
    int status = host == NULL;

    for (int64_t i = 0; i < block.rows && !status; i++)
        for (int64_t j = 0; j < block.cols; j++)
            weft_element_set(p->dtype, host, (size_t)(transposed ? j * block.rows + i : i * block.cols + j),
                             value_of(ranks, operand, block.row0 + i, block.col0 + j, integer));
    if (!status && weft_memcpy(product->group, device, host, bytes) != WEFT_OK)
        status = fail(product, "copying operands");
    free(host);
    return status;
}

static int fill(const gpu_ranks *ranks, const gpu_product *product, bool integer)
{
    return upload(ranks, product, TP_A, integer) || upload(ranks, product, TP_B, integer);
}

/* The largest that any rank has of a matrix: every rank must ask for the same. */
static size_t most_bytes(const weft_problem *p, int world, tp_operand operand)
{
    size_t most = 0;

    for (int rank = 0; rank < world; rank++) {
        tp_layout at = tp_layout_of(p, world, rank);
        tp_block block = operand == TP_A ? at.a : operand == TP_B ? at.b : at.d;
        weft_dtype dtype = operand == TP_C ? p->d_dtype : p->dtype;
        size_t bytes = (size_t)(block.rows * block.cols) * weft_dtype_size(dtype);

        most = bytes > most ? bytes : most;
    }
    return most + 1;
}

/* `path`: a plan from a file; NULL = weft's own of the problem. */
static int product_open(gpu_product *product, weft_group *group, const weft_problem *problem,
                        const char *path)
{
    int world = weft_size(group);
    void *a, *b, *d;

    *product = (gpu_product){.group = group, .problem = *problem};
    product->layout = tp_layout_of(problem, world, weft_rank(group));
    product->d_bytes =
        (size_t)(product->layout.d.rows * product->layout.d.cols) * weft_dtype_size(problem->d_dtype);
    if (weft_alloc(group, most_bytes(problem, world, TP_A), 0, &a) != WEFT_OK ||
        weft_alloc(group, most_bytes(problem, world, TP_B), 0, &b) != WEFT_OK ||
        weft_alloc(group, most_bytes(problem, world, TP_C), 0, &d) != WEFT_OK)
        return fail(product, "allocating");
    product->operands = (weft_operands){.size = sizeof product->operands, .a = a, .b = b, .d = d};
    if ((path ? weft_plan_load(group, path, &product->plan)
              : weft_plan_create(group, problem, &product->plan)) != WEFT_OK)
        return fail(product, path ? path : weft_schedule_name(problem->op, problem->schedule));
    return 0;
}

static void product_close(gpu_product *product, bool owner)
{
    weft_plan_destroy(product->plan);
    if (owner && product->operands.size) {
        weft_free(product->group, product->operands.d);
        weft_free(product->group, (void *)(uintptr_t)product->operands.b);
        weft_free(product->group, (void *)(uintptr_t)product->operands.a);
    }
}

/* ---- checks ------------------------------------------------------------------------------------------ */

typedef struct exact_source {
    const gpu_ranks *ranks;
    const gpu_product *product;
} exact_source;

/* See gpu_result. */
static double exact_value(const void *source, int rank, int64_t row, int64_t col, double *magnitude)
{
    const gpu_ranks *ranks = ((const exact_source *)source)->ranks;
    const gpu_product *product = ((const exact_source *)source)->product;
    double sum = 0;

    (void)rank; /* the layout is that of this one */
    *magnitude = 0;
    for (int64_t k = 0; k < product->problem.k; k++) {
        double x = value_of(ranks, TP_A, product->layout.d.row0 + row, k, true) *
                   value_of(ranks, TP_B, k, product->layout.d.col0 + col, true);

        sum += x;
        *magnitude += fabs(x);
    }
    return sum;
}

/* One run on integers, D poisoned before it. 0, or 1 when it could not be made. */
static int check(const gpu_ranks *ranks, const gpu_product *product, gpu_verdict *worst)
{
    tp_block d = product->layout.d;
    char *image = malloc(product->d_bytes + 1);
    exact_source source = {ranks, product};
    gpu_result result = {.problem = &product->problem,
                         .world = weft_size(product->group),
                         .rank = weft_rank(product->group),
                         .image = image,
                         .rows = d.rows,
                         .cols = d.cols,
                         .ld = d.cols,
                         .exact = exact_value,
                         .source = &source};
    int status = image == NULL || fill(ranks, product, true);

    *worst = (gpu_verdict){0};
    if (!status) {
        memset(image, 0xff, product->d_bytes);
        if (weft_memcpy(product->group, product->operands.d, image, product->d_bytes) != WEFT_OK ||
            weft_barrier(product->group) != WEFT_OK ||
            weft_run(product->plan, &product->operands) != WEFT_OK ||
            weft_memcpy(product->group, image, product->operands.d, product->d_bytes) != WEFT_OK)
            status = fail(product, "a run");
    }
    if (!status) {
        gpu_verdict_add(worst, &result, SAMPLES, ranks->seed);
        if (ranks->context->options->eps > 0)
            worst->bound = ranks->context->options->eps;
        gpu_verdict_tell(worst);
    }
    free(image);
    return status;
}

/* ---- one shape --------------------------------------------------------------------------------------- */

static int run_often(void *argument, int iteration)
{
    gpu_product *product = argument;
    weft_status status = WEFT_OK;

    (void)iteration;
    for (int i = 0; i < CALLS && status == WEFT_OK; i++)
        status = weft_run_on(product->plan, &product->operands, WEFT_STREAM_OWN);
    if (status == WEFT_OK)
        status = weft_run_wait(product->plan, WEFT_STREAM_OWN);
    return status == WEFT_OK ? 0 : fail(product, "a run");
}

/* The product that a rank does, with everything there. */
static weft_problem local_problem(const gpu_product *product)
{
    weft_problem p = product->problem;
    bool gathers_b = p.op == WEFT_OP_AG_GEMM && p.layout == WEFT_LAYOUT_GATHER_B;
    bool sums = p.op == WEFT_OP_GEMM_RS || p.op == WEFT_OP_GEMM_AR;

    p.m = product->layout.a.rows;
    p.n = product->layout.b.cols;
    p.k = product->layout.a.cols;
    if (gathers_b)
        p.n = product->problem.n;
    else if (p.op == WEFT_OP_AG_GEMM)
        p.m = product->problem.m;
    p.d_dtype = sums ? p.wire_dtype : p.d_dtype;
    p.op = WEFT_OP_AG_GEMM;
    p.layout = WEFT_LAYOUT_GATHER_A;
    p.schedule = WEFT_SCHEDULE_DIRECT;
    p.wire_dtype = WEFT_F32;
    return p;
}

static void print_row(bench_context *context, const gpu_product *fused, const bench_contender *times,
                      double error, double bound, bool good)
{
    report *r = &context->report;
    weft_problem shown = fused->problem;
    double gemm = times[0].stats.median, unfused = times[1].stats.median, us = times[2].stats.median;

    shown.schedule = weft_plan_problem(fused->plan)->schedule;
    bench_cuda_describe(r, &shown, context->size, "a process for each rank");
    if (context->size > 1)
        report_text(r, "product", "%s",
                    weft_plan_problem(fused->plan)->tuning.library == 1 ? "cuBLASLt" : "weft");
    report_time(r, "gemm_us", times[0].stats);
    report_time(r, "comm_us", report_missing());
    report_time(r, "unfused_us", times[1].stats);
    report_time(r, "fused_us", times[2].stats);
    report_real(r, "speedup", unfused / us);
    report_real(r, "fused_over_gemm", us / gemm);
    report_hidden(r, times[0].stats, times[1].stats, times[2].stats);
    report_real(r, "link_gbs", NAN);
    report_real(r, "max_err", error);
    report_real(r, "err_bound", bound);
    report_bool(r, "ok", good);
    report_row(r);
}

static int measure_shape(const gpu_ranks *ranks, const weft_problem *problem, const char *path)
{
    bench_context *context = ranks->context;
    gpu_product fused, unfused = {0}, local = {0};
    gpu_verdict verdict = {0};
    bench_contender times[3] = {{.name = "GEMM only", .argument = &local, .run = run_often},
                                {.name = "unfused", .argument = &unfused, .run = run_often},
                                {.name = "fused", .argument = &fused, .run = run_often}};
    int status = product_open(&fused, ranks->all, problem, path) || check(ranks, &fused, &verdict);

    if (!status) {
        weft_problem own = local_problem(&fused);

        unfused = fused;
        unfused.plan = NULL;
        unfused.problem.schedule = WEFT_SCHEDULE_UNFUSED;
        if (weft_plan_create(ranks->all, &unfused.problem, &unfused.plan) != WEFT_OK)
            status = fail(&unfused, "unfused");
        status = status || product_open(&local, ranks->alone, &own, NULL) || fill(ranks, &local, false) ||
                 fill(ranks, &fused, false) ||
                 bench_measure(context, times, 3, CALLS, SECONDS_PER_SHAPE, weft_op_name(problem->op));
    }
    if (!status) {
        double wrong = bench_max(context, !gpu_verdict_good(&verdict));
        double error = bench_max(context, verdict.error), bound = bench_max(context, verdict.bound);

        print_row(context, &fused, times, error, bound, wrong == 0);
        if (path)
            report_note(&context->report, "  the row above is the plan of %s", path);
    }
    product_close(&local, true);
    product_close(&unfused, false);
    product_close(&fused, true);
    return status;
}

static int measure_schedules(const gpu_ranks *ranks, weft_problem problem)
{
    int count = 0, status = 0;
    const weft_schedule *list = weft_schedule_list(problem.op, problem.layout, &count);

    if (bench_plan_path())
        return measure_shape(ranks, &problem, NULL) || measure_shape(ranks, &problem, bench_plan_path());
    bench_note_tuned(&ranks->context->report, ranks->all, &problem);
    if (!ranks->context->options->schedule_all)
        return measure_shape(ranks, &problem, NULL);
    for (int i = 0; i < count && !status; i++) {
        problem.schedule = list[i];
        if (list[i] != WEFT_SCHEDULE_UNFUSED && list[i] != WEFT_SCHEDULE_MULTIMEM)
            status = measure_shape(ranks, &problem, NULL);
    }
    return status;
}

/* The groups on GPUs: rank by rank in turn, and this rank by itself on the one that it got. */
static int groups_open(gpu_ranks *ranks, int gpus)
{
    bench_context *context = ranks->context;
    weft_group *broken = NULL;

    if (weft_group_split(context->group, 0, context->rank, &ranks->all) != WEFT_OK)
        return bench_fail(context, "splitting");
    if (weft_group_use_gpu(ranks->all, -1) != WEFT_OK)
        broken = ranks->all;
    else if (weft_group_threads(1, &ranks->alone) != WEFT_OK)
        return bench_fail(context, "a group of one");
    else if (weft_group_use_gpu(ranks->alone, context->rank % gpus) != WEFT_OK)
        broken = ranks->alone;
    if (!broken)
        return 0;
    return context->rank ? 2 : options_error("bench", "--backend cuda: %s", weft_error(broken));
}

int bench_cuda_ranks(bench_context *context)
{
    const weft_options *options = context->options;
    gpu_ranks ranks = {.context = context, .seed = bench_random(context)};
    set_shape shapes[SETS_MOST_SHAPES] = {{options->problem.m, options->problem.n, options->problem.k, 0, 0}};
    weft_problem problem;
    weft_error_text error = {0};
    int gpus = 0, count = 1, status;

    if (bench_cuda_refuses(options, NULL, context->rank == 0))
        return 2;
    if (weft_problem_resolve(&options->problem, context->size, &problem, &error) != WEFT_OK ||
        weft_cuda_gpus.count(&gpus, &error) != WEFT_OK)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", error.text);
    if (options->set)
        count = set_shapes(options->set, problem.op, options->scale, shapes);
    context->report.columns = bench_cuda_columns;
    report_note(&context->report, "%s of %s, %d processes on %d GPU%s", options->op_name,
                weft_dtype_name(problem.dtype), context->size, gpus < context->size ? gpus : context->size,
                gpus == 1 ? "" : "s");
    bench_cuda_legend(&context->report);
    if (context->size > gpus && !bench_cuda_has_mps())
        report_note(&context->report, "ranks share a GPU: MPS does not run here, so they take turns, and "
                                      "times say little about kernels");
    status = groups_open(&ranks, gpus);
    for (int i = 0; i < count && !status; i++) {
        problem.m = shapes[i].m;
        problem.n = shapes[i].n;
        problem.k = shapes[i].k;
        status = measure_schedules(&ranks, problem);
    }
    weft_group_free(ranks.alone);
    weft_group_free(ranks.all);
    return status;
}
