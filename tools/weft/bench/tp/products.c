/*
 * The four tensor-parallel products: the schedule asked for beside its parts (the local product, the
 * collective), the unfused baseline and the outside peer, all in one run.
 */
#include "bench/cuda/bench_cuda.h"
#include "bench/tp/bench_tp.h"
#include "cli/sets.h"

#include "core/dtype.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double SECONDS_PER_SHAPE = 6;

static const report_column columns[] = {
    {"M", "m", REPORT_PLAIN, 6},
    {"N", "n", REPORT_PLAIN, 6},
    {"K", "k", REPORT_PLAIN, 6},
    {"GEMM only µs", "gemm_us", REPORT_TIME, 12},
    {"comm only µs", "comm_us", REPORT_TIME, 12},
    {"unfused µs", "unfused_us", REPORT_TIME, 12},
    {"fused µs", "fused_us", REPORT_TIME, 12},
    {"speedup", "speedup", REPORT_RATIO, 7},
    {"fused÷GEMM", "fused_over_gemm", REPORT_RATIO, 10},
    {"hidden", "hidden", REPORT_PLAIN, 6},
    {"peer µs", "peer_us", REPORT_TIME, 12},
    {"vs peer", "peer_speedup", REPORT_RATIO, 7},
    {"error", "max_err", REPORT_ERROR, 7},
    {"bound", "err_bound", REPORT_ERROR, 7},
    {"ok", "ok", REPORT_PLAIN, 3},
    {"schedule", "shown_schedule", REPORT_PLAIN, 8},
    {0},
};

/* The columns of this run: those of the peer only where there is one. */
static const report_column *choose_columns(bool peer)
{
    static report_column shown[sizeof columns / sizeof columns[0]];
    int count = 0;

    for (const report_column *c = columns; c->key; c++)
        if (peer || strncmp(c->key, "peer", 4) != 0)
            shown[count++] = *c;
    shown[count] = (report_column){0};
    return shown;
}

typedef struct tp_bench {
    bench_context *context;
    tp_data data;
    tp_local local;
    tp_comm comm;
    tp_fused unfused, fused[TP_MOST_FUSED];
    int fused_count;
    tp_peer gemm_peer, gemv_peer;
    bool has_peer, has_gemv;
    double torch_us; /* NaN = not measured */
    char torch_name[64];
    bench_contender contenders[TP_MOST_FUSED + 5];
    int count;
} tp_bench;

/* ---- the product itself --------------------------------------------------------------------------- */

static weft_operands operands_of(const tp_data *data, int set)
{
    const weft_problem *p = &data->problem;
    const tp_set *s = &data->set[set];
    tp_layout at = data->layout;
    weft_operands operands = {
        .size = sizeof operands, .a = s->a, .b = s->b, .c = s->c, .bias = s->bias, .d = data->d};

    if (s->packed)
        operands.b = s->packed;
    operands.lda = p->transa ? at.a.rows : at.a.cols;
    operands.ldb = p->transb ? at.b.rows : at.b.cols;
    operands.ldc = operands.ldd = at.d.cols;
    operands.stride_a = at.a.rows * at.a.cols;
    operands.stride_b = s->packed ? 0 : at.b.rows * at.b.cols;
    operands.stride_c = operands.stride_d = at.d.rows * at.d.cols;
    return operands;
}

static int fused_prepare(void *argument, int iteration)
{
    tp_fused *fused = argument;

    (void)iteration;
    tp_next_turn(fused->data);
    tp_poison(fused->data);
    return 0;
}

static int fused_run(void *argument, int iteration)
{
    tp_fused *fused = argument;
    weft_operands operands = operands_of(fused->data, tp_set_of(fused->data));

    (void)iteration;
    return weft_run(fused->plan, &operands) != WEFT_OK;
}

