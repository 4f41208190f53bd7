/*
 * A rank leaves as soon as its own part of the last call is done, also while a worker of another rank still
 * waits beside one that does what had waited for it. The order of events that this takes is forced: what
 * worker B of rank 0 asks is answered late (the linker puts the functions below between the executor and what
 * it calls), and worker A is held up before its last task.
 *
 *   rank 1             rank 0, A                       rank 0, B
 *                                                      a task of mine waits for rank 1
 *   enters             does all the tasks but one
 *                                                      all ranks have entered; waits for work
 *   is done, leaves    holds the last one              looks around, again and again
 */
#include <sched.h>

#include "group/group.h"
#include "run/cpu/executor.h"
#include "support/ranks.h"
#include "tp_case.h"

enum { WORLD = 2, WORKERS = 2, LOOKS = 40 };

static _Thread_local bool is_caller;   /* of rank 0 or 1; the other threads are workers */
static _Thread_local int asked = -1;   /* how often whether a rank has entered, since this thread waits */
static _Atomic bool forcing;           /* the run is the last one */
static _Atomic bool named, held;       /* B has found whom it waits for; A is before its last task */
static _Atomic int tasks, done, looks; /* of rank 0 in a run; of them in this one; of B since rank 1 left */
static weft_group *_Atomic group_of_a;

const char *__real_weft_op_name(weft_op op);
const char *__wrap_weft_op_name(weft_op op);
bool __real_weft_session_seen(weft_session *session, int rank);
bool __wrap_weft_session_seen(weft_session *session, int rank);
int __real_weft_group_find_dead(weft_group *group, int rank);
int __wrap_weft_group_find_dead(weft_group *group, int rank);

/* The first thing in a worker's wait. */
const char *__wrap_weft_op_name(weft_op op)
{
    asked = forcing ? 0 : -1;
    return __real_weft_op_name(op);
}

bool __wrap_weft_session_seen(weft_session *session, int rank)
{
    bool seen;

    if (!forcing || is_caller || session->rank != 0 || asked < 0)
        return __real_weft_session_seen(session, rank);
    while (asked == 1 && !held && !weft_group_failed(group_of_a))
        sched_yield();
    seen = __real_weft_session_seen(session, rank);
    if (asked == 0) {
        CHECK(!seen);
        named = true;
    }
    asked++;
    return seen;
}

int __wrap_weft_group_find_dead(weft_group *group, int rank)
{
    if (forcing && !is_caller && held && weft_group_absent(group, 1))
        looks++;
    return __real_weft_group_find_dead(group, rank);
}

static void hold_last(int rank, uint32_t task)
{
    (void)task;
    if (rank != 0)
        return;
    if (!forcing) {
        tasks++;
        return;
    }
    if (++done < tasks)
        return;
    CHECK(is_caller);
    held = true;
    while (looks < LOOKS && !weft_group_failed(group_of_a))
        sched_yield();
}

static void last_call(weft_group *group, void *argument)
{
    int rank = weft_rank(group);
    tp_case t = {.integers = true, .symmetric = 31, .seed = 3};
    tp_instance s[TP_OPERANDS];
    weft_operands operands;
    weft_plan *plan = NULL;
    void *symmetric = NULL;

    (void)argument;
    is_caller = true;
    weft_problem_init(&t.problem, WEFT_OP_AG_GEMM);
    t.problem.schedule = WEFT_SCHEDULE_DIRECT;
    t.problem.layout = WEFT_LAYOUT_GATHER_A;
    t.problem.dtype = t.problem.d_dtype = WEFT_F32;
    t.problem.m = t.problem.n = t.problem.k = 16;
    t.problem.tuning.workers = WORKERS;
    CHECK_INT(weft_alloc(group, 1 << 20, 0, &symmetric), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &t.problem, &plan), WEFT_OK);
    tp_place(&t, WORLD, rank, symmetric, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(&t, which, &s[which]);
    operands = tp_operands(s);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);

    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 0) {
        group_of_a = group;
        forcing = true;
    } else {
        while (!named)
            sched_yield();
    }
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(tp_wrong(&t, WORLD, &s[TP_D]), 0);
    weft_plan_destroy(plan);
    tp_release(s);
}

int main(void)
{
    weft_run_before_task = hold_last;
    ranks_run(WORLD, last_call, NULL);
    CHECK(looks >= LOOKS);
    return check_report("test_run_leave");
}
