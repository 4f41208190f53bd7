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
                                        .tuning.sums_stay = workers == 3,
                                        .tuning.library = workers == 2,
                                        .tuning.exchange = workers - 1,
                                        .tuning.staged = (int)(i + (size_t)workers / 2) % 2};

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

/* The tasks of a rank there: 0 ENTER; 1 and 2 raw products; 3 the product that takes their sums; 4 EXIT. */
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

/* ---- what a stranger's plan may claim ------------------------------------------------------------ */

static weft_operand *operand_named(weft_plan_part *part, const char *name)
{
    for (uint32_t i = 0; i < part->operand_count; i++) {
        if (strcmp(part->operands[i].name, name) == 0)
            return &part->operands[i];
    }
    CHECK(!"the operand is there");
    return part->operands;
}

static void do_nothing(weft_plan_part *parts)
{
    for (int rank = 0; rank < 3; rank++) {
        weft_plan_part *part = &parts[rank];

        part->tasks[1] = part->tasks[part->lanes[0].task_count - 1];
        part->task_count = part->lanes[0].task_count = 2;
        part->tasks[0].post_count = 0;
        part->tasks[0].post0 = 0;
        for (int peer = 0; peer < 3; peer++) {
            if (peer == rank)
                continue;
            part->posts[part->tasks[0].post_count++] = (weft_post){WEFT_SIGNAL_ENTER(rank), peer};
            part->posts[part->tasks[0].post_count++] = (weft_post){WEFT_SIGNAL_DONE(3, rank), peer};
        }
        for (uint32_t signal = 6; signal < part->signal_count; signal++)
            part->signal_posts[signal] = 0;
    }
}

static void keep_the_result(weft_plan_part *parts)
{
    for (int rank = 0; rank < 3; rank++) {
        weft_operand *d = operand_named(&parts[rank], "D");

        d->place = WEFT_PLACE_STAGING;
        d->role = WEFT_ROLE_NONE;
        d->output = false;
    }
}

static void sum_in_bytes(weft_plan_part *parts)
{
    for (int rank = 0; rank < 3; rank++) {
        operand_named(&parts[rank], "partial")->dtype = WEFT_I8;
        operand_named(&parts[rank], "partial")->handed_on = false;
    }
}

static void pair_sums(weft_plan_part *parts)
{
    for (int rank = 0; rank < 3; rank++)
        operand_named(&parts[rank], "partial")->paired = true;
}

static void ask_for_another(weft_plan_part *parts)
{
    parts[1].problem.alpha = 2;
}

static void take_half_a_tile(weft_plan_part *parts)
{
    weft_task *task = &parts[1].tasks[3];

    for (uint32_t i = 0; i < task->region_count; i++) {
        if (i != task->destinations + 1u)
            parts[1].regions[task->region0 + i].rows = 1;
    }
}

static void add_backwards(weft_plan_part *parts)
{
    const weft_task *task = &parts[1].tasks[1];
    weft_region *sources = &parts[1].regions[task->region0 + task->destinations], first = sources[0];

    CHECK_INT(task->kind, WEFT_TASK_REDUCE);
    sources[0] = sources[2];
    sources[2] = first;
}

/* The first raw product of a rank only tells that it is there, before anything. */
static void post_before_its_enter(weft_plan_part *parts)
{
    weft_task *task = &parts[0].tasks[1];

    task->kind = WEFT_TASK_COPY;
    task->region_count = 2;
    task->destinations = 1;
    task->wait_count = 0;
    parts[0].regions[task->region0] = parts[0].regions[task->region0 + 1] = (weft_region){0};
}

static void spread_over_itself(weft_plan_part *parts)
{
    weft_task *task = &parts[0].tasks[1];

    while (task->destinations < 2)
        task++;
    parts[0].regions[task->region0 + 1] = parts[0].regions[task->region0];
}

static void start_a_row_later(weft_plan_part *parts)
{
    weft_task *task = &parts[2].tasks[1];

    while (!(task->flags & WEFT_TASK_HAS_ACC) || task->flags & WEFT_TASK_EPILOGUE)
        task++;
    parts[2].regions[task->region0 + task->destinations + 2].row0++;
}

