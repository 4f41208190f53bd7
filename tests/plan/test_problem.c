/* What makes two problems the same: every field, and nothing between the fields. */
#include "plan/plan.h"

#include "support/check.h"

#include <stddef.h>
#include <string.h>

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
    return check_report("test_plan_problem");
}
