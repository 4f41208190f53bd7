/*
 * The collectives on GPUs, as a program that uses weft.h would run them. Ranks are threads of this process
 * that share its first GPU (virtual ranks: not the times of a fabric); or processes, which take the machine's
 * GPUs in turn and share them when there are more ranks than GPUs. Each schedule is checked on small
 * integers, every element; then a graph of many runs is replayed, so that what is timed is the GPU and not
 * the launches. Schedules alternate, in an order drawn anew each time.
 *
 * With --user-memory buffers lie where peers cannot reach them, and beside each schedule stands the same with
 * copies through symmetric memory around it.
 */
#include "bench/cuda/bench_cuda.h"

#include "bench/cuda/collective_data.h"
#include "bench/cuda/graph.h"
#include "bench/cuda/symmetric.h"
#include "core/dtype.h"
#include "plan/plan.h"
#include "run/cuda/group.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_SCHEDULES = 8, MOST_SIZES = 64, MOST_VIRTUAL = 8 };

static const double SECONDS_PER_SIZE = 1.5;

typedef struct gpu_collective {
    bench_context *context;
    bool is_virtual;   /* ranks are threads, on one GPU */
    weft_group *group; /* on GPUs */
    const weft_cuda_driver *cu;
    CUstream stream;
    collective_data data;
    char torch_name[64];
    symmetric_times torch[MOST_SIZES];
    int64_t torch_bytes[MOST_SIZES];
    int torch_count;
    void *send, *recv;
    CUdeviceptr own_send, own_recv; /* --user-memory: outside symmetric memory */
    char *host;                     /* of the larger of both */
} gpu_collective;

typedef struct gpu_runner {
    gpu_collective *c;
    weft_plan *plan;
    gpu_graph runs;
    bool copied; /* --user-memory: through symmetric memory, around the run */
    double wrong;
} gpu_runner;

static int fail(const gpu_collective *c, const char *what)
{
    fprintf(stderr, "weft bench: rank %d: %s: %s\n", c->context->rank, what, weft_error(c->group));
    return 1;
}

static size_t send_bytes(const gpu_collective *c)
{
    return (size_t)c->data.send_elems * c->data.element;
}

static size_t recv_bytes(const gpu_collective *c)
{
    return (size_t)c->data.recv_elems * c->data.element;
}

static weft_operands operands_of(const gpu_runner *runner)
{
    const gpu_collective *c = runner->c;
    weft_operands operands = {.size = sizeof operands, .send = c->send, .recv = c->recv};

    if (c->own_send && !runner->copied) {
        operands.send = (const void *)(uintptr_t)c->own_send;
        operands.recv = (void *)(uintptr_t)c->own_recv;
    }
    return operands;
}

/* On the stream: a run, and copies around it where it is one of those. */
static bool enqueue(const gpu_runner *runner)
{
    const gpu_collective *c = runner->c;
    weft_operands operands = operands_of(runner);
    CUdeviceptr send = (CUdeviceptr)(uintptr_t)c->send, recv = (CUdeviceptr)(uintptr_t)c->recv;

    if (runner->copied && c->cu->cuMemcpyAsync(send, c->own_send, send_bytes(c), c->stream) != CUDA_SUCCESS)
        return false;
    if (weft_run_on(runner->plan, &operands, c->stream) != WEFT_OK)
        return false;
    return !runner->copied ||
           c->cu->cuMemcpyAsync(c->own_recv, recv, recv_bytes(c), c->stream) == CUDA_SUCCESS;
}

/* One run with recv poisoned before it. 0, or 1 when it could not be made. */
static int check(gpu_runner *runner)
{
    gpu_collective *c = runner->c;
    void *recv = c->own_recv ? (void *)(uintptr_t)c->own_recv : c->recv;
    size_t bytes = recv_bytes(c);

    memset(c->host, 0xa5, bytes);
    if (weft_memcpy(c->group, recv, c->host, bytes) != WEFT_OK || weft_barrier(c->group) != WEFT_OK ||
        !enqueue(runner) || weft_run_wait(runner->plan, c->stream) != WEFT_OK ||
        weft_memcpy(c->group, c->host, recv, bytes) != WEFT_OK)
        return fail(c, "a run");
    runner->wrong = 0;
    for (int64_t i = 0; i < c->data.recv_elems; i++)
        runner->wrong += weft_element_get(c->data.problem.dtype, c->host, (size_t)i) !=
                         collective_data_expected(&c->data, c->context->rank, i);
    return 0;
}

/* ---- one size ---------------------------------------------------------------------------------------- */

