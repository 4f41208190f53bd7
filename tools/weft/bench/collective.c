/*
 * The collectives, each size beside the same call of MPI in the same processes.
 *
 * Inputs lie in symmetric memory and are written anew by their owner before every sample; outputs are
 * poisoned; every element of every result is compared. Elements are small integers, so that sums are
 * exact in every type: each rank's input is a window into one random sequence of prime length, shifted by a
 * random amount, and the expected result is the same sum of shifted windows. Filling and checking are copies
 * and comparisons, not part of the time.
 *
 * Small messages are timed in batches of calls, each with its own buffers, because a clock costs as much as
 * such a call; larger ones one by one.
 */
#include "bench/bench.h"
#include "bench/cuda/bench_cuda.h"

#include "core/dtype.h"
#include "core/round.h"
#include "core/topo.h"
#include "group/group.h"
#include "group/segment.h"
#include "plan/plan.h"
#include "run/cpu/small.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 4093, MOST_CALLS = 32, MOST_RUNNERS = 12 }; /* schedules, auto, a file's plan, MPI */

typedef struct collective collective;

/* One contender. `auto` is the public call, with its short path; a schedule by name is a plan. */
typedef struct collective_runner {
    collective *run;
    enum { RUNNER_CALL, RUNNER_PLAN, RUNNER_MPI, RUNNER_GIVEN } kind; /* GIVEN: the plan of --plan */
    weft_plan *plan;
    weft_schedule schedule;
    const char *chosen; /* what AUTO comes to: a schedule, or "small", without a plan */
    int index;
    double wrong;
} collective_runner;

struct collective {
    bench_context *context;
    weft_problem problem;
    int64_t send_elems, recv_elems; /* of one call */
    size_t element;
    int calls;
    char *send, *recv;         /* symmetric, `calls` of each */
    char *mpi_send, *mpi_recv; /* ordinary memory, as an MPI program has */
    char *sequence;            /* 2 * PERIOD random elements */
    char *expected;            /* 2 * PERIOD elements, for checking */
    uint64_t seed;
    int *counts;
    collective_runner runners[MOST_RUNNERS];
    int runner_count;
};

const report_column bench_collective_columns[] = {
    {"bytes", "bytes", REPORT_PLAIN, 9},
    {"impl", "shown_impl", REPORT_PLAIN, 13},
    {"time µs", "us", REPORT_TIME, 14},
    {"bus GB/s", "busbw_gbs", REPORT_RATE, 8},
    {"peer", "peer", REPORT_PLAIN, 14},
    {"peer µs", "peer_us", REPORT_TIME, 14},
    {"speedup", "speedup", REPORT_RATIO, 7},
    {"ok", "ok", REPORT_PLAIN, 3},
    {0},
};

/* ---- data ----------------------------------------------------------------------------------------- */

static int64_t shift_of(const collective *c, int iteration, int runner_index, int call, int rank)
{
    uint64_t z =
        c->seed + ((((uint64_t)iteration * 8 + (uint64_t)runner_index) * MOST_CALLS + (uint64_t)call) * 4096 +
                   (uint64_t)rank) *
                      0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (int64_t)((z ^ (z >> 29)) % PERIOD);
}

/* Copies `count` elements of the periodic sequence, from position `at` on. */
static void copy_periodic(const collective *c, char *to, const char *sequence, int64_t at, int64_t count)
{
    for (at %= PERIOD; count > 0;) {
        int64_t run = PERIOD - at < count ? PERIOD - at : count;
        memcpy(to, sequence + (size_t)at * c->element, (size_t)run * c->element);
        to += (size_t)run * c->element;
        count -= run;
        at = 0;
    }
}

/* Elements that differ from the periodic sequence, counted by runs. */
static double compare_periodic(const collective *c, const char *from, const char *sequence, int64_t at,
                               int64_t count)
{
    double wrong = 0;

    for (at %= PERIOD; count > 0;) {
        int64_t run = PERIOD - at < count ? PERIOD - at : count;
        wrong += memcmp(from, sequence + (size_t)at * c->element, (size_t)run * c->element) != 0;
        from += (size_t)run * c->element;
        count -= run;
        at = 0;
    }
    return wrong;
}

