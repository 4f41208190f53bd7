/* The checker's entry: its stages, one after another. */
#include "plan/check_stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
