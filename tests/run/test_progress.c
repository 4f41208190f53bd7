/* What the progress deadline measures: a peer that finishes tasks is not late, however long it takes in all;
 * one that finishes none is. And a rank that computes stops at its next task when the group has failed. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "run/cpu/executor.h"
#include "support/check.h"
#include "support/ranks.h"

enum { SIZE = 64, TILE = 8 };

static _Atomic int tasks_of_slow; /* that rank 0 has begun */
static useconds_t pause_us;

static void slow_first(int rank, uint32_t task)
{
    (void)task;
    if (rank == 0) {
        tasks_of_slow++;
        usleep(pause_us);
    }
}

static weft_status multiply(weft_group *group)
{
    static const float zeros[SIZE * SIZE];
    float d[SIZE * SIZE];
    weft_operands operands = {.size = sizeof(operands), .a = zeros, .b = zeros, .d = d};
    weft_problem problem;

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = problem.n = problem.k = SIZE;
    problem.tuning.tile_m = problem.tuning.tile_n = TILE;
    problem.tuning.workers = 1;
    problem.schedule = WEFT_SCHEDULE_UNFUSED;
    return weft_ag_gemm(group, &problem, &operands);
}

static void slow_is_not_late(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_set_deadlines(group, 60, 1.5), WEFT_OK);
    CHECK_INT(multiply(group), WEFT_OK);
}

static void idle_is_late(weft_group *group, void *argument)
{
    weft_status status;

    (void)argument;
    CHECK_INT(weft_set_deadlines(group, 60, weft_rank(group) == 0 ? 60 : 0.3), WEFT_OK);
    status = multiply(group);
    CHECK_INT(status, WEFT_ERR_TIMEOUT);
}

static void *abort_early(void *group)
{
    while (tasks_of_slow < 3)
        usleep(1000);
    CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    return NULL;
}

static void stops_at_next_task(weft_group *group, void *argument)
{
    pthread_t thread;

    (void)argument;
    if (weft_rank(group) == 1)
        CHECK_INT(pthread_create(&thread, NULL, abort_early, group), 0);
    CHECK_INT(multiply(group), WEFT_ERR_ABORTED);
    if (weft_rank(group) == 1)
        pthread_join(thread, NULL);
}

int main(void)
{
    int whole;

    weft_run_before_task = slow_first;
    pause_us = 300000;
    ranks_run(2, slow_is_not_late, NULL);
    whole = tasks_of_slow;
    CHECK(whole * 0.3 > 1.5); /* longer than the deadline in all */
    tasks_of_slow = 0;
    pause_us = 1500000;
    ranks_run(2, idle_is_late, NULL);
    tasks_of_slow = 0;
    pause_us = 200000;
    ranks_run(2, stops_at_next_task, NULL);
    CHECK(tasks_of_slow < whole);
    return check_report("test_run_progress");
}
