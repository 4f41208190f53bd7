/* What makes two problems the same: every field, and nothing between the fields. And which are refused. */
#include "plan/plan.h"

#include "support/check.h"

#include <stddef.h>
#include <string.h>

/* No arithmetic on bytes overflows, and no generator runs for hours only to find that memory is short. */
static void what_no_machine_holds_is_refused(void)
{
    const int64_t huge = (int64_t)1 << 40;
    weft_error_text error;
    weft_problem p = {.op = WEFT_OP_GEMM_AR, .m = huge, .n = huge, .k = 1};

    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "2^46 elements");
    p = (weft_problem){.op = WEFT_OP_GEMM_AR, .m = INT64_MAX, .n = 1, .k = INT64_MAX};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p = (weft_problem){.op = WEFT_OP_AG_GEMM, .m = 1 << 20, .n = 1 << 20, .k = 64, .tile_m = 8, .tile_n = 8};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "larger ones");
    p.tile_m = p.tile_n = 128;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    p = (weft_problem){.op = WEFT_OP_ALL_GATHER, .count = INT64_MAX};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p = (weft_problem){.op = WEFT_OP_ALL_GATHER, .count = huge, .tile_n = 1};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p.tile_n = huge;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
}

int main(void)
{
    const size_t hole = offsetof(weft_problem, m) - offsetof(weft_problem, layout) - sizeof(weft_layout) +
                        sizeof(weft_problem) - offsetof(weft_problem, sums_stay) - sizeof(int);
    weft_problem one, other;
    size_t ignored = 0;

    memset(&one, 0, sizeof(one));
    one.size = sizeof(one);
    one.m = 3;
    for (size_t byte = 0; byte < sizeof(one); byte++) {
        memcpy(&other, &one, sizeof(one));
        ((unsigned char *)&other)[byte] ^= 1;
        bool same = weft_problem_same(&one, &other);

        CHECK_INT(weft_problem_hash(&one, 2) == weft_problem_hash(&other, 2), same);
        ignored += same;
    }
    /* A field that were left out would show here: all but `size` and the two holes must count. */
    CHECK_INT(ignored, sizeof(one.size) + hole);
    CHECK(weft_problem_hash(&one, 2) != weft_problem_hash(&one, 3));
    what_no_machine_holds_is_refused();
    return check_report("test_plan_problem");
}