static int open_buffers(gpu_collective *c)
{
    size_t send = send_bytes(c), recv = recv_bytes(c);

    c->host = malloc(send > recv ? send : recv);
    if (!c->host)
        return bench_say(c->context, "no memory for buffers");
    if (weft_alloc(c->group, send, 0, &c->send) != WEFT_OK ||
        weft_alloc(c->group, recv, 0, &c->recv) != WEFT_OK)
        return fail(c, "allocating");
    for (int64_t i = 0; i < c->data.send_elems; i++)
        weft_element_set(c->data.problem.dtype, c->host, (size_t)i,
                         collective_data_value(&c->data, c->context->rank, i));
    if (bench_user_memory() &&
        (c->cu->cuMemAllocAsync(&c->own_send, send, c->stream) != CUDA_SUCCESS ||
         c->cu->cuMemAllocAsync(&c->own_recv, recv, c->stream) != CUDA_SUCCESS ||
         c->cu->cuStreamSynchronize(c->stream) != CUDA_SUCCESS ||
         weft_memcpy(c->group, (void *)(uintptr_t)c->own_send, c->host, send) != WEFT_OK))
        return fail(c, "memory of its own");
    return weft_memcpy(c->group, c->send, c->host, send) == WEFT_OK ? 0 : fail(c, "copying buffers");
}

static void close_buffers(gpu_collective *c)
{
    weft_free(c->group, c->send);
    weft_free(c->group, c->recv);
    if (c->own_send)
        c->cu->cuMemFreeAsync(c->own_send, c->stream);
    if (c->own_recv)
        c->cu->cuMemFreeAsync(c->own_recv, c->stream);
    c->own_send = c->own_recv = 0;
    free(c->host);
    c->host = NULL;
}

/* A plan of the schedule, checked, and a graph of its runs. */
static int runner_open(gpu_runner *runner, weft_schedule schedule)
{
    gpu_collective *c = runner->c;
    const char *name = weft_schedule_name(c->data.problem.op, schedule);
    bool captured;

    c->data.problem.schedule = schedule;
    if (weft_plan_create(c->group, &c->data.problem, &runner->plan) != WEFT_OK)
        return fail(c, name);
    if (check(runner))
        return 1;
    captured = gpu_graph_begin(c->cu, c->stream) == CUDA_SUCCESS;
    for (int i = 0; i < c->data.calls && captured; i++)
        captured = enqueue(runner);
    captured = gpu_graph_end(c->cu, c->stream, &runner->runs) == CUDA_SUCCESS && captured;
    return captured ? 0 : fail(c, "capturing a graph");
}

static void runner_close(gpu_runner *runner)
{
    gpu_graph_drop(runner->c->cu, &runner->runs);
    weft_plan_destroy(runner->plan);
}

static int replay(void *argument, int iteration)
{
    gpu_runner *runner = argument;

    (void)iteration;
    if (runner->c->cu->cuGraphLaunch(runner->runs.replay, runner->c->stream) != CUDA_SUCCESS)
        return fail(runner->c, "launching a graph");
    return weft_run_wait(runner->plan, runner->c->stream) == WEFT_OK ? 0 : fail(runner->c, "a graph");
}

static void print_row(gpu_collective *c, const gpu_runner *runner, const bench_contender *times,
                      int64_t bytes, const symmetric_times *torch, const gpu_runner *copies,
                      const bench_contender *copied)
{
    report *r = &c->context->report;
    const char *impl = weft_schedule_name(c->data.problem.op, weft_plan_problem(runner->plan)->schedule);
    double w = c->context->size, us = times->stats.median, wrong = bench_max(c->context, runner->wrong);
    double crosses = c->data.problem.op == WEFT_OP_ALL_REDUCE  ? 2 * (w - 1) / w
                     : c->data.problem.op == WEFT_OP_BROADCAST ? 1
                                                               : (w - 1) / w;

    report_text(r, "op", "%s", weft_op_name(c->data.problem.op));
    report_text(r, "backend", "cuda");
    report_text(r, "how", c->is_virtual ? "virtual ranks on one GPU" : "a process for each rank");
    report_int(r, "ranks", c->context->size);
    report_text(r, "dtype", "%s", weft_dtype_name(c->data.problem.dtype));
    report_int(r, "bytes", bytes);
    report_text(r, "impl", "%s", impl);
    report_shown(r, "shown_impl", "%s", impl);
    report_time(r, "us", times->stats);
    report_real(r, "busbw_gbs", crosses * (double)bytes / us * 1e-3);
    if (torch) {
        report_text(r, "peer", "%s", c->torch_name);
        report_time(r, "peer_us", report_exact(symmetric_best(torch)));
        report_real(r, "peer_one_shot_us", torch->one_shot);
        report_real(r, "peer_two_shot_us", torch->two_shot);
        report_real(r, "peer_multimem_us", torch->multimem);
        report_real(r, "speedup", symmetric_best(torch) / us);
    }
    if (copied) {
        wrong += bench_max(c->context, copies->wrong);
        report_text(r, "peer", "copied whole");
        report_time(r, "peer_us", copied->stats);
        report_real(r, "speedup", copied->stats.median / us);
    }
    report_bool(r, "ok", wrong == 0);
    report_row(r);
}

