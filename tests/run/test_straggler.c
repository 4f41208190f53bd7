/*
 * Timing changes nothing: random sleeps before tasks, runs of different plans back to back without barriers,
 * other buffers and fresh data each time, every element exact. Then what ranks do wrong: all of them hear it,
 * and the group goes on.
 */
#include "plan/plan.h"
#include "run/cpu/executor.h"
#include "support/ranks.h"
#include "tp_case.h"

#include <time.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RUNS = 300 }; /* instrumented code is slow */
#else
enum { RUNS = 2000 };
#endif

enum { PLANS = 10, SETS = 2, SYMMETRIC_BYTES = 1 << 20 };

static _Atomic uint64_t naps;

static void sleep_sometimes(int rank, uint32_t task)
{
    uint64_t state = ++naps * 31 + (uint64_t)rank * 7 + task;

    if (check_random(&state) % 12 == 0)
        nanosleep(&(struct timespec){0, (long)(check_random(&state) % 150000)}, NULL);
}

static tp_case plan_case(int index, int world)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        weft_layout layout;
    } kinds[PLANS] = {
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, WEFT_LAYOUT_GATHER_A},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, WEFT_LAYOUT_GATHER_A},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B, WEFT_LAYOUT_GATHER_B},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, WEFT_LAYOUT_SCATTER_ROWS},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B, WEFT_LAYOUT_SCATTER_COLS},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT, WEFT_LAYOUT_SCATTER_ROWS},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, WEFT_LAYOUT_DEFAULT},
    };
    tp_case t = {.integers = true, .symmetric = index % 3 == 2 ? 0 : 31};

    weft_problem_init(&t.problem, kinds[index].op);
    t.problem.schedule = kinds[index].schedule;
    t.problem.layout = kinds[index].layout;
    t.problem.dtype = index % 2 ? WEFT_BF16 : WEFT_F32;
    t.problem.d_dtype = WEFT_F32;
    t.problem.m = 19 + index;
    t.problem.n = 23;
    t.problem.k = 17 + 3 * index;
    t.problem.tuning.tile_m = 4;
    t.problem.tuning.tile_n = 12;
    t.problem.tuning.tile_k = 8;
    t.problem.tuning.workers = index % 4 == 3 && world < 5 ? 2 : 1;
    return t;
}

static void stragglers(weft_group *group, void *argument)
{
    long runs = *(const long *)argument;
    int world = weft_size(group), rank = weft_rank(group);
    weft_plan *plans[PLANS];
    tp_case cases[PLANS];
    void *symmetric = NULL;

    CHECK_INT(weft_alloc(group, SETS * SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (int i = 0; i < PLANS; i++) {
        cases[i] = plan_case(i, world);
        CHECK_INT(weft_plan_create(group, &cases[i].problem, &plans[i]), WEFT_OK);
    }
    for (long run = 0; run < runs; run++) {
        uint64_t shared = (uint64_t)run;
        int index = (int)(check_random(&shared) % PLANS);
        tp_case t = cases[index];
        tp_instance s[TP_OPERANDS];
        weft_operands operands;
        int64_t wrong;

        t.seed = (uint64_t)run + 1;
        tp_place(&t, world, rank, (char *)symmetric + run % SETS * SYMMETRIC_BYTES, s);
        for (int which = 0; which < TP_OPERANDS; which++)
            tp_fill(&t, which, &s[which]);
        operands = tp_operands(s);
        CHECK_INT(weft_run(plans[index], &operands), WEFT_OK);
        wrong = tp_wrong(&t, world, &s[TP_D]);
        CHECK_INT(wrong, 0);
        if (wrong)
            tp_print(&t, world, rank);
        tp_release(s);
    }
    for (int i = 0; i < PLANS; i++)
        weft_plan_destroy(plans[i]);
}

/* One rank rejects its operands, or asks for another plan: an error on every rank, and the next run works. */
static void mistakes(weft_group *group, void *argument)
{
    int world = weft_size(group), rank = weft_rank(group);
    tp_case t = plan_case(0, world);
    tp_instance s[TP_OPERANDS];
    weft_operands operands, bad;
    weft_problem other = t.problem;
    weft_plan *plan = NULL, *none = NULL;
    void *symmetric = NULL;

    (void)argument;
    t.seed = 5;
    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &t.problem, &plan), WEFT_OK);
    tp_place(&t, world, rank, symmetric, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(&t, which, &s[which]);
    operands = tp_operands(s);
    for (int round = 0; round < 6; round++) {
        bool mine = rank == round % world;

        bad = operands;
        if (mine && round % 3 == 0)
            bad.a = NULL;
        if (mine && round % 3 == 1)
            bad.lda = 1;
        if (mine && round % 3 == 2)
            bad.size = 3;
        CHECK_INT(weft_run(plan, &bad), mine ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
        CHECK_HAS(weft_error(group), mine ? "" : "rejected its arguments");

        other.k = t.problem.k + mine;
        CHECK_INT(weft_plan_create(group, &other, &none), WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "k=17");
        CHECK_HAS(weft_error(group), "k=18");
        /* One rank runs while the others make a plan. */
        if (mine)
            CHECK_INT(weft_run(plan, &operands), WEFT_ERR_MISMATCH);
        else
            CHECK_INT(weft_plan_create(group, &t.problem, &none), WEFT_ERR_MISMATCH);
        CHECK(none == NULL);

        tp_fill(&t, TP_D, &s[TP_D]);
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        CHECK_INT(tp_wrong(&t, world, &s[TP_D]), 0);
    }
    other = t.problem;
    other.schedule = WEFT_SCHEDULE_ONE_SHOT;
    CHECK_INT(weft_plan_create(group, &other, &none), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "ag_gemm has no schedule");
    other = t.problem;
    other.m = -1;
    CHECK_INT(weft_ag_gemm(group, &other, &operands), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_ag_gemm(group, &t.problem, &operands), WEFT_OK);
    CHECK_INT(weft_ag_gemm(group, &t.problem, &operands), WEFT_OK);
    CHECK_INT(tp_wrong(&t, world, &s[TP_D]), 0);
    weft_plan_destroy(plan);
    tp_release(s);
}

int main(void)
{
    long runs = check_repeat(RUNS, 20000);

    ranks_run(2, mistakes, NULL);
    ranks_run(5, mistakes, NULL);
    weft_run_before_task = sleep_sometimes;
    ranks_run(2, stragglers, &runs);
    ranks_run(4, stragglers, &runs);
    runs /= 2;
    ranks_run(5, stragglers, &runs);
    return check_report("test_run_straggler");
}
