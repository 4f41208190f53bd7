/*
 * The products on one GPU: `-n` virtual ranks that share its SMs, or with --link one rank of `-n` in the
 * loop, whose peers' shards lie in local memory and arrive over an emulated link. Each shape is checked with
 * small integers first (every element written, samples equal to the exact product), then timed on random
 * data, the competitors taking turns in an order drawn anew each round: how fast a product is depends on what
 * the GPU did just before it.
 *
 * GEMM only is the fastest cuBLAS has for a rank's product; with virtual ranks, times the ranks, because the
 * one GPU does the work of all of them. Unfused is cuBLAS and the collective one after the other (the latter
 * over the same link); where cuBLAS or that collective cannot be had, it is weft's own unfused schedule,
 * which JSON rows also carry by itself. "product by" says who multiplies in the row's own run.
 */
#include "bench/cuda/bench_cuda.h"

#include "bench/cuda/baseline.h"
#include "bench/cuda/data.h"
#include "bench/cuda/emulated.h"
#include "bench/cuda/graph.h"
#include "core/dtype.h"
#include "core/round.h"
#include "report/draw.h"
#include "report/report.h"
#include "choose/cuda/choose.h"
#include "run/cuda/timeline.h"
#include "choose/cuda/tuned.h"
#include "choose/tuned.h"
#include "run/cuda/world.h"
#include "cli/sets.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 15 };

const report_column bench_cuda_columns[] = {
    {"M", "m", REPORT_PLAIN, 6},
    {"N", "n", REPORT_PLAIN, 6},
    {"K", "k", REPORT_PLAIN, 6},
    {"schedule", "schedule", REPORT_PLAIN, 34},
    {"product by", "product", REPORT_PLAIN, 10},
    {"GEMM only µs", "gemm_us", REPORT_TIME, 13},
    {"comm only µs", "comm_us", REPORT_TIME, 13},
    {"unfused µs", "unfused_us", REPORT_TIME, 13},
    {"fused µs", "fused_us", REPORT_TIME, 13},
    {"speedup", "speedup", REPORT_RATIO, 7},
    {"fused÷GEMM", "fused_over_gemm", REPORT_RATIO, 10},
    {"hidden", "hidden", REPORT_PLAIN, 6},
    {"link GB/s", "link_gbs", REPORT_RATE, 9},
    {"error", "max_err", REPORT_ERROR, 7},
    {"ok", "ok", REPORT_PLAIN, 3},
    {0},
};

void bench_cuda_describe(report *r, const weft_problem *p, int world, const char *how)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    report_text(r, "op", "%s", weft_op_name(p->op));
    report_text(r, "backend", "cuda");
    report_text(r, "how", "%s", how);
    report_int(r, "ranks", world);
    report_int(r, "m", p->m);
    report_int(r, "n", p->n);
    report_int(r, "k", p->k);
    report_int(r, "l", p->l);
    report_text(r, "dtype", "%s", weft_dtype_name(p->dtype));
    if (sums)
        report_text(r, "wire", "%s", weft_dtype_name(p->wire_dtype));
    report_text(r, "schedule", "%s", weft_schedule_name(p->op, p->schedule));
}

void bench_cuda_legend(report *r)
{
    report_note(r, REPORT_TIME_LEGEND
                "; GEMM only: a rank's product, by cuBLAS; comm only: the collective; "
                "unfused: one after the other;\n"
                "speedup: unfused ÷ fused; hidden: the share of the communication that costs no "
                "time, – where there is too little of it\nto tell, slower where fused loses; "
                "link: what it carried over the time from its first byte to its last; error: the largest");
}

typedef struct gpu_bench {
    const weft_options *options;
    bench_link link;
    weft_cuda_device device;
    emulated emulated; /* where there is a link */
    cublas_peer peer;
    bool has_peer;
    CUdeviceptr peer_result;
    CUevent begin, end, join;
    report report;
    weft_error_text error;
} gpu_bench;

/* One thing that is timed: a world's run, or cuBLAS on a world's operands, or either with a collective. */
typedef struct contender {
    bool used;
    weft_cuda_world *world;
    cublas_product *product;
    gpu_baseline *baseline;
    gpu_graph graph; /* of so many runs as a round has */
    int runs;
    double us[ROUNDS];
} contender;

enum { FUSED, OWN_UNFUSED, GEMM, UNFUSED, COMM, CONTENDERS };