static int fused_check(void *argument, int iteration)
{
    tp_fused *fused = argument;

    (void)iteration;
    tp_check(fused->data, tp_set_of(fused->data), fused->data->d, fused->data->problem.d_dtype);
    return 0;
}

static int fused_open(tp_fused *fused, tp_data *data, weft_schedule schedule)
{
    weft_problem problem = data->problem;

    fused->data = data;
    fused->schedule = problem.schedule = schedule;
    if (weft_plan_create(data->context->group, &problem, &fused->plan) != WEFT_OK)
        return bench_fail(data->context, weft_schedule_name(problem.op, schedule));
    bench_note_tuned(&data->context->report, data->context->group, &problem);
    return 0;
}

/* The plan of --plan, of the problem that the operands are of. */
static int fused_load(tp_fused *fused, tp_data *data)
{
    fused->data = data;
    if (weft_plan_load(data->context->group, bench_plan_path(), &fused->plan) != WEFT_OK)
        return bench_fail(data->context, bench_plan_path());
    fused->schedule = weft_plan_problem(fused->plan)->schedule;
    return 0;
}

/* ---- one shape ------------------------------------------------------------------------------------ */

static void add(tp_bench *bench, const char *name, void *argument, int (*prepare)(void *, int),
                int (*run)(void *, int), int (*check)(void *, int))
{
    bench->contenders[bench->count++] =
        (bench_contender){.name = name, .argument = argument, .prepare = prepare, .run = run, .check = check};
}

/* What follows `unfused` in the list of contenders is the fused schedules, then the peers. */
enum { AT_GEMM, AT_COMM, AT_UNFUSED, AT_FUSED };

static int open_shape(tp_bench *bench, const weft_problem *problem)
{
    const weft_options *options = bench->context->options;
    tp_data *data = &bench->data;
    weft_schedule wanted[TP_MOST_FUSED] = {options->schedule_all ? WEFT_SCHEDULE_AUTO : problem->schedule};

    bench->fused_count = 1;
    if (options->schedule_all) {
        int count;
        const weft_schedule *list = weft_schedule_list(problem->op, problem->layout, &count);
        for (int i = 0; i < count && bench->fused_count < TP_MOST_FUSED; i++) {
            if (list[i] != WEFT_SCHEDULE_UNFUSED)
                wanted[bench->fused_count++] = list[i];
        }
    }
    if (tp_data_open(data, bench->context, problem) || tp_local_open(&bench->local, data) ||
        tp_comm_open(&bench->comm, data) || fused_open(&bench->unfused, data, WEFT_SCHEDULE_UNFUSED))
        return 1;
    add(bench, "GEMM only", &bench->local, tp_local_prepare, tp_local_run, NULL);
    add(bench, "comm only", &bench->comm, NULL, tp_comm_run, NULL);
    add(bench, "unfused", &bench->unfused, fused_prepare, fused_run, fused_check);
    for (int i = 0; i < bench->fused_count; i++) {
        if (fused_open(&bench->fused[i], data, wanted[i]))
            return 1;
        add(bench, weft_schedule_name(problem->op, wanted[i]), &bench->fused[i], fused_prepare, fused_run,
            fused_check);
    }
    if (bench_plan_path()) {
        tp_fused *loaded = &bench->fused[bench->fused_count++];

        if (fused_load(loaded, data))
            return 1;
        add(bench, weft_schedule_name(problem->op, loaded->schedule), loaded, fused_prepare, fused_run,
            fused_check);
    }
    bench->has_peer = tp_peer_can(bench->context, problem);
    bench->has_gemv = bench->has_peer && problem->m == 1;
    if (bench->has_peer && tp_peer_open(&bench->gemm_peer, data, false))
        return 1;
    if (bench->has_gemv && tp_peer_open(&bench->gemv_peer, data, true))
        return 1;
    if (bench->has_peer)
        add(bench, "OpenBLAS gemm + MPI", &bench->gemm_peer, tp_peer_prepare, tp_peer_run, tp_peer_check);
    if (bench->has_gemv)
        add(bench, "OpenBLAS gemv + MPI", &bench->gemv_peer, tp_peer_prepare, tp_peer_run, tp_peer_check);
    return 0;
}

