/*
 * The collectives on GPUs with a process for each rank, as a program that uses weft.h would run them: the
 * ranks take the machine's GPUs in turn and share them when there are more ranks than GPUs. Each schedule is
 * checked on small integers, every element; then a graph of many runs is replayed, so that what is timed is
 * the GPU and not the launches. Schedules alternate, in an order drawn anew each time.
 */
#include "bench/cuda/bench_cuda.h"

#include "core/dtype.h"
#include "plan/plan.h"
#include "run/cuda/driver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SCHEDULES = 8,
    MOST_CALLS = 200, /* in a graph: its launch must not show */
    GRAPH_BYTES = 64 << 20,
};

static const double SECONDS_PER_SIZE = 1.5;

typedef struct gpu_collective {
    bench_context *context;
    weft_group *group; /* on GPUs */
    const weft_cuda_driver *cu;
    CUstream stream;
    weft_problem problem;
    int64_t send_elems, recv_elems;
    size_t element;
    int calls;
    void *send, *recv;
    char *host; /* of the larger of both */
} gpu_collective;

typedef struct gpu_runner {
    gpu_collective *c;
    weft_plan *plan;
    CUgraph graph;
    CUgraphExec replay;
    double wrong;
} gpu_runner;

static int fail(const gpu_collective *c, const char *what)
{
    fprintf(stderr, "weft bench: rank %d: %s: %s\n", c->context->rank, what, weft_error(c->group));
    return 1;
}

/* ---- data -------------------------------------------------------------------------------------------- */