static int measure_size(gpu_collective *c, const weft_schedule *schedules, int count, int64_t bytes)
{
    gpu_runner runners[2 * MOST_SCHEDULES] = {0};
    bench_contender times[2 * MOST_SCHEDULES];
    const symmetric_times *torch = NULL;
    bool user = bench_user_memory();
    int all = user ? 2 * count : count, status;

    bytes = collective_data_size(&c->data, bytes, c->context->options->iterations);
    bench_note_tuned(&c->context->report, c->group, &c->data.problem);
    status = open_buffers(c);
    for (int i = 0; i < all && !status; i++) {
        runners[i].c = c;
        runners[i].copied = i >= count;
        status = runner_open(&runners[i], schedules[i % count]);
        times[i] = (bench_contender){.name = "replay", .argument = &runners[i], .run = replay};
    }
    if (!status)
        status = bench_measure(c->context, times, all, c->data.calls, SECONDS_PER_SIZE,
                               weft_op_name(c->data.problem.op));
    for (int i = 0; i < c->torch_count; i++)
        if (c->torch_bytes[i] == bytes)
            torch = &c->torch[i];
    for (int i = 0; i < count && !status; i++)
        print_row(c, &runners[i], &times[i], bytes, torch, user ? &runners[count + i] : NULL,
                  user ? &times[count + i] : NULL);
    for (int i = 0; i < all; i++)
        if (runners[i].c)
            runner_close(&runners[i]);
    close_buffers(c);
    return status;
}

/* A rank in the loop finds nobody there. */
static bool waits_half_way(weft_op op, weft_schedule schedule)
{
    return schedule == WEFT_SCHEDULE_TWO_SHOT || schedule == WEFT_SCHEDULE_TWO_LEVEL ||
           (schedule == WEFT_SCHEDULE_PUSH && op == WEFT_OP_REDUCE_SCATTER);
}

int bench_cuda_schedules(const weft_options *options, bool alone, weft_schedule *schedules)
{
    int listed, count = 0;
    const weft_schedule *list = weft_schedule_list(options->problem.op, WEFT_LAYOUT_DEFAULT, &listed);

    schedules[count++] = options->schedule_all ? WEFT_SCHEDULE_AUTO : options->problem.schedule;
    for (int i = 0; i < listed && options->schedule_all; i++)
        if (list[i] != WEFT_SCHEDULE_MULTIMEM && !(alone && waits_half_way(options->problem.op, list[i])))
            schedules[count++] = list[i];
    return count;
}

