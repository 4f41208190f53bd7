/* A plan for which there is no room is an error on every rank, and costs the plans made before nothing. */
#include "support/check.h"
#include "support/ranks.h"

#include <stdlib.h>

enum { COUNT = 300000 };

static weft_status make(weft_group *group, int64_t count, weft_plan **plan)
{
    weft_problem problem;

    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.dtype = WEFT_F32;
    problem.count = count;
    problem.schedule = WEFT_SCHEDULE_TWO_SHOT;
    return weft_plan_create(group, &problem, plan);
}

/* Operands outside symmetric memory travel through the arena that a larger plan would replace. */
static void run_and_check(weft_group *group, weft_plan *plan, float *send, float *recv, int round)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    int world = weft_size(group), wrong = 0;

    for (int i = 0; i < COUNT; i++)
        send[i] = (float)((i + round) % 7 + weft_rank(group));
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    for (int i = 0; i < COUNT; i++)
        wrong += recv[i] != (float)((i + round) % 7 * world + world * (world - 1) / 2);
    CHECK_INT(wrong, 0);
}

static void no_room(weft_group *group, void *unused)
{
    float *send = malloc(COUNT * sizeof(*send)), *recv = malloc(COUNT * sizeof(*recv));
    weft_plan *plan = NULL, *larger = NULL;

    (void)unused;
    CHECK_INT(make(group, COUNT, &plan), WEFT_OK);
    run_and_check(group, plan, send, recv, 0);
    for (int round = 1; round < 4; round++) {
        CHECK_INT(make(group, 100000000, &larger), WEFT_ERR_MEMORY);
        CHECK_HAS(weft_error(group), "WEFT_HEAP");
        CHECK(larger == NULL);
        run_and_check(group, plan, send, recv, round);
        run_and_check(group, plan, send, recv, round + 10);
    }
    weft_plan_destroy(plan);
    free(send);
    free(recv);
}

int main(void)
{
    setenv("WEFT_HEAP", "64M", 1);
    for (int world = 2; world <= 4; world++)
        ranks_run(world, no_room, NULL);
    return check_report("test_run_room");
}