static void make_sequence(collective *c)
{
    /* Small enough that a sum over all ranks is exact in bfloat16 and fits int8; a product stays ±1. */
    int most = 120 / c->context->size;

    most = most > 7 ? 7 : most < 1 ? 1 : most;
    for (int i = 0; i < PERIOD; i++) {
        uint64_t z = bench_random(c->context);
        double value = c->problem.reduction == WEFT_PRODUCT
                           ? (z & 1 ? 1 : -1)
                           : (double)(int)(z % (2 * (unsigned)most + 1)) - most;
        weft_element_set(c->problem.dtype, c->sequence, (size_t)i, value);
    }
}

/* One period of the reduction of all ranks' sequences of a call, from its first element on. */
static void expect_reduced(collective *c, int iteration, int index, int call)
{
    int size = c->context->size;
    int64_t shift[size];

    for (int r = 0; r < size; r++)
        shift[r] = shift_of(c, iteration, index, call, r);
    for (int i = 0; i < PERIOD; i++) {
        double sum = weft_element_get(c->problem.dtype, c->sequence, (size_t)((i + shift[0]) % PERIOD));
        for (int r = 1; r < size; r++)
            sum = bench_reduce_two(
                c->problem.reduction, sum,
                weft_element_get(c->problem.dtype, c->sequence, (size_t)((i + shift[r]) % PERIOD)));
        weft_element_set(c->problem.dtype, c->expected, (size_t)i,
                         bench_reduce_end(c->problem.reduction, sum, size));
    }
}

static double check_call(collective *c, const collective_runner *runner, int iteration, int call,
                         const char *recv)
{
    int size = c->context->size, rank = c->context->rank;
    int64_t share = c->problem.count;
    double wrong = 0;

    switch (c->problem.op) {
    case WEFT_OP_ALL_REDUCE:
        expect_reduced(c, iteration, runner->index, call);
        return compare_periodic(c, recv, c->expected, 0, c->recv_elems);
    case WEFT_OP_REDUCE_SCATTER:
        expect_reduced(c, iteration, runner->index, call);
        return compare_periodic(c, recv, c->expected, rank * share, share);
    case WEFT_OP_BROADCAST:
        return compare_periodic(c, recv, c->sequence,
                                shift_of(c, iteration, runner->index, call, c->problem.root), c->recv_elems);
    default:
        for (int r = 0; r < size; r++) {
            int64_t at = shift_of(c, iteration, runner->index, call, r);
            if (c->problem.op == WEFT_OP_ALL_TO_ALL)
                at += rank * share;
            wrong += compare_periodic(c, recv + (size_t)(r * share) * c->element, c->sequence, at, share);
        }
        return wrong;
    }
}

/* ---- contenders ----------------------------------------------------------------------------------- */

static char *slot(const collective *c, char *base, int64_t elems, int call)
{
    return base + (size_t)call * (size_t)elems * c->element;
}

static int prepare(void *argument, int iteration)
{
    collective_runner *runner = argument;
    collective *c = runner->run;
    bool mpi = runner->kind == RUNNER_MPI;
    char *send = mpi ? c->mpi_send : c->send, *recv = mpi ? c->mpi_recv : c->recv;

    for (int i = 0; i < c->calls; i++)
        copy_periodic(c, slot(c, send, c->send_elems, i), c->sequence,
                      shift_of(c, iteration, runner->index, i, c->context->rank), c->send_elems);
    memset(recv, 0xa5, (size_t)c->calls * (size_t)c->recv_elems * c->element);
    return 0;
}