/* Small, so that sums over all ranks are exact in bfloat16; products stay 1 and -1. */
static double value_of(const gpu_collective *c, int rank, int64_t index)
{
    uint64_t z = (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1342543de82ef95u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 29;
    return c->problem.reduction == WEFT_PRODUCT ? (z & 1 ? 1 : -1) : (double)(z % 15) - 7;
}

static double expected(const gpu_collective *c, int64_t index)
{
    int64_t count = c->problem.count;
    int rank = c->context->rank;
    double value;

    switch (c->problem.op) {
    case WEFT_OP_ALL_GATHER:
        return value_of(c, (int)(index / count), index % count);
    case WEFT_OP_ALL_TO_ALL:
        return value_of(c, (int)(index / count), rank * count + index % count);
    case WEFT_OP_BROADCAST:
        return value_of(c, c->problem.root, index);
    default:
        index += c->problem.op == WEFT_OP_REDUCE_SCATTER ? rank * count : 0;
        value = value_of(c, 0, index);
        for (int other = 1; other < c->context->size; other++)
            value = bench_reduce_two(c->problem.reduction, value, value_of(c, other, index));
        return value;
    }
}

/* One run with recv poisoned before it. 0, or 1 when it could not be made. */
static int check(gpu_runner *runner)
{
    gpu_collective *c = runner->c;
    weft_operands operands = {.size = sizeof operands, .send = c->send, .recv = c->recv};
    size_t bytes = (size_t)c->recv_elems * c->element;

    memset(c->host, 0xa5, bytes);
    if (weft_memcpy(c->group, c->recv, c->host, bytes) != WEFT_OK || weft_barrier(c->group) != WEFT_OK ||
        weft_run(runner->plan, &operands) != WEFT_OK ||
        weft_memcpy(c->group, c->host, c->recv, bytes) != WEFT_OK)
        return fail(c, "a run");
    runner->wrong = 0;
    for (int64_t i = 0; i < c->recv_elems; i++)
        runner->wrong += weft_element_get(c->problem.dtype, c->host, (size_t)i) != expected(c, i);
    return 0;
}

/* ---- one size ---------------------------------------------------------------------------------------- */

static int64_t set_size(gpu_collective *c, int64_t bytes)
{
    int size = c->context->size;
    weft_op op = c->problem.op;
    int64_t elems = bytes / (int64_t)c->element;
    bool shared = op == WEFT_OP_ALL_GATHER || op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL;

    c->problem.count = shared ? elems / size : elems;
    if (c->problem.count < 1)
        c->problem.count = 1;
    elems = shared ? c->problem.count * size : c->problem.count;
    c->send_elems = op == WEFT_OP_ALL_GATHER ? c->problem.count : elems;
    c->recv_elems = op == WEFT_OP_REDUCE_SCATTER ? c->problem.count : elems;
    c->calls = (int)(GRAPH_BYTES / (elems * (int64_t)c->element));
    c->calls = c->calls > MOST_CALLS ? MOST_CALLS : c->calls < 8 ? 8 : c->calls;
    return elems * (int64_t)c->element;
}

static int open_buffers(gpu_collective *c)
{
    size_t send = (size_t)c->send_elems * c->element, recv = (size_t)c->recv_elems * c->element;

    c->host = malloc(send > recv ? send : recv);
    if (!c->host)
        return bench_say(c->context, "no memory for buffers");
    if (weft_alloc(c->group, send, 0, &c->send) != WEFT_OK ||
        weft_alloc(c->group, recv, 0, &c->recv) != WEFT_OK)
        return fail(c, "allocating");
    for (int64_t i = 0; i < c->send_elems; i++)
        weft_element_set(c->problem.dtype, c->host, (size_t)i, value_of(c, c->context->rank, i));
    return weft_memcpy(c->group, c->send, c->host, send) == WEFT_OK ? 0 : fail(c, "copying buffers");
}

static void close_buffers(gpu_collective *c)
{
    weft_free(c->group, c->send);
    weft_free(c->group, c->recv);
    free(c->host);
    c->host = NULL;
}

/* A plan of the schedule, checked, and a graph of its runs. */
static int runner_open(gpu_runner *runner, weft_schedule schedule)
{
    gpu_collective *c = runner->c;
    weft_operands operands = {.size = sizeof operands, .send = c->send, .recv = c->recv};
    const char *name = weft_schedule_name(c->problem.op, schedule);
    bool captured;

    c->problem.schedule = schedule;
    if (weft_plan_create(c->group, &c->problem, &runner->plan) != WEFT_OK)
        return fail(c, name);
    if (check(runner))
        return 1;
    captured = c->cu->cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;
    for (int i = 0; i < c->calls && captured; i++)
        captured = weft_run_on(runner->plan, &operands, c->stream) == WEFT_OK;
    captured = c->cu->cuStreamEndCapture(c->stream, &runner->graph) == CUDA_SUCCESS && captured;
    return captured && c->cu->cuGraphInstantiate(&runner->replay, runner->graph, 0) == CUDA_SUCCESS
               ? 0
               : fail(c, "capturing a graph");
}

static void runner_close(gpu_runner *runner)
{
    if (runner->replay)
        runner->c->cu->cuGraphExecDestroy(runner->replay);
    if (runner->graph)
        runner->c->cu->cuGraphDestroy(runner->graph);
    weft_plan_destroy(runner->plan);
}

static int replay(void *argument, int iteration)
{
    gpu_runner *runner = argument;

    (void)iteration;
    if (runner->c->cu->cuGraphLaunch(runner->replay, runner->c->stream) != CUDA_SUCCESS)
        return fail(runner->c, "launching a graph");
    return weft_run_wait(runner->plan, runner->c->stream) == WEFT_OK ? 0 : fail(runner->c, "a graph");
}

static void print_row(gpu_collective *c, const gpu_runner *runner, const bench_contender *times,
                      int64_t bytes)
{
    report *r = &c->context->report;
    const char *impl = weft_schedule_name(c->problem.op, weft_plan_problem(runner->plan)->schedule);
    double w = c->context->size, us = times->stats.median, wrong = bench_max(c->context, runner->wrong);
    double crosses = c->problem.op == WEFT_OP_ALL_REDUCE  ? 2 * (w - 1) / w
                     : c->problem.op == WEFT_OP_BROADCAST ? 1
                                                          : (w - 1) / w;

    report_text(r, "op", "%s", weft_op_name(c->problem.op));
    report_text(r, "backend", "cuda");
    report_int(r, "ranks", c->context->size);
    report_text(r, "dtype", "%s", weft_dtype_name(c->problem.dtype));
    report_int(r, "bytes", bytes);
    report_text(r, "impl", "%s", impl);
    report_shown(r, "shown_impl", "%s", impl);
    report_time(r, "us", times->stats);
    report_real(r, "busbw_gbs", crosses * (double)bytes / us * 1e-3);
    report_bool(r, "ok", wrong == 0);
    report_row(r);
}

static int measure_size(gpu_collective *c, const weft_schedule *schedules, int count, int64_t bytes)
{
    gpu_runner runners[MOST_SCHEDULES] = {0};
    bench_contender times[MOST_SCHEDULES];
    int status;

    bytes = set_size(c, bytes);
    status = open_buffers(c);
    for (int i = 0; i < count && !status; i++) {
        runners[i].c = c;
        status = runner_open(&runners[i], schedules[i]);
        times[i] = (bench_contender){.name = "replay", .argument = &runners[i], .run = replay};
    }
    if (!status)
        status =
            bench_measure(c->context, times, count, c->calls, SECONDS_PER_SIZE, weft_op_name(c->problem.op));
    for (int i = 0; i < count && !status; i++)
        print_row(c, &runners[i], &times[i], bytes);
    for (int i = 0; i < count; i++)
        if (runners[i].c)
            runner_close(&runners[i]);
    close_buffers(c);
    return status;
}

static int choose_schedules(const weft_options *options, weft_schedule schedules[MOST_SCHEDULES])
{
    int listed, count = 0;
    const weft_schedule *list = weft_schedule_list(options->problem.op, WEFT_LAYOUT_DEFAULT, &listed);

    schedules[count++] = options->schedule_all ? WEFT_SCHEDULE_AUTO : options->problem.schedule;
    for (int i = 0; i < listed && options->schedule_all; i++)
        if (list[i] != WEFT_SCHEDULE_MULTIMEM)
            schedules[count++] = list[i];
    return count;
}

static int open_gpu(gpu_collective *c, int gpus)
{
    bench_context *context = c->context;
    CUcontext primary;
    weft_error_text error = {0};

    if (weft_group_split(context->group, 0, context->rank, &c->group) != WEFT_OK)
        return bench_fail(context, "splitting");
    if (weft_group_use_gpu(c->group, -1) != WEFT_OK)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", weft_error(c->group));
    c->cu = weft_cuda_driver_open(&error);
    if (!c->cu || c->cu->cuDevicePrimaryCtxRetain(&primary, context->rank % gpus) != CUDA_SUCCESS ||
        c->cu->cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
        c->cu->cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return bench_say(context, "no stream on the GPU");
    return 0;
}

int bench_cuda_collectives(bench_context *context)
{
    const weft_options *options = context->options;
    gpu_collective c = {.context = context, .problem = options->problem};
    int64_t first = options->bytes_first ? options->bytes_first : 1024,
            last = options->bytes_first ? options->bytes_last : 16 << 20;
    weft_schedule schedules[MOST_SCHEDULES];
    weft_error_text error = {0};
    int gpus = 0, count = choose_schedules(options, schedules), status;

    if (weft_cuda_gpus.count(&gpus, &error) != WEFT_OK || gpus < 1)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", error.text);
    c.element = weft_dtype_size(c.problem.dtype);
    context->report.columns = bench_collective_columns;
    report_note(&context->report, "%s of %s, %d processes on %d GPU%s, in graphs", options->op_name,
                weft_dtype_name(c.problem.dtype), context->size, gpus < context->size ? gpus : context->size,
                gpus == 1 ? "" : "s");
    if (context->size > gpus && !bench_cuda_has_mps())
        report_note(&context->report, "ranks share a GPU: MPS does not run here, so they take turns, and "
                                      "times say little about kernels");
    status = open_gpu(&c, gpus);
    for (int64_t bytes = first; bytes <= last && !status; bytes *= 2)
        status = measure_size(&c, schedules, count, bytes);
    if (c.stream)
        c.cu->cuStreamDestroy(c.stream);
    weft_group_free(c.group);
    return status;
}
