/*
 * The checker: takes the parts of all ranks and proves, on paper, that the plan is right whatever the
 * interleaving.
 *
 *   form   every index, shape and flag is sound; every signal gets the posts it is announced to get
 *   order  no deadlock; waits mean what they say, over any number of runs; every touch of a peer's memory
 *          lies between that peer's ENTER and its EXIT
 *   races  two tasks that touch the same element, one of them writing, are ordered
 *   data   every element of the result is written once, from every contribution exactly once, and nothing is
 *          read that was not written in the same run
 *
 * Each stage trusts the ones before it, so the first that finds something ends the check. The arguments for
 * soundness stand at the head of each stage's file.
 */
#ifndef WEFT_PLAN_CHECK_H
#define WEFT_PLAN_CHECK_H

#include "plan/plan.h"

enum { WEFT_FINDINGS_MAX = 16, WEFT_FINDING_TEXT_BYTES = 320 };

typedef struct weft_finding {
    int rank;                           /* -1: all */
    int64_t task;                       /* index in that rank's part, or -1 */
    char text[WEFT_FINDING_TEXT_BYTES]; /* one sentence; names rank, task and region */
} weft_finding;

typedef struct weft_check_report {
    int64_t count; /* of findings; the first WEFT_FINDINGS_MAX are kept */
    weft_finding findings[WEFT_FINDINGS_MAX];
    int64_t tasks, pairs; /* looked at: tasks of all ranks, pairs of accesses to the same elements */
} weft_check_report;

/* WEFT_OK when the check could be done; the plan is right when report->count is 0. */
weft_status weft_plan_check(const weft_plan_part *parts, int world, weft_check_report *report,
                            weft_error_text *error);

#endif
