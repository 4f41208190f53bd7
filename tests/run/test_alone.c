/*
 * Sizes that change with every call: once the ranks have met for a product, the next one of another size is
 * planned by each rank alone. They meet again only where it needs more memory than there is, and those who
 * ask for different things are still told.
 */
#include "run/alone_cases.h"

#include "choose/choose.h"
#include "run/program.h"
#include "support/ranks.h"

#include <unistd.h>

#define TUNED "test_run_alone.tuned"

static void new_counts(weft_group *group, void *argument)
{
    enum { ELEMENTS = 100000 };
    float *data = malloc(ELEMENTS * sizeof(*data));

    (void)argument;
    for (int64_t count = ELEMENTS; count > 10000; count -= 9973) {
        uint64_t syncs = group->sync;

        for (int64_t i = 0; i < count; i++)
            data[i] = (float)(i % 100 + weft_rank(group));
        CHECK_INT(weft_all_reduce(group, data, data, count, WEFT_F32, WEFT_MAX), WEFT_OK);
        CHECK(data[count - 1] == (float)((count - 1) % 100 + weft_size(group) - 1));
        if (count < ELEMENTS)
            CHECK_INT(group->sync, syncs);
    }
    free(data);
}

/* Sizes that rise: the ranks meet for a few of them. */
static void rising_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;
    int met = 0;

    (void)argument;
    CHECK_INT(weft_alloc(group, 4 * SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (int64_t m = 16; m < 9000; m += 450) {
        uint64_t syncs = group->sync;

        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, m), WEFT_OK);
        met += group->sync != syncs;
    }
    CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, MOST), WEFT_OK);
    CHECK(met >= 2 && met <= 6);
    weft_free(group, symmetric);
}

/* Of two that ask for different sizes one may have to meet the others and one not. */
static void different_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;
    int64_t large = 6000;

    (void)argument;
    CHECK_INT(weft_alloc(group, 4 * SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, MOST), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        bool odd = weft_rank(group) == 1;

        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, odd ? 7 : 9), WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "m=7");
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 11), WEFT_OK);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, odd ? large : 12), WEFT_ERR_MISMATCH);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 12), WEFT_OK);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 13 + i), WEFT_OK);
    }
    weft_free(group, symmetric);
}

/* An ag_gemm of so many rows, whose plan takes twice as much memory on rank 0 as on the last one. */
static void multiply_rows(weft_group *group, int64_t m, int64_t k)
{
    enum { PANEL = 32 };
    float *a = calloc((size_t)m, sizeof(*a)), *d = malloc((size_t)m * (PANEL + 1) * sizeof(*d));
    float b[PANEL + 1] = {0};
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};
    weft_problem problem;

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = m;
    problem.n = PANEL * weft_size(group) + 1;
    problem.k = k;
    problem.tuning.tile_m = problem.tuning.tile_n = 1; /* by panels */
    CHECK_INT(weft_ag_gemm(group, &problem, &operands), WEFT_OK);
    free(d);
    free(a);
}

enum { MANY_ROWS = 60000 };

/* More such plans than a rank keeps; between them one without k, for which ranks meet: nobody may still have
 * it where another does not. */
static void large_plans(weft_group *group, void *argument)
{
    (void)argument;
    for (int i = 0, m = MANY_ROWS; i < 4; i++, m = MANY_ROWS) {
        multiply_rows(group, MANY_ROWS, 0);
        for (int j = 0; j <= i; j++)
            multiply_rows(group, --m, 1);
    }
}

/* A plan for which ranks met that is larger by itself than all they keep: rank 0, which has to make one of
 * the small ones again, may not drop it then, since the others still have both. */
static void one_very_large_plan(weft_group *group, void *argument)
{
    (void)argument;
    for (int i = 0; i <= 5; i++)
        multiply_rows(group, MANY_ROWS - i, 1);
    multiply_rows(group, 5 * MANY_ROWS, 0);
    multiply_rows(group, MANY_ROWS - 1, 1);
    multiply_rows(group, 5 * MANY_ROWS, 0);
}

/* Ranks that may have more threads than others go by those of rank 0, also after a problem that all refuse,
 * for which nothing that they have kept is made again and nobody meets for the next size. */
