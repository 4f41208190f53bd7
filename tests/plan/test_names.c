/* Every name reads back as what it names, and the names users bring from elsewhere are known. */
#include "plan/plan.h"

#include "support/check.h"

int main(void)
{
    weft_op op;
    weft_schedule schedule;
    int count;

    for (int i = WEFT_OP_AG_GEMM; i <= WEFT_OP_BROADCAST; i++) {
        CHECK_INT(weft_op_parse(weft_op_name((weft_op)i), &op), 0);
        CHECK_INT(op, i);
        const weft_schedule *list = weft_schedule_list((weft_op)i, WEFT_LAYOUT_DEFAULT, &count);
        CHECK(count > 0);
        for (int s = 0; s < count; s++) {
            CHECK(list[s] != WEFT_SCHEDULE_AUTO);
            CHECK_INT(weft_schedule_parse(weft_schedule_name((weft_op)i, list[s]), &schedule), 0);
            CHECK_INT(schedule, list[s]);
        }
    }
    CHECK(!weft_schedule_list(WEFT_OP_AG_GEMM, WEFT_LAYOUT_SCATTER_ROWS, &count) && count == 0);
    CHECK(!weft_schedule_list(WEFT_OP_GEMM_RS, WEFT_LAYOUT_GATHER_A, &count) && count == 0);
    CHECK(!weft_schedule_list(WEFT_OP_AG_GEMM, (weft_layout)99, &count) && count == 0);
    CHECK_INT(weft_op_parse("gemm_xx", &op), -1);
    CHECK_INT(weft_schedule_parse("three_shot", &schedule), -1);
    CHECK_INT(weft_schedule_parse("triton_one_shot_all_reduce", &schedule), 0);
    CHECK_INT(schedule, WEFT_SCHEDULE_ONE_SHOT);
    CHECK_INT(weft_schedule_parse("multimem_all_reduce", &schedule), 0);
    CHECK_INT(schedule, WEFT_SCHEDULE_MULTIMEM);
    CHECK_INT(weft_schedule_parse("AllGather1D_TilingCD_RotatingB", &schedule), 0);
    CHECK_INT(schedule, WEFT_SCHEDULE_ALLGATHER_ROTATING_B);
    return check_report("test_plan_names");
}