static int check(void *argument, int iteration)
{
    collective_runner *runner = argument;
    collective *c = runner->run;
    bool mpi = runner->kind == RUNNER_MPI;
    char *recv = mpi ? c->mpi_recv : c->recv;

    /* The calls broadcast in place: the root's own buffer is the one it sent from. */
    if (c->problem.op == WEFT_OP_BROADCAST && (runner->kind == RUNNER_CALL || mpi) &&
        c->context->rank == c->problem.root)
        recv = mpi ? c->mpi_send : c->send;
    for (int i = 0; i < c->calls; i++)
        runner->wrong += check_call(c, runner, iteration, i, slot(c, recv, c->recv_elems, i));
    return 0;
}

static int run_plan(void *argument, int iteration)
{
    collective_runner *runner = argument;
    collective *c = runner->run;

    (void)iteration;
    for (int i = 0; i < c->calls; i++) {
        weft_operands operands = {.size = sizeof operands,
                                  .send = slot(c, c->send, c->send_elems, i),
                                  .recv = slot(c, c->recv, c->recv_elems, i)};
        if (weft_run(runner->plan, &operands) != WEFT_OK)
            return 1;
    }
    return 0;
}

static weft_status call_weft(const collective *c, char *send, char *recv)
{
    weft_group *group = c->context->group;
    const weft_problem *p = &c->problem;

    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
        return weft_all_reduce(group, send, recv, p->count, p->dtype, p->reduction);
    case WEFT_OP_REDUCE_SCATTER:
        return weft_reduce_scatter(group, send, recv, p->count, p->dtype, p->reduction);
    case WEFT_OP_ALL_GATHER:
        return weft_all_gather(group, send, recv, p->count, p->dtype);
    case WEFT_OP_ALL_TO_ALL:
        return weft_all_to_all(group, send, recv, p->count, p->dtype);
    default:
        return weft_broadcast(group, c->context->rank == p->root ? send : recv, p->count, p->dtype, p->root);
    }
}

static int run_call(void *argument, int iteration)
{
    collective_runner *runner = argument;
    collective *c = runner->run;

    (void)iteration;
    for (int i = 0; i < c->calls; i++) {
        if (call_weft(c, slot(c, c->send, c->send_elems, i), slot(c, c->recv, c->recv_elems, i)) != WEFT_OK)
            return 1;
    }
    return 0;
}

static int run_mpi(void *argument, int iteration)
{
    collective_runner *runner = argument;
    collective *c = runner->run;
    const bench_mpi *mpi = c->context->mpi;
    int64_t bytes = c->problem.count * (int64_t)c->element;

    (void)iteration;
    for (int i = 0; i < c->calls; i++) {
        char *send = slot(c, c->mpi_send, c->send_elems, i), *recv = slot(c, c->mpi_recv, c->recv_elems, i);
        switch (c->problem.op) {
        case WEFT_OP_ALL_REDUCE:
            mpi->all_reduce(send, recv, c->problem.count, c->problem.dtype, c->problem.reduction);
            break;
        case WEFT_OP_REDUCE_SCATTER:
            mpi->reduce_scatter(send, recv, c->counts, c->problem.dtype, c->problem.reduction);
            break;
        case WEFT_OP_ALL_GATHER:
            mpi->all_gather(send, bytes, recv);
            break;
        case WEFT_OP_ALL_TO_ALL:
            mpi->all_to_all(send, bytes, recv);
            break;
        default:
            mpi->broadcast(c->context->rank == c->problem.root ? send : recv, bytes, c->problem.root);
            break;
        }
    }
    return 0;
}

/* ---- one size ------------------------------------------------------------------------------------- */

/* MPI has no half types: it can move them, not add them; and no averages. And it counts in int. */
static bool mpi_can(const collective *c)
{
    bool reduces = c->problem.op == WEFT_OP_ALL_REDUCE || c->problem.op == WEFT_OP_REDUCE_SCATTER;
    weft_dtype dtype = c->problem.dtype;

    return c->context->mpi && c->context->options->bytes_last <= INT_MAX &&
           !(reduces && (dtype == WEFT_F16 || dtype == WEFT_BF16 || c->problem.reduction == WEFT_AVERAGE));
}