/* ---- times ------------------------------------------------------------------------------------------- */

static bool enqueue(gpu_bench *bench, contender *c, int candidate)
{
    if (c->baseline)
        return c->product ? gpu_baseline_enqueue(c->baseline, &bench->peer, &bench->error)
                          : gpu_baseline_enqueue_comm(c->baseline, &bench->error);
    if (!c->product)
        return weft_cuda_world_launch(c->world, &bench->error) == WEFT_OK;
    return cublas_product_run(&bench->peer, c->product, candidate,
                              weft_cuda_world_place(c->world, WEFT_ROLE_A, 0).base,
                              weft_cuda_world_place(c->world, WEFT_ROLE_B, 0).base,
                              (void *)(uintptr_t)bench->peer_result, c->world->streams[0]) == 0;
}

/* `count` runs after one that is not timed, between the events `begin` and `end` of the first stream; inside
 * a capture those are recorded when it is replayed. */
static bool enqueue_runs(gpu_bench *bench, contender *c, int candidate, int count, unsigned int flags)
{
    const weft_cuda_driver *cu = bench->device.cu;
    CUstream first = c->world->streams[0];
    int streams = c->product || c->baseline ? 1 : c->world->running;
    bool good = cu->cuEventRecord(bench->join, first) == CUDA_SUCCESS;

    for (int r = 1; r < streams; r++)
        good &= cu->cuStreamWaitEvent(c->world->streams[r], bench->join, 0) == CUDA_SUCCESS;
    good &= enqueue(bench, c, candidate);
    good &= cu->cuEventRecordWithFlags(bench->begin, first, flags) == CUDA_SUCCESS;
    for (int i = 0; i < count; i++)
        good &= enqueue(bench, c, candidate);
    for (int r = 1; r < streams; r++) {
        good &= cu->cuEventRecord(bench->join, c->world->streams[r]) == CUDA_SUCCESS;
        good &= cu->cuStreamWaitEvent(first, bench->join, 0) == CUDA_SUCCESS;
    }
    return cu->cuEventRecordWithFlags(bench->end, first, flags) == CUDA_SUCCESS && good;
}

/* Microseconds of one of `count` runs that were enqueued well; NaN when they failed. */
static double time_of_runs(gpu_bench *bench, bool good, int count)
{
    const weft_cuda_driver *cu = bench->device.cu;
    float ms = 0;

    good &= cu->cuEventSynchronize(bench->end) == CUDA_SUCCESS;
    good &= cu->cuEventElapsedTime(&ms, bench->begin, bench->end) == CUDA_SUCCESS;
    return good ? (double)ms * 1e3 / count : NAN;
}

static double time_launches(gpu_bench *bench, contender *c, int candidate, int count)
{
    return time_of_runs(bench, enqueue_runs(bench, c, candidate, count, CU_EVENT_RECORD_DEFAULT), count);
}

/* What a round times is a graph: of many ranks' small runs, launched one by one by one thread, the launches
 * would be the time. */
static bool record_runs(gpu_bench *bench, contender *c, int candidate, int count)
{
    const weft_cuda_driver *cu = bench->device.cu;
    CUstream first = c->world->streams[0];
    bool good = gpu_graph_begin(cu, first) == CUDA_SUCCESS;

    good &= enqueue_runs(bench, c, candidate, count, CU_EVENT_RECORD_EXTERNAL);
    good &= gpu_graph_end(cu, first, &c->graph) == CUDA_SUCCESS;
    c->runs = count;
    return good;
}

static double time_replay(gpu_bench *bench, const contender *c)
{
    return time_of_runs(
        bench, bench->device.cu->cuGraphLaunch(c->graph.replay, c->world->streams[0]) == CUDA_SUCCESS,
        c->runs);
}

static void drop_runs(const gpu_bench *bench, contender *c)
{
    gpu_graph_drop(bench->device.cu, &c->graph);
}

static int64_t runs_of(const gpu_bench *bench)
{
    return bench->options->iterations ? bench->options->iterations : 100;
}

static int rounds_of(const gpu_bench *bench)
{
    return runs_of(bench) < ROUNDS ? (int)runs_of(bench) : ROUNDS;
}

