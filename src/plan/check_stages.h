/* Between the stages of the checker. */
#ifndef WEFT_PLAN_CHECK_STAGES_H
#define WEFT_PLAN_CHECK_STAGES_H

#include "plan/check.h"

typedef struct weft_checker {
    const weft_plan_part *parts;
    int world;
    weft_check_report *report;

    /* Tasks and lanes of all ranks, numbered through: number = base of the rank + index in the part. */
    uint32_t *task_base, *lane_base; /* [world + 1] */
    uint32_t tasks, lanes;
    uint32_t
        columns; /* of a clock: the lanes, then a channel for each lane and rank it pushes to elsewhere */

    /* Filled by the order stage. */
    uint32_t *lane_of;  /* [task] */
    uint32_t *position; /* [task] in its lane, from 1 */
    uint32_t *channel;  /* [task] of a crossing COPY; 0 of any other */
    uint32_t *landing;  /* [task] of a crossing COPY: its position in its channel, from 1 */
    uint32_t *rank_of;  /* [lane] */
    uint32_t *sequence; /* [task] one order in which everything can happen */
    uint32_t *clock_of; /* [task] which clock; a lane's tasks share one until a wait changes it */
    uint32_t *clocks;   /* [clock][column]: tasks of that lane that are certainly finished */
    uint32_t clock_count, clock_room;

    bool in_place; /* SEND may be the memory of RECV (in_place.h); set by the race stage */
} weft_checker;

/* Each returns false when memory is exhausted; findings go into the report. */
bool weft_check_form(weft_checker *checker);
bool weft_check_order(weft_checker *checker);
bool weft_check_races(weft_checker *checker);
bool weft_check_data(weft_checker *checker);

void weft_check_find(weft_checker *checker, int rank, int64_t task, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "GEMM task 12 of rank 3", "partial of rank 1, rows 0..4, cols 8..16": for sentences. Four may be in use. */
const char *weft_check_task_text(const weft_checker *checker, uint32_t task);
const char *weft_check_region_text(const weft_checker *checker, const weft_region *region);

static inline int weft_check_rank(const weft_checker *checker, uint32_t task)
{
    return (int)checker->rank_of[checker->lane_of[task]];
}

static inline const weft_task *weft_check_task(const weft_checker *checker, uint32_t task)
{
    int rank = weft_check_rank(checker, task);

    return &checker->parts[rank].tasks[task - checker->task_base[rank]];
}

/* Is `first` certainly finished when `second` starts, in the same run? */
static inline bool weft_check_before(const weft_checker *checker, uint32_t first, uint32_t second)
{
    uint32_t lane = checker->lane_of[first];

    if (lane == checker->lane_of[second])
        return checker->position[first] < checker->position[second];
    return checker->clocks[(size_t)checker->clock_of[second] * checker->columns + lane] >=
           checker->position[first];
}

/* Is what `first` writes certainly there when `second` starts? What crosses is when it has landed. */
static inline bool weft_check_written_before(const weft_checker *checker, uint32_t first, uint32_t second)
{
    uint32_t channel = checker->channel[first];

    return channel ? checker->clocks[(size_t)checker->clock_of[second] * checker->columns + channel] >=
                         checker->landing[first]
                   : weft_check_before(checker, first, second);
}

#endif