static void close_shape(tp_bench *bench)
{
    for (int i = 0; i < bench->fused_count; i++)
        weft_plan_destroy(bench->fused[i].plan);
    weft_plan_destroy(bench->unfused.plan);
    tp_peer_close(&bench->gemm_peer);
    tp_peer_close(&bench->gemv_peer);
    tp_comm_close(&bench->comm);
    tp_local_close(&bench->local);
    tp_data_close(&bench->data);
}

/* The faster of the outside peers. */
static const bench_contender *best_peer(const tp_bench *bench)
{
    const bench_contender *best = NULL;

    for (int i = AT_FUSED + bench->fused_count; i < bench->count; i++) {
        if (!best || bench->contenders[i].stats.median < best->stats.median)
            best = &bench->contenders[i];
    }
    return best;
}

static void print_row(tp_bench *bench, int index, double worst, double wrong)
{
    report *r = &bench->context->report;
    const weft_problem *p = &bench->data.problem;
    const bench_contender *peer = best_peer(bench);
    double gemm = bench->contenders[AT_GEMM].stats.median,
           unfused = bench->contenders[AT_UNFUSED].stats.median;
    report_stats fused = bench->contenders[AT_FUSED + index].stats;
    const char *asked = weft_schedule_name(p->op, bench->fused[index].schedule);
    const weft_problem *done = weft_plan_problem(bench->fused[index].plan);
    const char *chosen = weft_schedule_name(p->op, done->schedule);

    report_text(r, "op", "%s", weft_op_name(p->op));
    report_text(r, "backend", "cpu");
    report_int(r, "ranks", bench->context->size);
    report_int(r, "m", p->m);
    report_int(r, "n", p->n);
    report_int(r, "k", p->k);
    report_int(r, "l", p->l);
    report_text(r, "dtype", "%s", weft_dtype_name(p->dtype));
    report_text(r, "schedule", "%s", asked);
    report_time(r, "gemm_us", bench->contenders[AT_GEMM].stats);
    report_time(r, "comm_us", bench->contenders[AT_COMM].stats);
    report_time(r, "unfused_us", bench->contenders[AT_UNFUSED].stats);
    report_time(r, "fused_us", fused);
    report_real(r, "speedup", unfused / fused.median);
    report_real(r, "fused_over_gemm", fused.median / gemm);
    report_hidden(r, bench->contenders[AT_GEMM].stats, bench->contenders[AT_UNFUSED].stats, fused);
    report_real(r, "max_err", worst);
    report_real(r, "err_bound", tp_bound(&bench->data));
    report_bool(r, "ok", wrong == 0);
    if (peer) {
        report_text(r, "peer", "%s%s + %s%s", bench->context->blas->name,
                    peer->argument == &bench->gemv_peer ? " gemv" : " gemm", bench->context->mpi->name,
                    p->dtype == WEFT_F32 ? "" : " (float32)");
        report_time(r, "peer_us", peer->stats);
        report_real(r, "peer_speedup", peer->stats.median / fused.median);
    }
    if (isfinite(bench->torch_us)) {
        report_text(r, "torch", "%s", bench->torch_name);
        report_real(r, "torch_us", bench->torch_us);
        report_real(r, "torch_speedup", bench->torch_us / fused.median);
    }
    report_text(r, "chosen", "%s", chosen);
    report_text(r, "check", bench->data.by_element ? "elements" : "residual");
    report_int(r, "threads", bench->context->threads);
    report_int(r, "workers", done->tuning.workers);
    report_int(r, "tile_m", done->tuning.tile_m);
    report_int(r, "tile_n", done->tuning.tile_n);
    report_int(r, "tile_k", done->tuning.tile_k);
    if (done->schedule == WEFT_SCHEDULE_CUSTOM)
        report_shown(r, "shown_schedule", "custom");
    else
        report_shown(r, "shown_schedule", "%s%s, tiles %" PRId64 " x %" PRId64 " x %" PRId64 ", %d worker%s",
                     strcmp(asked, "auto") ? "" : "auto ", chosen, done->tuning.tile_m, done->tuning.tile_n,
                     done->tuning.tile_k, done->tuning.workers, done->tuning.workers == 1 ? "" : "s");
    report_row(r);
}

