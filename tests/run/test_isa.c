/* Ranks whose CPUs have different instructions work together: the first has the best kernels, the second the
 * portable ones, which keep sums in another order. */
#include "support/procs.h"
#include "tp_case.h"

static void products(int rank, void *unused)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        weft_layout layout;
    } kinds[] = {
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, WEFT_LAYOUT_SCATTER_ROWS},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B, WEFT_LAYOUT_SCATTER_COLS},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT, WEFT_LAYOUT_SCATTER_ROWS},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, WEFT_LAYOUT_GATHER_A},
    };
    weft_group *group;

    (void)unused;
    if (rank == 1)
        setenv("WEFT_ISA", "portable", 1);
    CHECK_INT(weft_init(&group), WEFT_OK);
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
        for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_I8; dtype++) {
            tp_case t = {.integers = true, .seed = kind * 8 + dtype};
            tp_instance s[TP_OPERANDS];
            weft_operands operands;
            weft_plan *plan = NULL;

            weft_problem_init(&t.problem, kinds[kind].op);
            t.problem.schedule = kinds[kind].schedule;
            t.problem.layout = kinds[kind].layout;
            t.problem.dtype = dtype;
            t.problem.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : dtype;
            t.problem.m = 150;
            t.problem.n = 70;
            t.problem.k = 800;
            tp_place(&t, 2, rank, NULL, s);
            for (int which = 0; which < TP_OPERANDS; which++)
                tp_fill(&t, which, &s[which]);
            operands = tp_operands(s);
            CHECK_INT(weft_plan_create(group, &t.problem, &plan), WEFT_OK);
            CHECK_INT(weft_run(plan, &operands), WEFT_OK);
            CHECK_INT(tp_wrong(&t, 2, &s[TP_D]), 0);
            weft_plan_destroy(plan);
            tp_release(s);
        }
    weft_finalize(group);
}

int main(void)
{
    procs_run(2, products, NULL);
    return check_report("test_run_isa");
}
