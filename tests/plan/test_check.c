/* The checker accepts every generator's plans, and says what is wrong with plans that are. */
#include "interpret.h"
#include "plan/check.h"

#include "support/check.h"

static void check_accepts(const weft_problem *problem, int world)
{
    weft_plan_part parts[9];
    weft_check_report report;
    weft_error_text error;

    CHECK(interpret_make(problem, world, parts));
    CHECK_INT(weft_plan_check(parts, world, &report, &error), WEFT_OK);
    if (report.count)
        fprintf(stderr, "%s: %s\n", interpret_describe(problem, world), report.findings[0].text);
    CHECK_INT(report.count, 0);
    CHECK(report.tasks >= 2 * world);
    interpret_free(parts, world);
}

static void every_world_and_shape(const interpret_kind *kind)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 3, 2}, {13, 11, 7}, {2, 17, 9}, {9, 9, 0}, {0, 4, 4}};

    for (int world = 1; world <= 9; world++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            for (int workers = 1; workers <= 3; workers++) {
                weft_problem problem = {.op = kind->op,
                                        .layout = kind->layout,
                                        .schedule = kind->schedule,
                                        .m = shapes[i][0],
                                        .n = shapes[i][1],
                                        .k = shapes[i][2],
                                        .l = 2,
                                        .count = shapes[i][0] * shapes[i][1],
                                        .alpha = 1,
                                        .beta = 1,
                                        .bias = 1,
                                        .tuning.tile_m = 2,
                                        .tuning.tile_n = 4,
                                        .tuning.tile_k = 2,
                                        .b_form = (weft_b_form)(i % 2),
                                        .root = world / 2,
                                        .tuning.workers = workers,
                                        .tuning.copiers = workers == 3 ? 3 : 0,
                                        .tuning.chunk_k = workers == 3 ? 2 : 0,
                                        .tuning.raster = workers == 3 ? 2 : 0,
                                        .tuning.sums_stay = workers == 3};

                check_accepts(&problem, world);
            }
        }
    }
}

static void random_problems(const interpret_kind *kind, long count, uint64_t base)
{
    for (long i = 0; i < count; i++) {
        uint64_t state = base + (uint64_t)i;
        weft_problem problem = interpret_random(kind->op, kind->schedule, kind->layout, &state);
        int world = 1 + (int)(check_random(&state) % 9);

        problem.root = (int)(check_random(&state) % (uint64_t)world);
        check_accepts(&problem, world);
    }
}

/* ---- one plan, broken in a known way each time --------------------------------------------------- */

typedef void (*breaker)(weft_plan_part *parts);

static void check_finds_in(weft_problem problem, breaker breaks, const char *sentence, int rank)
{
    weft_plan_part parts[3];
    weft_check_report report;
    weft_error_text error;

    CHECK(interpret_make(&problem, 3, parts));
    breaks(parts);
    CHECK_INT(weft_plan_check(parts, 3, &report, &error), WEFT_OK);
    CHECK(report.count > 0);
    CHECK_HAS(report.findings[0].text, sentence);
    CHECK_INT(report.findings[0].rank, rank);
    interpret_free(parts, 3);
}

static void check_finds(breaker breaks, const char *sentence, int rank)
{
    weft_problem problem = {.op = WEFT_OP_GEMM_RS,
                            .schedule = WEFT_SCHEDULE_REDUCESCATTER_TILING_A,
                            .m = 6,
                            .n = 4,
                            .k = 6,
                            .l = 1,
                            .alpha = 1,
                            .tuning.tile_m = 2};

    check_finds_in(problem, breaks, sentence, rank);
}

/* The tasks of a rank there: 0 ENTER; 1 and 2 raw products; 3 the product that ends the chain; 4 EXIT. */
static void lose_a_post(weft_plan_part *parts)
{
    parts[1].tasks[1].post_count--;
}

static void lose_the_wait(weft_plan_part *parts)
{
    parts[1].tasks[3].wait_count = 0;
}

static void wait_in_a_circle(weft_plan_part *parts)
{
    for (int rank = 0; rank < 3; rank++) {
        weft_task task = parts[rank].tasks[1];

        parts[rank].tasks[1] = parts[rank].tasks[2];
        parts[rank].tasks[2] = task;
    }
}

static void take_another_range(weft_plan_part *parts)
{
    parts[2].regions[parts[2].tasks[1].region0 + 1].cols--;
    parts[2].regions[parts[2].tasks[1].region0 + 2].rows--;
}

static void write_elsewhere(weft_plan_part *parts)
{
    parts[0].regions[parts[0].tasks[2].region0] = parts[0].regions[parts[0].tasks[3].region0];
}

static void leave_early(weft_plan_part *parts)
{
    parts[2].tasks[parts[2].lanes[0].task_count - 1].wait_count = 0;
}

static void shrink_one(weft_plan_part *parts)
{
    parts[1].regions[parts[1].tasks[1].region0].rows--;
}

static void forget_the_epilogue(weft_plan_part *parts)
{
    parts[0].tasks[3].flags &= (uint8_t)~WEFT_TASK_EPILOGUE;
}

int main(void)
{
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        uint64_t base = 1000000 * (uint64_t)(i + 1);
        long count = check_repeat(100, 2000);

        printf("%s %s: seeds %llu to %llu\n", weft_op_name(kind.op),
               weft_schedule_name(kind.op, kind.schedule), (unsigned long long)base,
               (unsigned long long)base + (unsigned long long)count - 1);
        every_world_and_shape(&kind);
        random_problems(&kind, count, base);
    }
    check_finds(lose_a_post, "not the", 2);
    check_finds(lose_the_wait, "race: GEMM task 3 of rank 1 reads partial of rank 1", 1);
    check_finds(wait_in_a_circle, "deadlock: GEMM task 1 of rank 0 waits for ever", 0);
    check_finds(take_another_range, "incomplete sum", 1);
    check_finds(write_elsewhere, "reads what nothing in this run has written: partial of rank 1", 1);
    check_finds(shrink_one, "shapes", 1);
    check_finds(forget_the_epilogue, "not what the problem asks for", 0);
    check_finds_in(
        (weft_problem){.op = WEFT_OP_ALL_GATHER, .schedule = WEFT_SCHEDULE_PULL, .count = 4}, leave_early,
        "may still touch send of rank 2, batch 0, rows 0..1, cols 0..4, when that rank's run has ended", 0);
    return check_report("test_plan_check");
}
