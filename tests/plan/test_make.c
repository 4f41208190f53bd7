/*
 * What holds for every part that is made: lanes tile the task list, ENTER and EXIT frame lane 0, ranges stay
 * inside their pools, regions inside their operands, and the posts made are the posts announced.
 */
#include "interpret.h"

#include "plan/user_operands.h"
#include "support/check.h"

static void check_part(const weft_plan_part *part)
{
    uint32_t next = 0;

    CHECK(part->lane_count > 0);
    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        CHECK_INT(part->lanes[lane].task0, next);
        next += part->lanes[lane].task_count;
        for (uint32_t i = part->lanes[lane].task0; i < next; i++)
            CHECK_INT(part->tasks[i].lane, lane);
    }
    CHECK_INT(next, part->task_count);
    CHECK_INT(part->tasks[0].kind, WEFT_TASK_ENTER);
    CHECK_INT(part->tasks[part->lanes[0].task_count - 1].kind, WEFT_TASK_EXIT);
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];

        CHECK(task->region0 + task->region_count <= part->region_count);
        CHECK(task->wait0 + task->wait_count <= part->wait_count);
        CHECK(task->post0 + task->post_count <= part->post_count);
    }
    for (uint32_t i = 0; i < part->region_count; i++) {
        const weft_region *region = &part->regions[i];
        const weft_operand *operand = &part->operands[region->operand];

        CHECK(region->operand < part->operand_count);
        CHECK(region->row0 >= 0 && region->rows >= 0 && region->col0 >= 0 && region->cols >= 0);
        CHECK(region->batch >= 0 && region->batch < operand->batch);
        CHECK(region->row0 + region->rows <= weft_operand_rows(operand, part->world, region->rank));
        CHECK(region->col0 + region->cols <= weft_operand_cols(operand, part->world, region->rank));
    }
}

/* What the problem says of what is touched holds, and says no more where nothing is empty. */
static void check_touched(const weft_problem *p, const weft_plan_part *parts, int world)
{
    bool whole = p->op < WEFT_OP_ALL_REDUCE ? p->m >= world && p->n >= world && p->k >= world && p->l > 0
                                            : p->count >= world;
    uint32_t touched = 0, expected = weft_user_operands_touched(&parts->problem);

    for (int rank = 0; rank < world; rank++) {
        for (uint32_t i = 0; i < parts[rank].region_count; i++) {
            const weft_region *region = &parts[rank].regions[i];
            const weft_operand *operand = &parts[rank].operands[region->operand];

            if (operand->place == WEFT_PLACE_USER && region->rank != rank)
                touched |= 1u << operand->role;
        }
    }
    CHECK_INT(touched & ~expected, 0);
    if (whole && world > 1 && p->schedule != WEFT_SCHEDULE_TWO_LEVEL)
        CHECK_INT(touched, expected);
}

static int described;

static void check_problem(weft_problem problem, int world)
{
    weft_error_text error = {0};
    weft_plan_part parts[9];

    for (int rank = 0; rank < world; rank++) {
        CHECK_INT(weft_plan_make(&problem, world, rank, &parts[rank], &error), WEFT_OK);
        check_part(&parts[rank]);
        CHECK(parts[rank].hash == parts[0].hash);
        CHECK_INT(parts[rank].signal_count, parts[0].signal_count);
        CHECK_INT(parts[rank].operand_count, parts[0].operand_count);
        for (uint32_t i = 0; i < parts[rank].operand_count; i++) {
            const weft_operand *mine = &parts[rank].operands[i], *first = &parts[0].operands[i];

            CHECK(mine->rows == first->rows && mine->cols == first->cols && mine->batch == first->batch);
            CHECK(mine->place == first->place && mine->role == first->role && mine->dtype == first->dtype);
        }
    }
    for (int rank = 0; rank < world; rank++) {
        uint32_t *made = calloc(parts[rank].signal_count, sizeof(*made));

        for (int from = 0; from < world; from++) {
            for (uint32_t i = 0; i < parts[from].post_count; i++)
                made[parts[from].posts[i].signal] += parts[from].posts[i].rank == rank;
        }
        for (uint32_t i = 0; i < parts[rank].signal_count; i++)
            CHECK_INT(made[i], parts[rank].signal_posts[i]);
        free(made);
    }
    check_touched(&problem, parts, world);
    for (int rank = 0; rank < world; rank++)
        weft_plan_part_free(&parts[rank]);
    if (check_failures && !described++)
        fprintf(stderr, "first failure in %s\n", interpret_describe(&problem, world));
}

static void every_kind_in_any_world(void)
{
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        for (uint64_t seed = 1; seed <= 300; seed++) {
            uint64_t state = seed;
            weft_problem problem = interpret_random(kind.op, kind.schedule, kind.layout, &state);

            check_problem(problem, 1 + (int)(seed % 9));
        }
    }
}