/* The second tile of the lane does not begin: what it goes on with is what the first one carried. */
static void read_what_is_carried(weft_plan_part *parts)
{
    weft_plan_part *part = &parts[0];
    weft_task *task = &part->tasks[1];

    while (!(task->flags & WEFT_TASK_EPILOGUE && task->flags & WEFT_TASK_HAS_ACC))
        task++;
    task++;
    CHECK(task->flags & WEFT_TASK_CARRY);
    task->kind = WEFT_TASK_COPY;
    task->flags = 0;
    task->region_count = 2;
    task->destinations = 1;
    part->regions[task->region0] = part->regions[task->region0 + 1] = (weft_region){0};
}

static void pack_from_within(weft_plan_part *parts)
{
    for (uint32_t i = 0; i < 2; i++) {
        weft_region *region = &parts[1].regions[parts[1].tasks[1].region0 + i];

        region->col0++;
        region->cols--;
    }
}

/* The last task takes the C of the one before, which may be where that has put its D. */
static void take_used_c(weft_plan_part *parts)
{
    weft_plan_part *part = &parts[0];
    const weft_task *last = &part->tasks[part->lanes[0].task_count - 2], *before = last - 1;

    CHECK(last->flags & WEFT_TASK_HAS_C && before->flags & WEFT_TASK_HAS_C);
    part->regions[last->region0 + last->region_count - 1] =
        part->regions[before->region0 + before->region_count - 1];
}

/* A slice is fetched without waiting for the rank that adds it up: over what that rank may still read. */
static void fetch_a_slice_early(weft_plan_part *parts)
{
    weft_task *task = &parts[0].tasks[1];

    while (task->kind != WEFT_TASK_COPY)
        task++;
    CHECK_INT(task->wait_count, 1);
    task->wait_count = 0;
}

int main(void)
{
    const weft_problem all_reduce = {
        .op = WEFT_OP_ALL_REDUCE, .schedule = WEFT_SCHEDULE_ONE_SHOT, .count = 6};
    weft_problem product = {.op = WEFT_OP_GEMM_RS,
                            .schedule = WEFT_SCHEDULE_REDUCESCATTER_TILING_A,
                            .m = 6,
                            .n = 4,
                            .k = 6,
                            .l = 1,
                            .alpha = 1};
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
    check_finds(do_nothing, "has 8 elements that nothing writes", 0);
    check_finds(keep_the_result, "D of the problem is not", -1);
    check_finds(sum_in_bytes, "a type does not fit", 0);
    check_finds(pair_sums, "pairs of gates and ups meet", 0);
    check_finds(ask_for_another, "is of another problem", 1);
    check_finds(take_half_a_tile, "with other edges than those with which", 1);
    check_finds(post_before_its_enter, "before that rank's ENTER", 0);
    check_finds_in(all_reduce, add_backwards, "is added up in another order than on rank 0", 1);
    {
        weft_problem spread = all_reduce;

        spread.schedule = WEFT_SCHEDULE_MULTIMEM;
        check_finds_in(spread, spread_over_itself, "race: REDUCE task 1 of rank 0 writes recv of rank 0", 0);
        spread.schedule = WEFT_SCHEDULE_TWO_SHOT;
        spread.tuning.sums_stay = 1; /* so that the sum that is fetched is no matter of recv */
        check_finds_in(spread, fetch_a_slice_early, "which may be the memory of recv", 1);
    }
    product.tuning.sums_stay = 1;
    product.tuning.tile_m = 1;
    check_finds_in(product, start_a_row_later, "race: GEMM task", 2);
    product.b_form = WEFT_B_PACK_IN_RUN;
    check_finds_in(product, pack_from_within, "cuts a panel of a packed operand: packedB", 1);
    product.b_form = WEFT_B_PLAIN;
    product.beta = 1;
    check_finds_in(product, take_used_c, "which may be the memory of D", 0);
    check_finds_in((weft_problem){.op = WEFT_OP_AG_GEMM,
                                  .schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_A,
                                  .m = 6,
                                  .n = 6,
                                  .k = 6,
                                  .l = 1,
                                  .alpha = 1,
                                  .tuning = {.tile_m = 1, .copiers = 1, .chunk_k = 2}},
                   read_what_is_carried, "carried", 0);
    return check_report("test_plan_check");
}