static int measure_shape(bench_context *context, const weft_problem *problem)
{
    tp_bench *bench;
    char label[96];
    int status = 1, first_row = context->page.count;

    if (tp_data_fits(context, problem, tp_peer_can(context, problem)) != 0)
        return 1;
    bench = calloc(1, sizeof *bench);
    if (!bench)
        return 1;
    bench->context = context;
    snprintf(label, sizeof label, "%s %" PRId64 " x %" PRId64 " x %" PRId64, weft_op_name(problem->op),
             problem->m, problem->n, problem->k);
    if (open_shape(bench, problem) == 0 &&
        bench_measure(context, bench->contenders, bench->count, 1, SECONDS_PER_SHAPE, label) == 0) {
        double worst = bench_max(context, bench->data.worst),
               wrong = bench_max(context, (double)bench->data.wrong);
        status = isnan(worst) || isnan(wrong);
        bench->torch_us = tp_torch_us(context, problem, bench->torch_name, sizeof bench->torch_name);
        for (int i = 0; i < bench->fused_count && !status; i++)
            print_row(bench, i, worst, wrong);
        if (isfinite(bench->torch_us))
            report_note(&context->report, "%s: %.0f µs, %.2f times the first row's", bench->torch_name,
                        bench->torch_us, bench->torch_us / bench->contenders[AT_FUSED].stats.median);
        /* Rank 0 reads what the others recorded, which it cannot on another node. */
        bool drawn = context->options->html && !context->spread;
        for (int i = 0; i < bench->fused_count && !status && drawn; i++) {
            weft_operands operands = operands_of(&bench->data, 0);
            status = bench_trace_row(context, bench->fused[i].plan, &operands,
                                     bench->contenders[AT_FUSED + i].stats.median, first_row + i);
        }
        if (!status && (context->options->svg || context->options->trace)) {
            weft_operands operands = operands_of(&bench->data, 0);
            status = bench_trace(context, bench->fused[0].plan, &operands,
                                 bench->contenders[AT_FUSED].stats.median);
        }
    }
    close_shape(bench);
    free(bench);
    return status;
}

/* ---- shapes where communication matters ----------------------------------------------------------- */

/* Communication as a fraction of the local product, measured briefly. NaN when something failed. */
static double comm_share(bench_context *context, const weft_problem *problem)
{
    tp_bench *bench = calloc(1, sizeof *bench);
    double share = NAN;

    if (!bench)
        return NAN;
    bench->context = context;
    if (tp_data_open(&bench->data, context, problem) == 0 &&
        tp_local_open(&bench->local, &bench->data) == 0 && tp_comm_open(&bench->comm, &bench->data) == 0) {
        add(bench, "GEMM only", &bench->local, tp_local_prepare, tp_local_run, NULL);
        add(bench, "comm only", &bench->comm, NULL, tp_comm_run, NULL);
        if (bench_measure(context, bench->contenders, bench->count, 1, 0.4, "looking for shapes") == 0)
            share = bench->contenders[AT_COMM].stats.median / bench->contenders[AT_GEMM].stats.median;
    }
    tp_comm_close(&bench->comm);
    tp_local_close(&bench->local);
    tp_data_close(&bench->data);
    free(bench);
    return share;
}