/* Sizes of one call from the bytes of the whole buffer. */
static int64_t set_size(collective *c, int64_t bytes)
{
    int size = c->context->size;
    int64_t elems = bytes / (int64_t)c->element;
    bool shared = c->problem.op == WEFT_OP_ALL_GATHER || c->problem.op == WEFT_OP_REDUCE_SCATTER ||
                  c->problem.op == WEFT_OP_ALL_TO_ALL;

    c->problem.count = shared ? elems / size : elems;
    if (c->problem.count < 1)
        c->problem.count = 1;
    elems = shared ? c->problem.count * size : c->problem.count;
    c->send_elems = c->problem.op == WEFT_OP_ALL_GATHER ? c->problem.count : elems;
    c->recv_elems = c->problem.op == WEFT_OP_REDUCE_SCATTER ? c->problem.count : elems;
    bytes = elems * (int64_t)c->element;
    if (bytes <= 4096)
        c->calls = MOST_CALLS;
    else
        c->calls = c->context->oversubscribed && bytes < (256 << 10) ? (int)((256 << 10) / bytes) : 1;
    if (c->calls > MOST_CALLS)
        c->calls = MOST_CALLS;
    return bytes;
}

static int open_buffers(collective *c)
{
    bench_context *context = c->context;
    size_t send = (size_t)c->calls * (size_t)c->send_elems * c->element;
    size_t recv = (size_t)c->calls * (size_t)c->recv_elems * c->element;
    double both = (double)send + (double)recv,
           heap = (double)context->group->world->segment.header->heap_bytes,
           all = both * context->size * (mpi_can(c) ? 2 : 1), there = (double)weft_topo_memory_bytes();
    size_t larger = (send > recv ? send : recv) / (size_t)c->calls;
    void *memory[2];

    /* Said before any page of them is there. */
    if (both > heap)
        return bench_say(
            context,
            "%s of %zu bytes on %d ranks: the bench needs %.1f GiB of symmetric memory on each and has "
            "%.1f; WEFT_HEAP sets how much",
            weft_op_name(c->problem.op), larger, context->size, both / (1 << 30), heap / (1 << 30));
    if (!context->spread && all > there)
        return bench_say(
            context, "%s of %zu bytes on %d ranks: the bench needs %.1f GiB of memory, the machine has %.1f",
            weft_op_name(c->problem.op), larger, context->size, all / (1 << 30), there / (1 << 30));
    if (weft_alloc(context->group, send, 4096, &memory[0]) != WEFT_OK ||
        weft_alloc(context->group, recv, 4096, &memory[1]) != WEFT_OK)
        return bench_fail(context, "allocating");
    c->send = memory[0];
    c->recv = memory[1];
    if (mpi_can(c)) {
        c->mpi_send = aligned_alloc(4096, weft_round_up_bytes(send, 4096));
        c->mpi_recv = aligned_alloc(4096, weft_round_up_bytes(recv, 4096));
    }
    c->counts = malloc((size_t)context->size * sizeof *c->counts);
    if ((mpi_can(c) && (!c->mpi_send || !c->mpi_recv)) || !c->counts)
        return bench_say(context, "no memory for the peer's buffers");
    for (int r = 0; r < context->size; r++)
        c->counts[r] = (int)c->problem.count;
    return 0;
}

static void close_buffers(collective *c)
{
    weft_free(c->context->group, c->send);
    weft_free(c->context->group, c->recv);
    free(c->mpi_send);
    free(c->mpi_recv);
    free(c->counts);
}

/* What of the time is bandwidth: bytes that cross the border of a rank, by the usual convention. */
static double bus_bytes(const collective *c, int64_t bytes)
{
    double w = c->context->size;

    if (c->problem.op == WEFT_OP_ALL_REDUCE)
        return 2 * (w - 1) / w * (double)bytes;
    if (c->problem.op == WEFT_OP_BROADCAST)
        return (double)bytes;
    return (w - 1) / w * (double)bytes;
}

