/* The checker's entry and its sentences. */
#include "plan/check_stages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT"};

void weft_check_find(weft_checker *checker, int rank, int64_t task, const char *format, ...)
{
    weft_check_report *report = checker->report;
    va_list arguments;

    if (report->count < WEFT_FINDINGS_MAX) {
        weft_finding *finding = &report->findings[report->count];

        finding->rank = rank;
        finding->task = task;
        va_start(arguments, format);
        vsnprintf(finding->text, sizeof(finding->text), format, arguments);
        va_end(arguments);
    }
    report->count++;
}

/* Room for four short texts at a time. */
static char *text_buffer(void)
{
    static _Thread_local char texts[4][120];
    static _Thread_local int next;

    next = (next + 1) % 4;
    return texts[next];
}

const char *weft_check_task_text(const weft_checker *checker, uint32_t task)
{
    char *text = text_buffer();
    int rank = 0;

    while (task >= checker->task_base[rank + 1])
        rank++;
    snprintf(text, 120, "%s task %u of rank %d",
             kind_names[checker->parts[rank].tasks[task - checker->task_base[rank]].kind],
             task - checker->task_base[rank], rank);
    return text;
}

const char *weft_check_region_text(const weft_checker *checker, const weft_region *region)
{
    char *text = text_buffer();

    snprintf(text, 120, "%s of rank %d, batch %lld, rows %lld..%lld, cols %lld..%lld",
             checker->parts[0].operands[region->operand].name, region->rank, (long long)region->batch,
             (long long)region->row0, (long long)(region->row0 + region->rows), (long long)region->col0,
             (long long)(region->col0 + region->cols));
    return text;
}

/* ---- entry --------------------------------------------------------------------------------------- */

static bool number_tasks(weft_checker *checker)
{
    checker->task_base = calloc((size_t)checker->world + 1, sizeof(uint32_t));
    checker->lane_base = calloc((size_t)checker->world + 1, sizeof(uint32_t));
    if (!checker->task_base || !checker->lane_base)
        return false;
    for (int rank = 0; rank < checker->world; rank++) {
        checker->task_base[rank + 1] = checker->task_base[rank] + checker->parts[rank].task_count;
        checker->lane_base[rank + 1] = checker->lane_base[rank] + checker->parts[rank].lane_count;
    }
    checker->tasks = checker->task_base[checker->world];
    checker->lanes = checker->lane_base[checker->world];
    checker->report->tasks = checker->tasks;
    return true;
}

static bool run_stages(weft_checker *checker)
{
    static bool (*const stages[])(weft_checker *) = {weft_check_form, weft_check_order, weft_check_races,
                                                     weft_check_data};

    if (!number_tasks(checker))
        return false;
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]) && !checker->report->count; i++) {
        if (!stages[i](checker))
            return false;
    }
    return true;
}

weft_status weft_plan_check(const weft_plan_part *parts, int world, weft_check_report *report,
                            weft_error_text *error)
{
    weft_checker checker = {.parts = parts, .world = world, .report = report};
    bool done;

    memset(report, 0, sizeof(*report));
    done = run_stages(&checker);
    free(checker.task_base);
    free(checker.lane_base);
    free(checker.lane_of);
    free(checker.position);
    free(checker.channel);
    free(checker.landing);
    free(checker.rank_of);
    free(checker.sequence);
    free(checker.clock_of);
    free(checker.clocks);
    return done ? WEFT_OK
                : weft_error_set(error, WEFT_ERR_MEMORY, "no memory to check a plan of %u tasks on %u lanes",
                                 checker.tasks, checker.lanes);
}