static int open_gpu(gpu_collective *c)
{
    bench_context *context = c->context;
    const weft_cuda_device *device;

    if (weft_group_split(context->group, 0, context->rank, &c->group) != WEFT_OK)
        return bench_fail(context, "splitting");
    if (weft_group_use_gpu(c->group, c->is_virtual ? 0 : -1) != WEFT_OK)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", weft_error(c->group));
    device = weft_cuda_of(c->group)->device;
    c->cu = device->cu;
    if (c->cu->cuCtxSetCurrent(device->context) != CUDA_SUCCESS ||
        c->cu->cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return bench_say(context, "no stream on the GPU");
    return 0;
}

/* PyTorch has the GPUs first, and to itself: with twice the processes on one, neither would have the time it
 * takes alone. */
static void measure_torch(gpu_collective *c, int64_t first, int64_t last)
{
    interpreter python;
    bool goes_on = true;

    symmetric_open(c->context, &c->data.problem, &python);
    snprintf(c->torch_name, sizeof c->torch_name, "%s", python.name);
    for (int64_t bytes = first; bytes <= last && goes_on && c->torch_count < MOST_SIZES; bytes *= 2) {
        int64_t size = collective_data_size(&c->data, bytes, c->context->options->iterations);

        goes_on = symmetric_measure(c->context, &python, size, c->data.calls, &c->torch[c->torch_count]);
        c->torch_bytes[c->torch_count] = size;
        c->torch_count += goes_on;
    }
    if (c->context->rank == 0)
        interpreter_close(&python);
}

/* What is measured, and what the columns are. */
static void heading(const gpu_collective *c, int gpus)
{
    bench_context *context = c->context;
    const char *op = context->options->op_name, *dtype = weft_dtype_name(c->data.problem.dtype);

    if (c->is_virtual)
        report_note(&context->report,
                    "%s of %s, %d virtual ranks (not the times of a fabric) on one GPU, in graphs", op, dtype,
                    context->size);
    else
        report_note(&context->report, "%s of %s, %d processes on %d GPU%s, in graphs", op, dtype,
                    context->size, gpus < context->size ? gpus : context->size, gpus == 1 ? "" : "s");
    report_note(
        &context->report,
        REPORT_TIME_LEGEND
        "; bus GB/s: bytes that cross a rank's border over the time;\nauto is the library's call and what "
        "it comes to%s",
        c->is_virtual ? "" : "; peer: PyTorch's symmetric memory, the better of its two ways");
    if (bench_user_memory())
        report_note(&context->report,
                    "buffers outside symmetric memory; peer: the same, copied through it as "
                    "a whole before and after");
    if (!c->is_virtual && context->size > gpus && !bench_cuda_has_mps())
        report_note(&context->report, "ranks share a GPU: MPS does not run here, so they take turns, and "
                                      "times say little about kernels");
}

static int measure(bench_context *context, bool is_virtual)
{
    const weft_options *options = context->options;
    gpu_collective c = {.context = context,
                        .is_virtual = is_virtual,
                        .data = {.problem = options->problem, .world = context->size}};
    int64_t first = options->bytes_first ? options->bytes_first : 1024,
            last = options->bytes_first ? options->bytes_last : 16 << 20;
    weft_schedule schedules[MOST_SCHEDULES];
    weft_error_text error = {0};
    int gpus = 0, count = bench_cuda_schedules(options, false, schedules), status;

    if (weft_cuda_gpus.count(&gpus, &error) != WEFT_OK || gpus < 1)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", error.text);
    context->report.columns = bench_collective_columns;
    heading(&c, gpus);
    if (!is_virtual && !bench_user_memory())
        measure_torch(&c, first, last);
    status = open_gpu(&c);
    for (int64_t bytes = first; bytes <= last && !status; bytes *= 2)
        status = measure_size(&c, schedules, count, bytes);
    if (c.stream)
        c.cu->cuStreamDestroy(c.stream);
    weft_group_free(c.group);
    return status;
}

int bench_cuda_collectives(bench_context *context)
{
    return measure(context, false);
}

/* ---- virtual ranks ----------------------------------------------------------------------------------- */

typedef struct virtual_rank {
    bench_context context;
    pthread_t thread;
    int status;
} virtual_rank;

/* A rank that fails lets the others go. */
static void *serve(void *argument)
{
    virtual_rank *rank = argument;

    rank->status = measure(&rank->context, true);
    if (rank->status)
        weft_group_abort(rank->context.group, "a rank of the bench failed");
    return NULL;
}

int bench_cuda_collectives_virtual(const weft_options *options, report_page *page)
{
    virtual_rank ranks[MOST_VIRTUAL] = {0};
    weft_group *groups[MOST_VIRTUAL] = {0};
    int world = (int)options->ranks, started = 0, status = 0, closed;

    if (bench_cuda_refuses(options, NULL, true))
        return 2;
    if (world > MOST_VIRTUAL)
        return options_error("bench", "--backend cuda: %d ranks on one GPU: there may be 1 to %d", world,
                             MOST_VIRTUAL);
    weft_cuda_driver_widen();
    if (bench_cuda_ready())
        return 2;
    if (weft_group_threads(world, groups) != WEFT_OK)
        return options_error("bench", "%s", weft_error(NULL));
    for (int r = 0; r < world; r++) {
        ranks[r].context = (bench_context){.options = options,
                                           .group = groups[r],
                                           .rank = r,
                                           .size = world,
                                           .threads = 1,
                                           .oversubscribed = world > sysconf(_SC_NPROCESSORS_ONLN),
                                           .random = options->seed};
        report_open(&ranks[r].context.report, r == 0 ? stdout : NULL, options->json, NULL);
    }
    ranks[0].context.report.page = page;
    while (started < world && pthread_create(&ranks[started].thread, NULL, serve, &ranks[started]) == 0)
        started++;
    if (started < world) {
        fprintf(stderr, "weft bench: no thread for rank %d\n", started);
        weft_group_abort(groups[started], "a thread of the bench could not be started");
        status = 1;
    }
    for (int r = 0; r < started; r++) {
        pthread_join(ranks[r].thread, NULL);
        status = ranks[r].status > status ? ranks[r].status : status;
    }
    closed = report_close(&ranks[0].context.report);
    for (int r = 0; r < world; r++)
        weft_group_free(groups[r]);
    return status ? status : closed;
}