/*
 * Communication moves elements of one face of the product, so its share falls as the third extent grows: N
 * where A is gathered, K where D is reduced or scattered. That extent is set in a few steps for each target.
 */
static int overlap_shapes(bench_context *context, const weft_problem *base,
                          set_shape shapes[SETS_MOST_SHAPES])
{
    /* 10 to 50 % in the table, where more data competes for the caches and communication takes up to a tenth
     * longer.
     */
    static const double targets[] = {0.12, 0.20, 0.30, 0.38};
    bool by_n = base->op == WEFT_OP_AG_GEMM && base->layout != WEFT_LAYOUT_GATHER_B;
    bool by_m = base->op == WEFT_OP_AG_GEMM && !by_n;
    weft_problem p = *base;
    int count = 0;

    p.m = p.n = p.k = 1024;
    int64_t *extent = by_n ? &p.n : by_m ? &p.m : &p.k;
    int64_t last = 0;
    *extent = 512;
    for (int t = 0; t < (int)(sizeof targets / sizeof targets[0]); t++) {
        for (int step = 0; step < 5; step++) {
            double share = comm_share(context, &p), next;
            if (isnan(share))
                return -1;
            if (fabs(share / targets[t] - 1) < 0.15) {
                if (*extent != last)
                    shapes[count++] = (set_shape){p.m, p.n, p.k, base->bias, base->transb};
                last = *extent;
                break;
            }
            next = rint((double)*extent * share / targets[t] / 16) * 16;
            *extent = next < 16 ? 16 : next > 16384 ? 16384 : (int64_t)next;
        }
    }
    return count;
}

int bench_tp(bench_context *context)
{
    const weft_options *options = context->options;
    weft_problem problem = options->problem;
    set_shape shapes[SETS_MOST_SHAPES] = {{problem.m, problem.n, problem.k, problem.bias, problem.transb}};
    weft_error_text error;
    int count = 1, status = 0;

    if (options->cuda)
        return bench_cuda_ranks(context);
    if (context->mpi_asked && !tp_peer_can(context, &problem))
        return bench_say(
            context, "--peer mpi: OpenBLAS + MPI, where both are there, stand beside products of float32, "
                     "float16 and bfloat16 without --l, --beta, --bias and --act");
    if (options->set && strcmp(options->set, "overlap") != 0)
        count = set_shapes(options->set, problem.op, options->scale, shapes);
    context->report.columns = choose_columns(tp_peer_can(context, &problem));
    report_note(&context->report, "%s of %s over %d ranks, %s%s%s%s%s", options->op_name,
                weft_dtype_name(problem.dtype), context->size, bench_workers(context, problem.dtype, true),
                tp_peer_can(context, &problem) ? ", beside " : "",
                tp_peer_can(context, &problem) ? context->blas->name : "",
                tp_peer_can(context, &problem) ? " + " : "",
                tp_peer_can(context, &problem) ? context->mpi->name : "");
    report_note(&context->report, REPORT_TIME_LEGEND
                "; hidden: the share of the "
                "communication that costs no time,\n– where there is too little of it to "
                "tell, slower where fused loses, beyond 100 %% where it beats even GEMM only; error: the\n"
                "largest, and the bound it must keep");
    if (weft_problem_resolve(&options->problem, context->size, &problem, &error) != WEFT_OK)
        return context->rank ? 2 : options_error("bench", "%s", error.text);
    problem.tuning.workers = context->threads;
    if (options->set && strcmp(options->set, "overlap") == 0)
        count = overlap_shapes(context, &problem, shapes);
    if (count < 0)
        return 1;
    for (int i = 0; i < count && !status; i++) {
        problem.m = shapes[i].m;
        problem.n = shapes[i].n;
        problem.k = shapes[i].k;
        problem.bias = shapes[i].bias || options->problem.bias;
        problem.transb = shapes[i].transb || options->problem.transb;
        status = measure_shape(context, &problem);
    }
    return status;
}