static int print_rows(collective *c, const bench_contender *contenders, int64_t bytes)
{
    report *r = &c->context->report;
    int weft = c->runners[c->runner_count - 1].kind == RUNNER_MPI ? c->runner_count - 1 : c->runner_count;

    for (int i = 0; i < weft; i++) {
        double us = contenders[i].stats.median;
        double wrong = bench_max(c->context, c->runners[i].wrong);
        report_text(r, "op", "%s", weft_op_name(c->problem.op));
        report_text(r, "backend", "cpu");
        report_int(r, "ranks", c->context->size);
        report_text(r, "dtype", "%s", weft_dtype_name(c->problem.dtype));
        report_int(r, "bytes", bytes);
        report_text(r, "impl", "%s", weft_schedule_name(c->problem.op, c->runners[i].schedule));
        report_text(r, "chosen", "%s", c->runners[i].chosen);
        report_shown(r, "shown_impl", "%s%s", c->runners[i].kind == RUNNER_CALL ? "auto " : "",
                     c->runners[i].chosen);
        report_int(r, "threads", c->context->threads);
        report_time(r, "us", contenders[i].stats);
        report_real(r, "busbw_gbs", bus_bytes(c, bytes) / us * 1e-3);
        if (weft < c->runner_count) {
            report_text(r, "peer", "%s", c->context->mpi->name);
            report_time(r, "peer_us", contenders[weft].stats);
            report_real(r, "speedup", contenders[weft].stats.median / us);
            wrong += bench_max(c->context, c->runners[weft].wrong);
        }
        report_bool(r, "ok", wrong == 0);
        report_row(r);
        if (isnan(wrong))
            return 1;
    }
    return 0;
}

/* A picture of the first contender, as a plan. */
static int trace_last(collective *c, double typical_us)
{
    weft_operands operands = {.size = sizeof operands, .send = c->send, .recv = c->recv};
    weft_plan *plan;

    c->problem.schedule = c->runners[0].schedule;
    if (weft_plan_create(c->context->group, &c->problem, &plan) != WEFT_OK)
        return bench_fail(c->context, "tracing");
    int status = bench_trace(c->context, plan, &operands, typical_us);
    weft_plan_destroy(plan);
    return status;
}

/* What the public call does with a message of this size. */
static int find_chosen(collective *c, collective_runner *runner)
{
    weft_plan *plan;

    runner->chosen = weft_schedule_name(c->problem.op, runner->schedule);
    if (runner->kind != RUNNER_CALL)
        return 0;
    if (weft_small_fits(c->context->group, &c->problem)) {
        runner->chosen = "small";
        return 0;
    }
    if (weft_plan_create(c->context->group, &c->problem, &plan) != WEFT_OK)
        return bench_fail(c->context, "auto");
    runner->chosen = weft_schedule_name(c->problem.op, weft_plan_problem(plan)->schedule);
    weft_plan_destroy(plan);
    bench_note_tuned(&c->context->report, c->context->group, &c->problem);
    return 0;
}

/* What the contender runs, where that is a plan. */
static int open_plan(collective *c, collective_runner *runner)
{
    weft_group *group = c->context->group;

    c->problem.schedule = runner->schedule;
    if (runner->kind == RUNNER_PLAN && weft_plan_create(group, &c->problem, &runner->plan) != WEFT_OK)
        return bench_fail(c->context, weft_schedule_name(c->problem.op, runner->schedule));
    if (runner->kind == RUNNER_GIVEN && weft_plan_load(group, bench_plan_path(), &runner->plan) != WEFT_OK)
        return bench_fail(c->context, bench_plan_path());
    if (runner->kind == RUNNER_GIVEN)
        runner->schedule = weft_plan_problem(runner->plan)->schedule;
    return find_chosen(c, runner);
}

