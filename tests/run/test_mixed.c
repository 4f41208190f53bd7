/* Ranks that make different kinds of calls find out; they do not wait for each other until the deadline. */
#include "support/check.h"
#include "support/ranks.h"

#include <string.h>

enum { SMALL = 8, LARGE = 1 << 16 };

typedef enum call { BARRIER, SMALL_REDUCE, LARGE_REDUCE, PLAN, DISPATCH, USE_GPU } call;

static const char *const names[] = {"weft_barrier",     "weft_all_reduce",   "weft_all_reduce",
                                    "weft_plan_create", "weft_moe_dispatch", "weft_group_use_gpu"};

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
    for (int rank = 0; rank < 3; rank++)
        CHECK_HAS(weft_error(group), names[m->of[rank]]);
    CHECK_INT(weft_barrier(group), WEFT_ERR_MISMATCH);
    weft_moe_free(moe);
}

static weft_status make_first(weft_group *group, const char *name)
{
    int64_t counts[3] = {1, 1, 1};
    float from[64] = {0}, to[64];
    weft_moe_config config;
    weft_problem problem;
    weft_plan *plan;
    weft_moe *moe;
    void *memory;

    if (!strcmp(name, "weft_alloc"))
        return weft_alloc(group, 64, 0, &memory);
    if (!strcmp(name, "weft_all_gather"))
        return weft_all_gather(group, from, to, 1, WEFT_F32);
    if (!strcmp(name, "weft_all_gather_v"))
        return weft_all_gather_v(group, from, to, counts, WEFT_F32);
    if (!strcmp(name, "weft_group_split"))
        return weft_group_split(group, 0, 0, &group);
    if (!strcmp(name, "weft_plan_create")) {
        weft_problem_init(&problem, WEFT_OP_AG_GEMM);
        problem.m = problem.n = problem.k = 64;
        return weft_plan_create(group, &problem, &plan);
    }
    weft_moe_config_init(&config);
    config.experts = config.topk = 2;
    config.hidden = config.tokens = 8;
    return weft_moe_create(group, &config, &moe);
}

/* First calls of a group, which need memory before anything else: the sentence has both by their names. */
static void first_body(weft_group *group, void *argument)
{
    const char *const *calls = argument;

    CHECK_INT(make_first(group, calls[weft_rank(group) == 1]), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "different calls: rank ");
    CHECK_HAS(weft_error(group), calls[0]);
    CHECK_HAS(weft_error(group), calls[1]);
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
    static const char *firsts[][2] = {
        {"weft_alloc", "weft_all_gather"},       {"weft_all_gather_v", "weft_alloc"},
        {"weft_plan_create", "weft_alloc"},      {"weft_alloc", "weft_moe_create"},
        {"weft_moe_create", "weft_plan_create"}, {"weft_group_split", "weft_all_gather"}};

    for (size_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
        pthread_barrier_init(&mixes[i].together, NULL, 3);
        ranks_run(3, body, &mixes[i]);
        pthread_barrier_destroy(&mixes[i].together);
    }
    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        ranks_run(3, first_body, firsts[i]);
    ranks_run(3, too_late, NULL);
    return check_report("test_run_mixed");
}
