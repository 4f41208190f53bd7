/* A plan or a run for which there is no room is an error on every rank, and costs the plans made before
 * nothing. Symmetric operands need no room beside them. */
#include "support/check.h"
#include "support/ranks.h"

#include <stdlib.h>

enum { COUNT = 300000 };

static weft_status make(weft_group *group, int64_t count, weft_plan **plan)
{
    weft_problem problem;

    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.dtype = WEFT_F32;
    problem.count = count;
    problem.schedule = WEFT_SCHEDULE_TWO_SHOT;
    return weft_plan_create(group, &problem, plan);
}

static weft_status make_product(weft_group *group, weft_op op, weft_dtype dtype, int64_t m, int64_t n,
                                int64_t k, weft_plan **plan)
{
    weft_problem problem;

    weft_problem_init(&problem, op);
    problem.dtype = dtype;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    return weft_plan_create(group, &problem, plan);
}

/* Operands outside symmetric memory pass through memory that larger ones would want more of. */
static void run_and_check(weft_group *group, weft_plan *plan, float *send, float *recv, int round)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    int world = weft_size(group), wrong = 0;

    for (int i = 0; i < COUNT; i++)
        send[i] = (float)((i + round) % 7 + weft_rank(group));
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    for (int i = 0; i < COUNT; i++)
        wrong += recv[i] != (float)((i + round) % 7 * world + world * (world - 1) / 2);
    CHECK_INT(wrong, 0);
}

static void no_room(weft_group *group, void *unused)
{
    float *send = malloc(COUNT * sizeof(*send)), *recv = malloc(COUNT * sizeof(*recv));
    weft_operands large = {.size = sizeof(large), .send = send, .recv = recv};
    weft_plan *plan = NULL, *larger = NULL, *staged = NULL;

    (void)unused;
    CHECK_INT(make(group, COUNT, &plan), WEFT_OK);
    CHECK_INT(make(group, 100000000, &larger), WEFT_OK);
    run_and_check(group, plan, send, recv, 0);
    for (int round = 1; round < 4; round++) {
        CHECK_INT(weft_run(larger, &large), WEFT_ERR_MEMORY);
        CHECK_HAS(weft_error(group), "WEFT_HEAP");
        CHECK_INT(make_product(group, WEFT_OP_GEMM_RS, WEFT_F32, 8192, 8192, 64, &staged), WEFT_ERR_MEMORY);
        CHECK_HAS(weft_error(group), "WEFT_HEAP");
        CHECK(staged == NULL);
        /* More than the system has for the rank alone. */
        CHECK_INT(make_product(group, WEFT_OP_GEMM_AR, WEFT_F16, 64, 16, (int64_t)1 << 38, &staged),
                  WEFT_ERR_MEMORY);
        CHECK_HAS(weft_error(group), "bytes of scratch");
        CHECK(staged == NULL);
        run_and_check(group, plan, send, recv, round);
        run_and_check(group, plan, send, recv, round + 10);
    }
    weft_plan_destroy(larger);
    weft_plan_destroy(plan);
    free(send);
    free(recv);
}

/* Most of what a rank may have is operands: in one piece, in two, and in groups that have none of it. */
static void symmetric(weft_group *group, void *unused)
{
    static const size_t bytes[] = {40 << 20, 30 << 20};

    (void)unused;
    for (int pieces = 2; pieces >= 1; pieces--) {
        size_t count = bytes[pieces - 1] / sizeof(float), wrong = 0;
        float *send = NULL, *recv = NULL;
        weft_group *sub = NULL;

        CHECK_INT(weft_alloc(group, bytes[pieces - 1], 0, (void **)&send), WEFT_OK);
        recv = send;
        if (pieces == 2)
            CHECK_INT(weft_alloc(group, bytes[1], 0, (void **)&recv), WEFT_OK);
        else { /* two of this size are more than a rank may have: that is said here, and costs nothing */
            void *second = NULL;

            CHECK_INT(weft_alloc(group, bytes[0], 0, &second), WEFT_ERR_MEMORY);
            CHECK_HAS(weft_error(group), "WEFT_HEAP");
            CHECK(second == NULL);
        }
        for (size_t i = 0; i < count; i++)
            send[i] = (float)(i % 5);
        CHECK_INT(weft_all_reduce(group, send, recv, (int64_t)count, WEFT_F32, WEFT_SUM), WEFT_OK);
        for (size_t i = 0; i < count; i++)
            wrong += recv[i] != (float)(i % 5) * (float)weft_size(group);
        CHECK_INT(wrong, 0);
        /* The world's memory can be had by its sub-groups where it lies. */
        CHECK_INT(weft_group_split(group, 0, -weft_rank(group), &sub), WEFT_OK);
        for (size_t i = 0; i < count; i++)
            send[i] = (float)(i % 5);
        CHECK_INT(weft_all_reduce(sub, send, recv, (int64_t)count, WEFT_F32, WEFT_SUM), WEFT_OK);
        for (size_t i = 0; i < count; i++)
            wrong += recv[i] != (float)(i % 5) * (float)weft_size(group);
        CHECK_INT(wrong, 0);
        weft_group_free(sub);
        if (recv != send)
            CHECK_INT(weft_free(group, recv), WEFT_OK);
        CHECK_INT(weft_free(group, send), WEFT_OK);
    }
}

/* A product whose A is `bytes` of every rank. */
static weft_status gather_rows(weft_group *group, const float *a, size_t bytes)
{
    enum { K = 1024, N = 8 };
    int64_t rows = (int64_t)(bytes / sizeof(*a) / K) * weft_size(group);
    float *b = calloc((size_t)K * N, sizeof(*b)), *d = malloc((size_t)rows * N * sizeof(*d));
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};
    weft_problem problem;
    weft_status status;

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = rows;
    problem.n = (int64_t)N * weft_size(group);
    problem.k = K;
    status = weft_ag_gemm(group, &problem, &operands);
    free(b);
    free(d);
    return status;
}

/* One rank's operands are not symmetric, and those of a product then too large to be staged: all are told,
 * and go on. A collective's go through the memory of a few chunks. */
static void one_of_them(weft_group *group, void *unused)
{
    int last = weft_rank(group) == weft_size(group) - 1;
    size_t bytes = 40 << 20, count = bytes / sizeof(float), wrong = 0;
    float *memory = NULL, *private_memory = calloc(bytes, 1), *own;

    (void)unused;
    CHECK_INT(weft_alloc(group, bytes, 0, (void **)&memory), WEFT_OK);
    own = last ? private_memory : memory;
    CHECK_INT(gather_rows(group, own, bytes), WEFT_ERR_MEMORY);
    CHECK_HAS(weft_error(group), "WEFT_HEAP");
    for (size_t i = 0; i < count; i++)
        own[i] = (float)(i % 5);
    CHECK_INT(weft_all_reduce(group, own, own, (int64_t)count, WEFT_F32, WEFT_SUM), WEFT_OK);
    for (size_t i = 0; i < count; i++)
        wrong += own[i] != (float)(i % 5) * (float)weft_size(group);
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_free(group, memory), WEFT_OK);
    free(private_memory);
}

int main(void)
{
    setenv("WEFT_HEAP", "64M", 1);
    for (int world = 2; world <= 4; world++)
        ranks_run(world, no_room, NULL);
    for (int world = 2; world <= 3; world++) {
        ranks_run(world, symmetric, NULL);
        ranks_run(world, one_of_them, NULL);
    }
    return check_report("test_run_room");
}
