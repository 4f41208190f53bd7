/* One recorded run of a plan, its events gathered from all ranks and drawn by rank 0 (--trace, --svg). */
#include "bench/bench.h"
#include "report/draw.h"
#include "report/page.h"

#include "run/cpu/executor.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS_PER_WORKER = 1 << 15, MOST_WORKERS = 64 };

/* What a rank recorded, in symmetric memory so that rank 0 can read it. */
typedef struct recording {
    uint32_t count[MOST_WORKERS];
    weft_event events[];
} recording;

/* A few runs to warm up, then the recorded one. */
static int record(bench_context *context, weft_plan *plan, const weft_operands *operands, recording *mine,
                  int workers)
{
    weft_trace traces[MOST_WORKERS];
    weft_executor *executor;

    if (weft_executor_of(context->group, &executor) != WEFT_OK)
        return bench_fail(context, "recording");
    for (int i = 0; i < 3; i++) {
        if (weft_run(plan, operands) != WEFT_OK)
            return bench_fail(context, "recording");
    }
    for (int w = 0; w < workers; w++)
        weft_trace_init(&traces[w], mine->events + (size_t)w * EVENTS_PER_WORKER, EVENTS_PER_WORKER);
    if (weft_barrier(context->group) != WEFT_OK)
        return bench_fail(context, "recording");
    weft_executor_trace(executor, traces, workers);
    weft_status status = weft_run(plan, operands);
    weft_executor_trace(executor, NULL, 0);
    for (int w = 0; w < workers; w++)
        mine->count[w] = traces[w].count;
    if (status != WEFT_OK || weft_barrier(context->group) != WEFT_OK)
        return bench_fail(context, "recording");
    return 0;
}

static int draw(bench_context *context, const weft_problem *problem, recording *mine, int workers,
                const char *svg, const char *trace)
{
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
    weft_status status =
        draw_run(problem, context->size, "CPU ranks, measured", events, count, svg, trace, &error);
    free(events);
    return status == WEFT_OK ? 0 : bench_say(context, "%s", error.text);
}

/* Collective: one run of the plan, recorded and drawn by rank 0. */
static int trace_to(bench_context *context, weft_plan *plan, const weft_operands *operands, const char *svg,
                    const char *trace)
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
    status = record(context, plan, operands, memory, workers);
    if (!status && context->rank == 0)
        status = draw(context, problem, memory, workers, svg, trace);
    /* Nobody frees what rank 0 still reads. */
    status = bench_max(context, status) == 0 ? 0 : 1;
    weft_free(context->group, memory);
    return status;
}

int bench_trace(bench_context *context, weft_plan *plan, const weft_operands *operands)
{
    const weft_options *options = context->options;
    int status = trace_to(context, plan, operands, options->svg, options->trace);

    if (!status && options->svg)
        report_note(&context->report, "picture of one run: %s", options->svg);
    if (!status && options->trace)
        report_note(&context->report, "trace of one run (open in Perfetto): %s", options->trace);
    return status;
}

int bench_trace_row(bench_context *context, weft_plan *plan, const weft_operands *operands, int row)
{
    char path[] = "/tmp/weft-XXXXXX";
    int file = context->rank == 0 ? mkstemp(path) : -1;
    int status = bench_max(context, context->rank == 0 && file < 0) == 0 ? 0 : 1;

    if (status)
        return bench_say(context, "cannot make a file in /tmp for a picture");
    status = trace_to(context, plan, operands, path, NULL);
    if (!status && context->report.page)
        report_page_picture(context->report.page, row, path);
    if (file >= 0) {
        close(file);
        unlink(path);
    }
    return status;
}
