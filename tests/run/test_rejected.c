/* A rank that rejects its arguments tells the others in that very call: all get an error at once, the
 * sentence of each says what was wrong and on which rank, and the group goes on. */
#include <stdbool.h>

#include "support/check.h"
#include "support/ranks.h"

enum { SMALL = 8, LARGE = 1 << 16, BAD = 1, RANKS_MOST = 10 };

static float from[LARGE];

/* What a rank brings along; `bad`: it is the one whose argument is wrong. */
typedef struct rank_state {
    weft_group *group;
    bool bad;
    float *to;
    void *object;
    weft_plan *plan;
    weft_moe_config config;
} rank_state;

static weft_status alloc_nowhere(rank_state *s)
{
    void *memory;

    return weft_alloc(s->group, 64, 0, s->bad ? NULL : &memory);
}

static weft_status split_nowhere(rank_state *s)
{
    weft_group *sub;

    return weft_group_split(s->group, 0, 0, s->bad ? NULL : &sub);
}

static weft_status layer_of_nothing(rank_state *s)
{
    weft_moe *moe;

    return weft_moe_create(s->group, s->bad ? NULL : &s->config, &moe);
}

static weft_status layer_nowhere(rank_state *s)
{
    weft_moe *moe;

    return weft_moe_create(s->group, &s->config, s->bad ? NULL : &moe);
}

static weft_status layer_impossible(rank_state *s)
{
    weft_moe *moe;

    s->config.topk += s->bad ? 100 : 0;
    return weft_moe_create(s->group, &s->config, &moe);
}

static weft_status layer_unsized(rank_state *s)
{
    weft_moe_config config = s->config;
    weft_moe *moe;

    config.size = s->bad ? 3 : sizeof(config);
    return weft_moe_create(s->group, &config, &moe);
}

static weft_status plan_of(rank_state *s, bool problem_given, bool plan_given)
{
    weft_problem problem;
    weft_plan *plan;

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = problem.n = problem.k = 64;
    return weft_plan_create(s->group, problem_given ? &problem : NULL, plan_given ? &plan : NULL);
}

static weft_status plan_of_nothing(rank_state *s)
{
    return plan_of(s, !s->bad, true);
}

static weft_status plan_nowhere(rank_state *s)
{
    return plan_of(s, true, !s->bad);
}

static weft_status run_of(rank_state *s, bool sized, bool given)
{
    weft_operands operands = {.size = sized ? sizeof(operands) : 0, .send = given ? from : NULL};

    operands.recv = s->to;
    return weft_run(s->plan, &operands);
}

static weft_status run_unsized(rank_state *s)
{
    return run_of(s, !s->bad, true);
}

static weft_status run_of_nothing(rank_state *s)
{
    return run_of(s, true, !s->bad);
}

static weft_status run_on_stream(rank_state *s)
{
    weft_operands operands = {.size = sizeof(operands), .send = from, .recv = s->to};

    return weft_run_on(s->plan, &operands, s->bad ? s : NULL);
}

static weft_status product_of_nothing(rank_state *s)
{
    weft_problem problem;
    weft_operands operands = {.size = sizeof(operands), .a = from, .b = from, .d = s->to};

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = problem.n = problem.k = 64;
    return weft_ag_gemm(s->group, &problem, s->bad ? NULL : &operands);
}

/* Two products, of which one rank's D or A lies otherwise. */
static weft_status product_of_strides(rank_state *s, int64_t stride_a, int64_t stride_d)
{
    weft_problem problem;
    weft_operands operands = {.size = sizeof(operands), .a = from, .b = from, .d = s->to};

    weft_problem_init(&problem, WEFT_OP_GEMM_AR);
    problem.m = problem.n = problem.k = 64;
    problem.l = 2;
    operands.stride_a = s->bad ? stride_a : 0;
    operands.stride_d = s->bad ? stride_d : 0;
    return weft_gemm_ar(s->group, &problem, &operands);
}

static weft_status product_backwards(rank_state *s)
{
    return product_of_strides(s, -64 * 64, 0);
}

static weft_status product_over_itself(rank_state *s)
{
    return product_of_strides(s, 0, 64 * 64 - 1);
}

static weft_status product_out_of_reach(rank_state *s)
{
    return product_of_strides(s, INT64_MAX, 0);
}

static weft_status small_reduce(rank_state *s)
{
    return weft_all_reduce(s->group, from, s->bad ? NULL : s->to, SMALL, WEFT_F32, WEFT_SUM);
}

static weft_status large_reduce(rank_state *s)
{
    return weft_all_reduce(s->group, s->bad ? NULL : from, s->to, LARGE, WEFT_F32, WEFT_SUM);
}