/* Few rows of A that are gathered first meet each column of B once, whatever number of ranks they come from.
 */
static void few_gathered_rows_read_b_once(void)
{
    for (int world = 2; world <= 5; world++) {
        weft_plan_part part;
        weft_error_text error;
        weft_problem problem;
        int64_t cols = 0;

        weft_problem_init(&problem, WEFT_OP_AG_GEMM);
        problem.schedule = WEFT_SCHEDULE_UNFUSED;
        problem.m = 3 + world;
        problem.n = problem.k = 120;
        problem.tuning.tile_n = 16;
        CHECK_INT(weft_plan_make(&problem, world, 1, &part, &error), WEFT_OK);
        for (uint32_t i = 0; i < part.task_count; i++) {
            const weft_task *task = &part.tasks[i];

            if (task->kind == WEFT_TASK_GEMM) {
                cols += weft_task_regions(&part, task)->cols;
                CHECK_INT(weft_task_regions(&part, task)->rows, problem.m);
            }
        }
        CHECK_INT(cols, 120 / world);
        weft_plan_part_free(&part);
    }
}

/* Long collectives that are staged go round in the memory of a few chunks. */
static void staging_does_not_grow(void)
{
    for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++) {
        weft_problem problem = {.op = op,
                                .schedule =
                                    op == WEFT_OP_ALL_REDUCE ? WEFT_SCHEDULE_TWO_SHOT : WEFT_SCHEDULE_PULL,
                                .count = 10000,
                                .tuning = {.tile_n = 10, .workers = 2, .staged = 1}};
        weft_plan_part parts[3];
        int64_t elements = 0;

        CHECK(interpret_make(&problem, 3, parts));
        for (uint32_t i = 0; i < parts->operand_count; i++)
            if (parts->operands[i].place == WEFT_PLACE_STAGING)
                elements += parts->operands[i].rows * parts->operands[i].cols;
        CHECK(elements > 0 && elements <= 4 * 4 * 2 * 10);
        interpret_free(parts, 3);
    }
}

/* A rank that still has sums to make says before that it touches its peers no more, where a lane has none. */
static void done_does_not_wait_for_sums(void)
{
    weft_plan_part part;
    weft_error_text error;
    weft_problem problem;
    int said = 0;

    weft_problem_init(&problem, WEFT_OP_GEMM_RS);
    problem.schedule = WEFT_SCHEDULE_DIRECT;
    problem.m = 2;
    problem.n = 46 * 16;
    problem.k = 24;
    problem.tuning.tile_n = 16;
    problem.tuning.workers = 132;
    CHECK_INT(weft_plan_make(&problem, 6, 0, &part, &error), WEFT_OK);
    for (uint32_t i = 0; i < part.post_count; i++)
        said += part.posts[i].signal == WEFT_SIGNAL_DONE(6, 0);
    CHECK_INT(said, 5);
    for (uint32_t lane = 0; lane < part.lane_count; lane++) {
        bool sums = false;

        for (uint32_t i = 0; i < part.lanes[lane].task_count; i++) {
            const weft_task *task = &part.tasks[part.lanes[lane].task0 + i];

            sums |= task->kind == WEFT_TASK_REDUCE;
            for (uint32_t j = 0; j < task->post_count; j++)
                CHECK(!sums || part.posts[task->post0 + j].signal != WEFT_SIGNAL_DONE(6, 0));
        }
    }
    weft_plan_part_free(&part);
}

static void impossible_problems_are_refused(void)
{
    weft_error_text error = {0};
    weft_plan_part part;
    weft_problem problem = {.op = WEFT_OP_AG_GEMM, .m = 4, .n = 4, .k = 4, .l = 1};

    problem.schedule = WEFT_SCHEDULE_AUTO;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
    problem.schedule = WEFT_SCHEDULE_ONE_SHOT;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "RotatingA");
    problem.schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_B;
    problem.layout = WEFT_LAYOUT_GATHER_A;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "gather b");
    problem.layout = WEFT_LAYOUT_SCATTER_ROWS;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
    problem.layout = WEFT_LAYOUT_DEFAULT;
    problem.m = -1;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
    problem.m = 4;
    CHECK_INT(weft_plan_make(&problem, 2, 2, &part, &error), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_plan_make(&problem, 0, 0, &part, &error), WEFT_ERR_ARGUMENT);
    problem.op = WEFT_OP_BROADCAST;
    problem.schedule = WEFT_SCHEDULE_PULL;
    problem.root = 2;
    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_ERR_ARGUMENT);
}

int main(void)
{
    every_kind_in_any_world();
    few_gathered_rows_read_b_once();
    staging_does_not_grow();
    done_does_not_wait_for_sums();
    impossible_problems_are_refused();
    return check_report("test_plan_make");
}
