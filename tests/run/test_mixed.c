/* Ranks that make different kinds of calls find out; they do not wait for each other until the deadline. */
#include "support/check.h"
#include "support/ranks.h"

enum { SMALL = 8, LARGE = 1 << 16 };

typedef enum call { BARRIER, SMALL_REDUCE, LARGE_REDUCE, PLAN, DISPATCH, USE_GPU } call;

typedef struct mix {
    call of[3]; /* by rank */
    pthread_barrier_t together;
} mix;

static weft_status make_call(weft_group *group, call which, weft_moe *moe)
{
    static float from[LARGE];
    float *to = malloc(sizeof(*to) * LARGE);
    weft_problem problem;
    weft_plan *plan = NULL;
    weft_moe_input input = {.size = sizeof(input)};
    weft_status status = WEFT_OK;

    switch (which) {
    case BARRIER:
        status = weft_barrier(group);
        break;
    case SMALL_REDUCE:
    case LARGE_REDUCE:
        status = weft_all_reduce(group, from, to, which == SMALL_REDUCE ? SMALL : LARGE, WEFT_F32, WEFT_SUM);
        break;
    case PLAN:
        weft_problem_init(&problem, WEFT_OP_AG_GEMM);
        problem.m = problem.n = problem.k = 64;
        status = weft_plan_create(group, &problem, &plan);
        break;
    case DISPATCH:
        status = weft_moe_dispatch(moe, 0, &input, NULL);
        break;
    case USE_GPU: /* too late */
        status = weft_group_use_gpu(group, -1);
        break;
    }
    free(to);
    return status;
}

static void body(weft_group *group, void *argument)
{
    mix *m = argument;
    weft_moe_config config;
    weft_moe *moe = NULL;

    weft_moe_config_init(&config);
    config.experts = config.topk = 2;
    config.hidden = config.tokens = 8;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    CHECK_INT(make_call(group, SMALL_REDUCE, moe), WEFT_OK);
    CHECK_INT(make_call(group, LARGE_REDUCE, moe), WEFT_OK); /* its plan is there when the calls differ */
    pthread_barrier_wait(&m->together); /* a rank still in the last call may hear of the mismatch there */
    CHECK_INT(make_call(group, m->of[weft_rank(group)], moe), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "different calls");
    CHECK_INT(weft_barrier(group), WEFT_ERR_MISMATCH);
    weft_moe_free(moe);
}

/* A call that comes too late on all ranks is an error on all, and changes nothing. */
static void too_late(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(make_call(group, SMALL_REDUCE, NULL), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(group), "has been used on the CPU");
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

int main(void)
{
    static mix mixes[] = {{.of = {SMALL_REDUCE, BARRIER, BARRIER}},
                          {.of = {BARRIER, SMALL_REDUCE, SMALL_REDUCE}},
                          {.of = {LARGE_REDUCE, BARRIER, BARRIER}},
                          {.of = {BARRIER, LARGE_REDUCE, LARGE_REDUCE}},
                          {.of = {LARGE_REDUCE, LARGE_REDUCE, BARRIER}},
                          {.of = {BARRIER, PLAN, PLAN}},
                          {.of = {PLAN, BARRIER, PLAN}},
                          {.of = {DISPATCH, BARRIER, DISPATCH}},
                          {.of = {BARRIER, DISPATCH, DISPATCH}},
                          {.of = {SMALL_REDUCE, DISPATCH, DISPATCH}},
                          {.of = {DISPATCH, SMALL_REDUCE, DISPATCH}},
                          {.of = {DISPATCH, DISPATCH, LARGE_REDUCE}},
                          {.of = {LARGE_REDUCE, LARGE_REDUCE, DISPATCH}},
                          {.of = {PLAN, DISPATCH, PLAN}},
                          {.of = {BARRIER, USE_GPU, BARRIER}},
                          {.of = {USE_GPU, SMALL_REDUCE, SMALL_REDUCE}},
                          {.of = {LARGE_REDUCE, LARGE_REDUCE, USE_GPU}},
                          {.of = {USE_GPU, DISPATCH, USE_GPU}}};

    for (size_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
        pthread_barrier_init(&mixes[i].together, NULL, 3);
        ranks_run(3, body, &mixes[i]);
        pthread_barrier_destroy(&mixes[i].together);
    }
    ranks_run(3, too_late, NULL);
    return check_report("test_run_mixed");
}