/* Between elements, where the others have theirs. */
static weft_status reduce_crooked(rank_state *s, int64_t count)
{
    return weft_all_reduce(s->group, (const char *)from + (s->bad ? 2 : 0), s->to, count, WEFT_F32, WEFT_SUM);
}

static weft_status small_crooked(rank_state *s)
{
    return reduce_crooked(s, SMALL);
}

static weft_status large_crooked(rank_state *s)
{
    return reduce_crooked(s, LARGE - 1);
}

static weft_status counted_crooked(rank_state *s)
{
    int64_t counts[RANKS_MOST] = {1, 1};

    return weft_reduce_scatter_v(s->group, from, (char *)s->to + (s->bad ? 1 : 0), counts, WEFT_F16,
                                 WEFT_SUM);
}

static weft_status negative_gather(rank_state *s)
{
    return weft_all_gather(s->group, from, s->to, s->bad ? -1 : SMALL, WEFT_F32);
}

static weft_status broadcast_from_nobody(rank_state *s)
{
    return weft_broadcast(s->group, s->to, SMALL, WEFT_F32, s->bad ? 99 : 0);
}

/* More than any memory has: refused before anything of it is read. */
static weft_status counts_of_no_memory(rank_state *s)
{
    int64_t counts[RANKS_MOST] = {0};

    counts[0] = s->bad ? (int64_t)1 << 60 : 1;
    return weft_all_to_all_v(s->group, from, counts, s->to, counts, WEFT_BYTE);
}

static const struct {
    weft_status (*call)(rank_state *);
    const char *wrong; /* in the sentence of the rank that is to blame */
} calls[] = {
    {alloc_nowhere, "weft_alloc: pointer is NULL"},
    {split_nowhere, "weft_group_split: sub is NULL"},
    {layer_of_nothing, "weft_moe_create: config is NULL"},
    {layer_nowhere, "weft_moe_create: moe is NULL"},
    {layer_unsized, "config->size is not that of weft_moe_config"},
    {layer_impossible, "topk must be 1 to the number of experts"},
    {plan_of_nothing, "problem is NULL"},
    {plan_nowhere, "plan is NULL"},
    {run_unsized, "operands->size is 0"},
    {run_of_nothing, "NULL"},
    {run_on_stream, "no streams"},
    {product_of_nothing, "must be given"},
    {product_backwards, "the batch stride of A is -4096; it must not be negative"},
    {product_over_itself, "the batch stride of D is 4095: its 2 matrices"},
    {product_out_of_reach, "spans at most 2^46 elements"},
    {small_reduce, "a buffer is NULL"},
    {large_reduce, "NULL"},
    {small_crooked, "a buffer is not aligned for its type"},
    {large_crooked, "not aligned for float32"},
    {counted_crooked, "a buffer is not aligned for its type"},
    {negative_gather, "count must not be negative"},
    {broadcast_from_nobody, "root must be a rank"},
    {counts_of_no_memory, "too large"},
};

static void body(weft_group *group, void *argument)
{
    rank_state s = {.group = group, .bad = weft_rank(group) == BAD};
    weft_problem problem;
    float sum[SMALL];

    (void)argument;
    s.to = calloc(LARGE, sizeof(float));
    weft_set_deadlines(group, 60, 60); /* so that a rank that waits in vain is not waited for too long */
    weft_moe_config_init(&s.config);
    s.config.experts = s.config.topk = 2;
    s.config.hidden = s.config.tokens = 8;
    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.count = LARGE;
    CHECK_INT(weft_alloc(group, 64, 0, &s.object), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &problem, &s.plan), WEFT_OK);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        CHECK_INT(calls[i].call(&s), s.bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
        CHECK_HAS(weft_error(group), s.bad ? calls[i].wrong : "rank 1 rejected its arguments");
        CHECK_INT(weft_all_reduce(group, from, sum, SMALL, WEFT_F32, WEFT_SUM), WEFT_OK);
    }
    /* The sentence travels with calls that show each other a board. */
    CHECK_INT(alloc_nowhere(&s), s.bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(group), "weft_alloc: pointer is NULL");
    /* Freeing is each rank's own affair. */
    CHECK_INT(weft_free(group, s.bad ? s.to : NULL), s.bad ? WEFT_ERR_ARGUMENT : WEFT_OK);
    CHECK_INT(weft_free(group, s.object), WEFT_OK);
    CHECK_INT(weft_free(group, NULL), WEFT_OK);
    weft_plan_destroy(s.plan);
    free(s.to);
}

int main(void)
{
    ranks_run(2, body, NULL);
    ranks_run(3, body, NULL);
    ranks_run(RANKS_MOST, body, NULL); /* more than meet in one round */
    return check_report("test_run_rejected");
}
