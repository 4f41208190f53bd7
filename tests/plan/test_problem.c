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
    weft_problem p = {.op = WEFT_OP_GEMM_AR, .m = huge, .n = huge, .k = 1, .l = 1};

    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "2^46 elements");
    p = (weft_problem){.op = WEFT_OP_GEMM_AR, .m = INT64_MAX, .n = 1, .k = INT64_MAX, .l = 1};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p = (weft_problem){.op = WEFT_OP_AG_GEMM,
                       .m = 1 << 20,
                       .n = 1 << 20,
                       .k = 64,
                       .l = 1,
                       .tuning.tile_m = 8,
                       .tuning.tile_n = 8};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "larger ones");
    p.tuning.tile_m = p.tuning.tile_n = 128;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    p = (weft_problem){.op = WEFT_OP_ALL_GATHER, .count = INT64_MAX};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p = (weft_problem){.op = WEFT_OP_ALL_GATHER, .count = huge, .tuning.tile_n = 1};
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    p.tuning.tile_n = huge;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
}

/* What is left open follows what is said; a type that D cannot have is refused on paper, not written. */
static void types_follow(void)
{
    static const struct {
        weft_dtype dtype, d_dtype, wire_dtype;
    } defaults[] = {{WEFT_F32, WEFT_F32, WEFT_F32},       {WEFT_F16, WEFT_F16, WEFT_F32},
                    {WEFT_BF16, WEFT_BF16, WEFT_F32},     {WEFT_I8, WEFT_I32, WEFT_I32},
                    {WEFT_FP8_E4M3, WEFT_BF16, WEFT_F32}, {WEFT_FP8_E5M2, WEFT_BF16, WEFT_F32}};
    weft_error_text error;
    weft_problem p;

    for (int i = 0; i < 6; i++) {
        weft_problem_init(&p, WEFT_OP_GEMM_RS);
        p.m = p.n = p.k = 4;
        p.dtype = defaults[i].dtype;
        CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
        CHECK_INT(p.d_dtype, defaults[i].d_dtype);
        CHECK_INT(p.wire_dtype, defaults[i].wire_dtype);
    }
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++)
        for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_FP8_E5M2; dtype++)
            for (weft_dtype d = WEFT_F32; d <= WEFT_FP8_E5M2; d++) {
                bool fp8 = dtype >= WEFT_FP8_E4M3;
                bool possible = (dtype <= WEFT_I8 || fp8) &&
                                (d <= WEFT_BF16 || (dtype == WEFT_I8 && (d == WEFT_I8 || d == WEFT_I32)) ||
                                 (fp8 && d >= WEFT_FP8_E4M3));

                weft_problem_init(&p, op);
                p.m = p.n = p.k = 4;
                p.dtype = dtype;
                p.d_dtype = d;
                CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), possible ? WEFT_OK : WEFT_ERR_ARGUMENT);
            }
}

/* auto may become the schedule that has a use for it. */
static void sums_stay_until_it_is_chosen(void)
{
    weft_error_text error;
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_ALL_REDUCE);
    p.count = 4;
    p.tuning.sums_stay = 1;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    CHECK_INT(p.tuning.sums_stay, 1);
    p.schedule = WEFT_SCHEDULE_ONE_SHOT;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    CHECK_INT(p.tuning.sums_stay, 0);
}

/* fp8 is moved and multiplied, never added up as it is. */
static void fp8_is_not_reduced(void)
{
    weft_error_text error;
    weft_problem p;

    for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++) {
        bool reduces = op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;

        weft_problem_init(&p, op);
        p.dtype = WEFT_FP8_E4M3;
        p.count = 4;
        CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), reduces ? WEFT_ERR_ARGUMENT : WEFT_OK);
        if (reduces)
            CHECK_HAS(error.text, "cannot reduce float8_e4m3fn");
    }
    weft_problem_init(&p, WEFT_OP_GEMM_RS);
    p.m = p.n = p.k = 4;
    p.dtype = p.wire_dtype = WEFT_FP8_E5M2;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "cannot travel as float8_e5m2");
}

/* What a later weft may give a meaning is not ignored. */
static void reserved_is_refused(void)
{
    weft_error_text error;
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    p.tuning.reserved[3] = 1;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "reserved");
}

/* More than there is to cut is no cut, whatever the number; and no product has no elements. */
static void extremes_are_plain(void)
{
    weft_error_text error;
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.m = 10;
    p.n = 20;
    p.k = 30;
    p.tuning.copiers = 1;
    p.tuning.tile_m = p.tuning.tile_n = p.tuning.tile_k = p.tuning.chunk_k = p.tuning.raster = INT64_MAX;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    CHECK(p.tuning.tile_m == 10 && p.tuning.tile_n == 20 && p.tuning.tile_k == 30 && p.tuning.chunk_k == 30 &&
          p.tuning.raster <= 20);
    p.l = 0;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_OK);
    CHECK(p.m == 0 && p.n == 0 && p.l == 1);
    p.l = -1;
    CHECK_INT(weft_problem_resolve(&p, 2, &p, &error), WEFT_ERR_ARGUMENT);
}

int main(void)
{
    const size_t hole = offsetof(weft_problem, m) - offsetof(weft_problem, layout) - sizeof(weft_layout) +
                        offsetof(weft_problem, granule_m) - offsetof(weft_problem, tuning.reserved);
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
    /* A field that were left out would show here: all but `size`, a hole and what is reserved must count. */
    CHECK_INT(ignored, sizeof(one.size) + hole);
    CHECK(weft_problem_hash(&one, 2) != weft_problem_hash(&one, 3));
    what_no_machine_holds_is_refused();
    types_follow();
    fp8_is_not_reduced();
    sums_stay_until_it_is_chosen();
    reserved_is_refused();
    extremes_are_plain();
    return check_report("test_plan_problem");
}