static int measure_size(collective *c, int64_t bytes, bool last)
{
    bench_contender contenders[MOST_RUNNERS];
    char label[64];
    int status = 0;

    bytes = set_size(c, bytes);
    if (open_buffers(c) != 0)
        return 1;
    for (int i = 0; i < c->runner_count; i++) {
        static int (*const run[])(void *, int) = {run_call, run_plan, run_mpi, run_plan};
        collective_runner *runner = &c->runners[i];

        runner->run = c;
        runner->index = i;
        runner->wrong = 0;
        runner->plan = NULL;
        if (!status)
            status = open_plan(c, runner);
        contenders[i] = (bench_contender){
            .name = runner->kind == RUNNER_MPI ? "MPI" : weft_schedule_name(c->problem.op, runner->schedule),
            .argument = runner,
            .prepare = prepare,
            .run = run[runner->kind],
            .check = check};
    }
    snprintf(label, sizeof label, "%s, %lld bytes", weft_op_name(c->problem.op), (long long)bytes);
    if (!status)
        status = bench_measure(c->context, contenders, c->runner_count, c->calls, 1.5, label);
    if (!status)
        status = print_rows(c, contenders, bytes);
    if (!status && last && (c->context->options->svg || c->context->options->trace))
        status = trace_last(c, contenders[0].stats.median);
    for (int i = 0; i < c->runner_count; i++)
        weft_plan_destroy(c->runners[i].plan);
    close_buffers(c);
    return status;
}

static void add_runner(collective *c, weft_schedule schedule, int kind)
{
    if (c->runner_count == MOST_RUNNERS)
        return;
    c->runners[c->runner_count].schedule = schedule;
    c->runners[c->runner_count++].kind = kind;
}

static void choose_runners(collective *c)
{
    const weft_options *options = c->context->options;
    int count;

    if (options->schedule_all || c->problem.schedule == WEFT_SCHEDULE_AUTO)
        add_runner(c, WEFT_SCHEDULE_AUTO, RUNNER_CALL);
    else
        add_runner(c, c->problem.schedule, RUNNER_PLAN);
    if (options->schedule_all) {
        const weft_schedule *list = weft_schedule_list(c->problem.op, WEFT_LAYOUT_DEFAULT, &count);
        for (int i = 0; i < count; i++)
            add_runner(c, list[i], RUNNER_PLAN);
    }
    if (bench_plan_path())
        add_runner(c, WEFT_SCHEDULE_CUSTOM, RUNNER_GIVEN);
    if (mpi_can(c))
        add_runner(c, WEFT_SCHEDULE_AUTO, RUNNER_MPI);
}

int bench_collective(bench_context *context)
{
    const weft_options *options = context->options;
    collective c = {.context = context, .problem = options->problem, .seed = bench_random(context)};
    int64_t first = options->bytes_first ? options->bytes_first : 64;
    int64_t last = options->bytes_first ? options->bytes_last : 16 << 20;
    int status = 0;

    if (options->cuda)
        return bench_cuda_collectives(context);
    if (context->mpi_asked && !mpi_can(&c))
        return bench_say(
            context,
            "--peer mpi: MPI is not in these ranks, or has no %s of %s, or cannot count so many bytes",
            c.problem.reduction == WEFT_AVERAGE ? "average" : "sum", weft_dtype_name(c.problem.dtype));
    c.element = weft_dtype_size(c.problem.dtype);
    c.sequence = malloc(PERIOD * c.element);
    c.expected = malloc(PERIOD * c.element);
    if (!c.sequence || !c.expected)
        status = 1;
    else
        make_sequence(&c);
    choose_runners(&c);
    context->report.columns = bench_collective_columns;
    report_note(&context->report, "%s of %s over %d ranks, %s%s%s", options->op_name,
                weft_dtype_name(c.problem.dtype), context->size,
                bench_workers(context, c.problem.dtype, false), mpi_can(&c) ? ", beside " : "",
                mpi_can(&c) ? context->mpi->name : "");
    report_note(&context->report, REPORT_TIME_LEGEND
                "; bus GB/s: bytes that "
                "cross a rank's border over the time;\nauto is the library's call and what it "
                "comes to (small: one exchange without a plan)");
    for (int64_t bytes = first; bytes <= last && !status; bytes *= 2)
        status = measure_size(&c, bytes, bytes * 2 > last);
    free(c.sequence);
    free(c.expected);
    return status;
}
