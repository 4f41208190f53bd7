/* A recorded run of a plan that is like the others, its events gathered from all ranks and drawn by rank 0
 * (--trace, --svg, --html). */
#include "bench/bench.h"
#include "report/draw.h"
#include "report/page.h"

#include "group/group.h"
#include "run/cpu/executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS_PER_WORKER = 1 << 15, MOST_WORKERS = 64, TRIES = 15 };

/* What a rank recorded, in symmetric memory so that rank 0 can read it. */
typedef struct recording {
    uint32_t count[MOST_WORKERS];
    weft_event events[];
} recording;

/* One recorded run; `us` is how long it took, from the first event of all ranks to the last. */
static int record_once(bench_context *context, weft_plan *plan, const weft_operands *operands,
                       weft_executor *executor, recording *mine, int workers, double *us)
{
    weft_trace traces[MOST_WORKERS];
    double ends[2] = {INFINITY, -INFINITY}, all[2 * context->size];

    for (int w = 0; w < workers; w++)
        weft_trace_init(&traces[w], mine->events + (size_t)w * EVENTS_PER_WORKER, EVENTS_PER_WORKER);
    if (weft_barrier(context->group) != WEFT_OK)
        return bench_fail(context, "recording");
    weft_executor_trace(executor, traces, workers);
    weft_status status = weft_run(plan, operands);
    weft_executor_trace(executor, NULL, 0);
    if (status != WEFT_OK)
        return bench_fail(context, "recording");
    for (int w = 0; w < workers; w++) {
        mine->count[w] = traces[w].count;
        for (uint32_t i = 0; i < traces[w].count; i++) {
            ends[0] = fmin(ends[0], (double)traces[w].events[i].start_ns);
            ends[1] = fmax(ends[1], (double)traces[w].events[i].end_ns);
        }
    }
    if (bench_share(context, ends, 2, all) != 0)
        return 1;
    for (int r = 0; r < context->size; r++) {
        ends[0] = fmin(ends[0], all[2 * r]);
        ends[1] = fmax(ends[1], all[2 * r + 1]);
    }
    *us = (ends[1] - ends[0]) * 1e-3;
    return 0;
}

/* A few runs to warm up, then recorded ones until one is within 2 % of `typical_us`: that one, or the nearest
 * of TRIES. */
static int record(bench_context *context, weft_plan *plan, const weft_operands *operands, recording *mine,
                  int workers, double typical_us)
{
    size_t bytes = sizeof(recording) + (size_t)workers * EVENTS_PER_WORKER * sizeof(weft_event);
    recording *kept = malloc(bytes);
    weft_executor *executor;
    double us, nearest = INFINITY;
    int status = bench_max(context, !kept) != 0 ? bench_say(context, "no memory to record a run") : 0;

    if (!status && weft_executor_of(context->group, &executor) != WEFT_OK)
        status = bench_fail(context, "recording");
    for (int i = 0; i < 3 && !status; i++) {
        if (weft_run(plan, operands) != WEFT_OK)
            status = bench_fail(context, "recording");
    }
    for (int i = 0; i < TRIES && !status && nearest > 0.02 * typical_us; i++) {
        status = record_once(context, plan, operands, executor, mine, workers, &us);
        if (!status && fabs(us - typical_us) < nearest) {
            nearest = fabs(us - typical_us);
            memcpy(kept, mine, bytes);
        }
    }
    if (!status)
        memcpy(mine, kept, bytes);
    free(kept);
    if (!status && weft_barrier(context->group) != WEFT_OK)
        status = bench_fail(context, "recording");
    return status;
}

static int draw(bench_context *context, const weft_problem *problem, recording *mine, int workers,
                double typical_us, const char *svg, const char *trace)
{
    weft_sim_source source = {.problem = problem, .world = context->size};
    char where[96];
    weft_event *events;
    size_t count = 0;
    weft_error_text error;

    for (int r = 0; r < context->size; r++) {
        const recording *theirs = weft_peer(context->group, mine, r);
        for (int w = 0; w < workers; w++)
            count += theirs->count[w];
    }
    events = malloc((count + 1) * sizeof *events);
    if (!events)
        return bench_say(context, "no memory to draw %zu events", count);
    count = 0;
    for (int r = 0; r < context->size; r++) {
        const recording *theirs = weft_peer(context->group, mine, r);
        for (int w = 0; w < workers; w++) {
            memcpy(events + count, theirs->events + (size_t)w * EVENTS_PER_WORKER,
                   theirs->count[w] * sizeof *events);
            count += theirs->count[w];
        }
    }
    snprintf(where, sizeof where, "CPU ranks, one run of those with a median of %.*f µs",
             typical_us < 100 ? 2 : 0, typical_us);
    weft_status status = draw_run(&source, where, events, count, svg, trace, &error);
    free(events);
    return status == WEFT_OK ? 0 : bench_say(context, "%s", error.text);
}

/* Collective: one run of the plan, recorded and drawn by rank 0. */
static int trace_to(bench_context *context, weft_plan *plan, const weft_operands *operands, double typical_us,
                    const char *svg, const char *trace)
{
    const weft_problem *problem = weft_plan_problem(plan);
    int workers = problem->tuning.workers < 1              ? 1
                  : problem->tuning.workers > MOST_WORKERS ? MOST_WORKERS
                                                           : problem->tuning.workers;
    size_t bytes = sizeof(recording) + (size_t)workers * EVENTS_PER_WORKER * sizeof(weft_event);
    void *memory;
    int status;

    if (weft_alloc(context->group, bytes, 0, &memory) != WEFT_OK)
        return bench_fail(context, "allocating for a trace");
    status = record(context, plan, operands, memory, workers, typical_us);
    if (!status && context->rank == 0)
        status = draw(context, problem, memory, workers, typical_us, svg, trace);
    /* Nobody frees what rank 0 still reads. */
    status = bench_max(context, status) == 0 ? 0 : 1;
    weft_free(context->group, memory);
    return status;
}

int bench_trace(bench_context *context, weft_plan *plan, const weft_operands *operands, double typical_us)
{
    const weft_options *options = context->options;
    int status = trace_to(context, plan, operands, typical_us, options->svg, options->trace);

    if (!status && options->svg)
        report_note(&context->report, "picture of one run: %s", options->svg);
    if (!status && options->trace)
        report_note(&context->report, "trace of one run (open in Perfetto): %s", options->trace);
    return status;
}

int bench_trace_row(bench_context *context, weft_plan *plan, const weft_operands *operands, double typical_us,
                    int row)
{
    char path[REPORT_PAGE_PATH];

    if (context->group->spread) /* whose memory rank 0 cannot read: a page of them has no pictures */
        return 0;
    int file = context->rank == 0 ? report_page_scratch(path) : -1;
    int status = bench_max(context, context->rank == 0 && file < 0) == 0 ? 0 : 1;

    if (status)
        return bench_say(context, "cannot make a file in memory for a picture");
    status = trace_to(context, plan, operands, typical_us, path, NULL);
    if (!status && context->report.page)
        report_page_picture(context->report.page, row, path);
    if (file >= 0)
        close(file);
    return status;
}