/* All contenders in turn. The first call of cuBLAS tries its candidates and keeps the fastest. */
static bool measure(gpu_bench *bench, contender *contenders)
{
    int rounds = rounds_of(bench), order[CONTENDERS];
    uint64_t random = bench->options->seed;

    for (int i = 0; i < CONTENDERS; i++) {
        contender *c = &contenders[i];
        int candidates = i == GEMM && c->used ? c->product->count : c->used;
        double best = INFINITY;

        if (c->used && bench->options->warmup)
            time_launches(bench, c, 0, (int)fmin((double)bench->options->warmup, 1000));
        for (int candidate = 0; candidate < candidates; candidate++) {
            double us = time_launches(bench, c, candidate, 3);

            if (us < best) {
                best = us;
                if (i == GEMM)
                    c->product->best = candidate;
            }
        }
        if (c->used &&
            !record_runs(bench, c, i == GEMM ? c->product->best : 0,
                         (int)fmin((double)weft_divide_up(runs_of(bench), rounds), 1 + 8000 / best)))
            return false;
    }
    for (int round = 0; round < rounds; round++) {
        bench_shuffle(&random, order, CONTENDERS);
        for (int i = 0; i < CONTENDERS; i++) {
            contender *c = &contenders[order[i]];

            if (c->used)
                c->us[round] = time_replay(bench, c);
        }
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static weft_cuda_world_options world_options(const gpu_bench *bench, bool alone)
{
    return (weft_cuda_world_options){.alone = alone,
                                     .dense = true,
                                     .stand_in =
                                         bench->link.bytes_per_ns > 0 ? &bench->emulated.stand_in : NULL,
                                     .limits = {10, 10}};
}

static int make_world(gpu_bench *bench, weft_problem problem, int world, bool alone, weft_cuda_world *w)
{
    weft_cuda_world_options options = world_options(bench, alone);

    if (weft_cuda_world_make(&bench->device, &problem, world, &options, w, &bench->error) == WEFT_OK)
        return 0;
    return options_error("bench", "--backend cuda: %s", bench->error.text);
}

/* A rank's own product: its part of the extents that the operation divides. */
static void local_shape(const weft_problem *p, int world, int64_t *m, int64_t *n, int64_t *k)
{
    bool gathers_b = p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B;
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    *m = gathers_b ? weft_part(p->m, world, 0).count : p->m;
    *n = gathers_b || sums ? p->n : weft_part(p->n, world, 0).count;
    *k = sums ? weft_part(p->k, world, 0).count : p->k;
}

static report_stats stats_of(const gpu_bench *bench, const contender *c, double scale)
{
    double samples[ROUNDS];

    if (!c->used)
        return report_missing();
    for (int i = 0; i < rounds_of(bench); i++)
        samples[i] = c->us[i] * scale;
    return report_summarise(samples, rounds_of(bench));
}

/* The emulated link's bytes over the time from when it began with the first until it had taken the last, in
 * the slowest of five runs. */
static double link_rate(gpu_bench *bench, contender *fused)
{
    weft_cuda_world *w = fused->world;
    double least = INFINITY;

    for (int i = 0; i < 5; i++) {
        weft_cuda_emulation link;

        if (!enqueue(bench, fused, 0) ||
            emulated_read(&w->executors[0], w->streams[0], &link, &bench->error) != WEFT_OK ||
            link.run_end <= link.run_first)
            return NAN;
        least = fmin(least, (double)link.bytes / ((double)(link.run_end - link.run_first) / 8));
    }
    return least;
}

static void print_row(gpu_bench *bench, const weft_problem *p, int world, contender *contenders,
                      const gpu_verdict *verdict)
{
    report *r = &bench->report;
    bool alone = bench->link.bytes_per_ns > 0, peer = contenders[GEMM].used;
    report_stats gemm = stats_of(bench, &contenders[GEMM], alone ? 1 : world),
                 fused = stats_of(bench, &contenders[FUSED], 1);
    report_stats own = stats_of(bench, &contenders[OWN_UNFUSED], 1),
                 unfused = stats_of(bench, &contenders[UNFUSED], 1);
    report_stats comm = stats_of(bench, &contenders[COMM], 1);
    double link = alone && world > 1 ? link_rate(bench, &contenders[FUSED]) : NAN;

    if (!contenders[UNFUSED].used)
        unfused = own;

    bench_cuda_describe(r, p, world,
                        alone ? "one rank in the loop, emulated link" : "virtual ranks on one GPU");
    report_text(r, "product", "%s", contenders[FUSED].world->executors[0].library.lt ? "cuBLASLt" : "weft");
    report_time(r, "gemm_us", gemm);
    report_time(r, "comm_us", comm);
    report_time(r, "unfused_us", unfused);
    report_time(r, "own_unfused_us", own);
    report_time(r, "fused_us", fused);
    report_real(r, "speedup", unfused.median / fused.median);
    report_real(r, "fused_over_gemm", fused.median / gemm.median);
    report_hidden(r, gemm, unfused, fused);
    report_real(r, "link_gbs", link);
    if (alone) {
        report_real(r, "link_asked_gbs", bench->link.bytes_per_ns);
        report_real(r, "link_late_us", bench->link.late_ns * 1e-3);
    }
    report_real(r, "max_err", verdict->error);
    report_real(r, "err_bound", verdict->bound);
    report_bool(r, "ok", gpu_verdict_good(verdict));
    if (peer) {
        report_text(r, "peer", "cuBLASLt %zu", bench->peer.version);
        report_time(r, "peer_us", gemm);
    }
    report_row(r);
}

/* One recorded run, drawn as on the CPU: into the files that were asked for, or one of them. */
static int draw_timeline(gpu_bench *bench, weft_cuda_world *w, const char *svg, const char *trace)
{
    weft_sim_source source = {.problem = &w->parts[0].problem, .world = w->world};
    weft_event *events = NULL;
    size_t count = 0;
    weft_status status = weft_cuda_timeline(w, &events, &count, &bench->error);

    if (status == WEFT_OK)
        status = draw_run(&source,
                          w->running < w->world ? "one GPU, one of them in the loop, measured"
                                                : "one GPU, measured",
                          events, count, svg, trace, &bench->error);
    free(events);
    if (status != WEFT_OK) {
        fprintf(stderr, "weft bench: %s\n", bench->error.text);
        return 1;
    }
    return 0;
}

/* The pictures of --svg and --trace, and that of the row just printed for --html. */
static int draw_row(gpu_bench *bench, weft_cuda_world *w)
{
    const weft_options *options = bench->options;
    report_page *page = bench->report.page;
    char path[REPORT_PAGE_PATH];
    int status = 0;

    if (page) {
        int file = report_page_scratch(path);

        if (file < 0) {
            fprintf(stderr, "weft bench: cannot make a file in memory for a picture\n");
            return 1;
        }
        status = draw_timeline(bench, w, path, NULL);
        if (!status)
            report_page_picture(page, page->count - 1, path);
        close(file);
    }
    if (status || (!options->svg && !options->trace))
        return status;
    status = draw_timeline(bench, w, options->svg, options->trace);
    if (status)
        return status;
    if (options->svg)
        report_note(&bench->report, "picture of one run: %s", options->svg);
    if (options->trace)
        report_note(&bench->report, "trace of one run (open in Perfetto): %s", options->trace);
    return 0;
}

/* One run on integers. */
static void check_run(gpu_bench *bench, weft_cuda_world *w, gpu_verdict *verdict)
{
    bool good = gpu_data_fill(w, bench->options->seed, true) &&
                weft_cuda_world_launch(w, &bench->error) == WEFT_OK &&
                weft_cuda_world_finish(w, &bench->error) == WEFT_OK && gpu_data_check(w, verdict);

    if (!good) {
        verdict->error = INFINITY;
        fprintf(stderr, "weft bench: %s\n",
                bench->error.text[0] ? bench->error.text : "the operands could not be copied");
    } else {
        if (bench->options->eps > 0)
            verdict->bound = bench->options->eps;
        gpu_verdict_tell(verdict);
    }
}

static int bench_shape(gpu_bench *bench, const weft_problem *problem, int world)
{
    bool alone = bench->link.bytes_per_ns > 0;
    weft_problem unfused = *problem, single = *problem;
    weft_cuda_world worlds[3] = {0};
    cublas_product product;
    gpu_baseline baseline = {0};
    contender contenders[CONTENDERS] = {[FUSED] = {.world = &worlds[0]},
                                        [OWN_UNFUSED] = {.world = &worlds[1]},
                                        [GEMM] = {.world = &worlds[2]},
                                        [UNFUSED] = {.world = &baseline.comm, .baseline = &baseline},
                                        [COMM] = {.world = &baseline.comm, .baseline = &baseline}};
    weft_cuda_world_options options;
    gpu_verdict verdict = {0};
    int64_t m, n, k;
    int status = make_world(bench, *problem, world, alone, &worlds[0]);

    if (status == 0) {
        check_run(bench, &worlds[0], &verdict);
        gpu_data_fill(&worlds[0], bench->options->seed, false);
        contenders[FUSED].used = true;
    }
    unfused.schedule = WEFT_SCHEDULE_UNFUSED;
    /* those of a rank alone that wait for peers half-way have no end */
    if (status == 0 && world > 1 && !(alone && problem->op >= WEFT_OP_GEMM_AR)) {
        status = make_world(bench, unfused, world, alone, &worlds[1]);
        gpu_data_fill(&worlds[1], bench->options->seed, false);
        contenders[OWN_UNFUSED].used = true;
    }
    local_shape(problem, world, &m, &n, &k);
    single.op = WEFT_OP_GEMM_AS;
    single.schedule = WEFT_SCHEDULE_ALL_SCATTER;
    single.m = m, single.n = n, single.k = k;
    single.transa = single.transb = 0;
    if (status == 0 && bench->has_peer && problem->dtype == WEFT_BF16 && problem->l == 1 &&
        (size_t)(m * n) * 2 <= (size_t)1 << 30 && make_world(bench, single, 1, true, &worlds[2]) == 0 &&
        cublas_product_make(&bench->peer, m, n, k, &product) == 0) {
        gpu_data_fill(&worlds[2], bench->options->seed, false);
        contenders[GEMM].product = &product;
        contenders[GEMM].used = true;
    }
    options = world_options(bench, alone);
    if (status == 0 && world > 1 &&
        gpu_baseline_make(&bench->device, problem, world, &options, &baseline, &bench->error)) {
        contenders[COMM].used = true;
        contenders[UNFUSED].used = contenders[GEMM].used;
        contenders[UNFUSED].product = &product;
        baseline.product = &product;
        baseline.inputs = &worlds[2];
        baseline.result = (void *)(uintptr_t)bench->peer_result;
    }
    if (status == 0 && !measure(bench, contenders)) {
        status = options_error("bench", "--backend cuda: the runs could not be captured in a graph%s%s",
                               bench->error.text[0] ? ": " : "", bench->error.text);
    } else if (status == 0) {
        print_row(bench, problem, world, contenders, &verdict);
        status = draw_row(bench, &worlds[0]);
    }
    for (int i = 0; i < CONTENDERS; i++)
        drop_runs(bench, &contenders[i]);
    for (int i = 0; i < 3; i++)
        if (worlds[i].device)
            weft_cuda_world_free(&worlds[i]);
    gpu_baseline_free(&baseline);
    return status;
}

int bench_cuda_ready(void)
{
    weft_error_text error = {0};
    int count = 0;

    if (weft_cuda_gpus.count(&count, &error) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", error.text);
    return count ? 0 : options_error("bench", "--backend cuda: this machine has no GPU");
}

static int check_call(gpu_bench *bench, weft_problem *problem)
{
    const weft_options *o = bench->options;

    if (bench_cuda_refuses(o, bench->link.bytes_per_ns > 0 ? &bench->link : NULL, true))
        return 2;
    if (weft_problem_resolve(&o->problem, (int)o->ranks, problem, &bench->error) != WEFT_OK)
        return options_error("bench", "%s", bench->error.text);
    if (o->ranks > WEFT_CUDA_WORLD_MAX)
        return options_error("bench", "--backend cuda: %d ranks on one GPU: there may be 1 to %d",
                             (int)o->ranks, WEFT_CUDA_WORLD_MAX);
    weft_cuda_driver_widen();
    if (weft_cuda_device_open(0, &bench->device, &bench->error) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", bench->error.text);
    return bench_cuda_refuses_dtype(o) ? 2 : 0;
}

static int bench_schedules(gpu_bench *bench, const weft_problem *problem, int world)
{
    weft_problem p = *problem;
    int count = 0, status = 0;
    const weft_schedule *list = weft_schedule_list(p.op, p.layout, &count);

    if (!bench->options->schedule_all) {
        bool link = bench->link.bytes_per_ns > 0; /* one rank by itself; else they share the GPU */

        if (p.schedule == WEFT_SCHEDULE_AUTO && link && p.op >= WEFT_OP_GEMM_AR) {
            p.schedule = bench_cuda_link_schedule(p.op);
        } else if (p.schedule == WEFT_SCHEDULE_AUTO) {
            weft_cuda_basis basis = {.world = world,
                                     .crews = bench->device.crews / (link ? 1 : world),
                                     .hopper = bench->device.hopper,
                                     .library = weft_cublaslt_source() != NULL,
                                     .whole = link || world == 1,
                                     .adds = true};

            if (!link)
                bench_note_tuned_for(&bench->report,
                                     weft_cuda_tuned_as(bench->device.name, basis.crews, basis.whole), &p,
                                     world);
            if (!link && weft_cuda_tuned(&basis, bench->device.name, &p, &bench->error) != WEFT_OK)
                return options_error("bench", "%s", bench->error.text);
            p.schedule = weft_cuda_choose(&basis, &p).schedule;
        }
        return bench_shape(bench, &p, world);
    }
    for (int i = 0; i < count && status == 0; i++) {
        p.schedule = list[i];
        if (list[i] != WEFT_SCHEDULE_UNFUSED && list[i] != WEFT_SCHEDULE_MULTIMEM)
            status = bench_shape(bench, &p, world);
    }
    return status;
}

static void heading(gpu_bench *bench, const weft_problem *p)
{
    const char *op = bench->options->op_name, *dtype = weft_dtype_name(p->dtype);
    char late[64] = "";

    if (bench->link.late_ns > 0)
        snprintf(late, sizeof(late), ", peers %g µs late,", bench->link.late_ns * 1e-3);

    if (bench->link.bytes_per_ns > 0)
        report_note(&bench->report,
                    "%s of %s, one rank in the loop over an emulated link of %g GB/s and %g µs%s on %s", op,
                    dtype, bench->link.bytes_per_ns, bench->link.latency_ns * 1e-3, late, bench->device.name);
    else
        report_note(&bench->report, "%s of %s, virtual ranks (not NVLink times) on %s", op, dtype,
                    bench->device.name);
    if (p->wire_dtype != WEFT_F32)
        report_note(&bench->report, "sums travel as %s", weft_dtype_name(p->wire_dtype));
}

int bench_cuda(const weft_options *options, const bench_link *link, report_page *page)
{
    gpu_bench bench = {.options = options,
                       .link = *link,
                       .emulated = {.bytes_per_ns = link->bytes_per_ns,
                                    .latency_ns = link->latency_ns,
                                    .late_ns = link->late_ns}};
    weft_problem problem;
    set_shape shapes[SETS_MOST_SHAPES] = {{options->problem.m, options->problem.n, options->problem.k, 0, 0}};
    int count = 1, status = check_call(&bench, &problem), world = (int)options->ranks;
    const weft_cuda_driver *cu = bench.device.cu;

    if (status || !cu)
        return status;
    if (link->bytes_per_ns > 0 && emulated_load(&bench.device, &bench.emulated, &bench.error) != WEFT_OK) {
        weft_cuda_device_close(&bench.device);
        return options_error("bench", "--link: %s", bench.error.text);
    }
    if (options->set)
        count = set_shapes(options->set, problem.op, options->scale, shapes);
    bench.has_peer = cublas_peer_open(&bench.peer, cu) == 0 &&
                     cu->cuMemAlloc(&bench.peer_result, (size_t)1 << 30) == CUDA_SUCCESS;
    cu->cuEventCreate(&bench.begin, CU_EVENT_DEFAULT);
    cu->cuEventCreate(&bench.end, CU_EVENT_DEFAULT);
    cu->cuEventCreate(&bench.join, CU_EVENT_DISABLE_TIMING);
    report_open(&bench.report, stdout, options->json, bench_cuda_columns);
    bench.report.page = page;
    heading(&bench, &problem);
    bench_cuda_legend(&bench.report);
    if (!bench.has_peer)
        report_note(&bench.report, "no cuBLAS found here: GEMM only is left out, unfused is weft's own");
    for (int i = 0; i < count && status == 0; i++) {
        problem.m = shapes[i].m;
        problem.n = shapes[i].n;
        problem.k = shapes[i].k;
        status = bench_schedules(&bench, &problem, world);
    }
    int closed = report_close(&bench.report);
    emulated_free(&bench.device, &bench.emulated);
    weft_cuda_device_close(&bench.device);
    return status ? status : closed;
}