static void uneven_cores(weft_group *group, void *argument)
{
    weft_plan *plan = NULL;
    weft_problem refused;
    uint64_t syncs;

    (void)argument;
    group->cores = weft_rank(group) ? 2 : 4;
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, 20), WEFT_OK);
    weft_problem_init(&refused, WEFT_OP_AG_GEMM);
    refused.m = refused.n = (int64_t)1 << 31;
    refused.k = 1;
    refused.tuning.tile_m = refused.tuning.tile_n = 1;
    CHECK_INT(weft_plan_create(group, &refused, &plan), WEFT_ERR_ARGUMENT);
    syncs = group->sync;
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, 21), WEFT_OK);
    CHECK_INT(group->sync - syncs, 0);
}

static void in_turn(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    (void)context;
    for (int i = 0; i < count; i++)
        body(argument, i);
}

/* So do they when the program brings threads, as many as one of the ranks had. */
static void own_threads(weft_group *group, void *argument)
{
    (void)argument;
    group->cores = weft_rank(group) ? 2 : 4;
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 0)
        CHECK_INT(weft_set_parallel(in_turn, NULL, 4), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, 20), WEFT_OK);
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 0)
        CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
}

/* Keeps a schedule for m rows, as `weft tune` would; everyone waits for it. */
static void tune(weft_group *group, int64_t m, weft_schedule schedule)
{
    weft_error_text error = {0};
    weft_problem problem;
    weft_tuned tuned = {.schedule = schedule};

    weft_problem_init(&problem, WEFT_OP_GEMM_AR);
    problem.d_dtype = WEFT_F32;
    problem.m = m;
    problem.n = 48;
    problem.k = 40;
    CHECK_INT(weft_problem_resolve(&problem, weft_size(group), &problem, &error), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 0)
        CHECK_INT(
            weft_tuned_keep(weft_choose_tuned_as(group), &problem, weft_size(group), &tuned, "test", &error),
            WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* By which schedule a gemm_ar of m rows is run; whether the ranks met for it. */
static weft_schedule schedule_of(weft_group *group, int64_t m, bool *met)
{
    uint64_t syncs = group->sync;

    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m), WEFT_OK);
    *met = group->sync != syncs;
    return group->session->cached->part.problem.schedule;
}

/* A file of weft tune is a reason to meet as little as none: all go by what it said when they met last. */
static void tuned_sizes(weft_group *group, void *argument)
{
    weft_plan *plan = NULL;
    weft_problem problem;
    bool met;

    (void)argument;
    tune(group, 5, WEFT_SCHEDULE_ONE_SHOT);
    tune(group, 6, WEFT_SCHEDULE_TWO_SHOT);
    schedule_of(group, MOST, &met);
    CHECK_INT(schedule_of(group, 5, &met), WEFT_SCHEDULE_ONE_SHOT);
    CHECK(!met);
    tune(group, 6, WEFT_SCHEDULE_ONE_SHOT);
    tune(group, 7, WEFT_SCHEDULE_TWO_SHOT);
    CHECK_INT(schedule_of(group, 6, &met), WEFT_SCHEDULE_TWO_SHOT);
    CHECK(!met);
    weft_problem_init(&problem, WEFT_OP_GEMM_AR);
    problem.m = problem.n = problem.k = 8;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    weft_plan_destroy(plan);
    CHECK_INT(schedule_of(group, 7, &met), WEFT_SCHEDULE_TWO_SHOT);
    CHECK(!met);
    new_sizes(group, NULL);
    late_rank(group, NULL);
}

int main(void)
{
    setenv("WEFT_TUNE", "off", 1);
    if (!check_brief())
        ranks_run(2, one_very_large_plan, NULL);
    for (int world = 2; world <= 3; world++) {
        ranks_run(world, new_sizes, NULL);
        ranks_run(world, late_rank, NULL);
        ranks_run(world, new_counts, NULL);
        ranks_run(world, rising_sizes, NULL);
        ranks_run(world, different_sizes, NULL);
        if (!check_brief())
            ranks_run(world, large_plans, NULL);
        ranks_run(world, uneven_cores, NULL);
        ranks_run(world, own_threads, NULL);
    }
    for (int world = 2; world <= 3; world++) {
        unlink(TUNED);
        setenv("WEFT_TUNE", TUNED, 1);
        ranks_run(world, tuned_sizes, NULL);
    }
    unlink(TUNED);
    return check_report("test_run_alone");
}
