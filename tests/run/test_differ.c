/* The same call with another argument on one rank: an error on every rank, and the group goes on. */
#include "support/check.h"
#include "support/ranks.h"

#include <stdbool.h>
#include <stdlib.h>

enum { ODD = 1, SMALL = 16, LARGE = 1 << 15, WORLD = 3 };

static _Alignas(64) const float from[LARGE * WORLD];

typedef struct rank_state {
    weft_group *group;
    bool odd; /* this rank is the one that differs */
    float *to;
} rank_state;

static weft_status reduce_type(rank_state *s, int64_t count)
{
    return weft_all_reduce(s->group, from, s->to, count, s->odd ? WEFT_I32 : WEFT_F32, WEFT_SUM);
}

static weft_status reduce_reduction(rank_state *s, int64_t count)
{
    return weft_all_reduce(s->group, from, s->to, count, WEFT_F32, s->odd ? WEFT_MAX : WEFT_SUM);
}

static weft_status reduce_count(rank_state *s, int64_t count)
{
    return weft_all_reduce(s->group, from, s->to, count - s->odd, WEFT_F32, WEFT_SUM);
}

static weft_status another_collective(rank_state *s, int64_t count)
{
    return s->odd ? weft_all_gather(s->group, from, s->to, count, WEFT_F32)
                  : weft_all_to_all(s->group, from, s->to, count, WEFT_F32);
}

static weft_status scatter_reduction(rank_state *s, int64_t count)
{
    return weft_reduce_scatter(s->group, from, s->to, count, WEFT_F32, s->odd ? WEFT_MIN : WEFT_SUM);
}

static weft_status broadcast_root(rank_state *s, int64_t count)
{
    return weft_broadcast(s->group, s->to, count, WEFT_F32, s->odd ? 1 : 0);
}

static weft_status gather_root(rank_state *s, int64_t count)
{
    return weft_gather(s->group, from, s->to, count, WEFT_F32, s->odd ? 2 : 0);
}

static weft_status gather_type(rank_state *s, int64_t count)
{
    return weft_gather(s->group, from, s->to, count, s->odd ? WEFT_I32 : WEFT_F32, 0);
}

static weft_status scatter_root(rank_state *s, int64_t count)
{
    return weft_scatter(s->group, from, s->to, count, WEFT_F32, s->odd ? 2 : 0);
}

static weft_status scatter_count(rank_state *s, int64_t count)
{
    return weft_scatter(s->group, from, s->to, count - s->odd, WEFT_F32, 0);
}

static weft_status reduce_to_root(rank_state *s, int64_t count)
{
    return weft_reduce(s->group, from, s->to, count, WEFT_F32, WEFT_SUM, s->odd ? 2 : 0);
}

static weft_status reduce_to_reduction(rank_state *s, int64_t count)
{
    return weft_reduce(s->group, from, s->to, count, WEFT_F32, s->odd ? WEFT_MAX : WEFT_SUM, 0);
}

static weft_status reduce_to_type(rank_state *s, int64_t count)
{
    return weft_reduce(s->group, from, s->to, count, s->odd ? WEFT_I32 : WEFT_F32, WEFT_SUM, 0);
}

static weft_status gather_counts(rank_state *s, int64_t count)
{
    int64_t counts[WORLD] = {count, 3, s->odd ? 5 : 4};

    return weft_all_gather_v(s->group, from, s->to, counts, WEFT_F32);
}

static weft_status gather_counts_type(rank_state *s, int64_t count)
{
    int64_t counts[WORLD] = {count, 3, 4};

    return weft_all_gather_v(s->group, from, s->to, counts, s->odd ? WEFT_I32 : WEFT_F32);
}

static weft_status gather_or_reduce(rank_state *s, int64_t count)
{
    return s->odd ? weft_gather(s->group, from, s->to, count, WEFT_F32, 0)
                  : weft_reduce(s->group, from, s->to, count, WEFT_F32, WEFT_SUM, 0);
}

static weft_status scattered_reduction(rank_state *s, int64_t count)
{
    int64_t counts[WORLD] = {count, 3, 4};

    return weft_reduce_scatter_v(s->group, from, s->to, counts, WEFT_F32, s->odd ? WEFT_MAX : WEFT_SUM);
}

static weft_status alignment(rank_state *s, int64_t count)
{
    void *memory;

    return weft_alloc(s->group, (size_t)count, s->odd ? 4096 : 128, &memory);
}

static weft_status product(rank_state *s, int64_t count, float alpha, weft_act act, int transb, int workers,
                           bool scaled)
{
    static const float scale[64];
    weft_operands operands = {.size = sizeof(operands), .a = from, .b = from, .d = s->to};
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_GEMM_AR);
    p.m = count < 64 ? count : 64;
    p.n = p.k = 60;
    p.alpha = alpha;
    p.act = act;
    p.transb = transb;
    p.tuning.workers = workers;
    operands.row_scale = scaled ? scale : NULL;
    return weft_gemm_ar(s->group, &p, &operands);
}

static weft_status product_alpha(rank_state *s, int64_t count)
{
    return product(s, count, s->odd ? 3 : 2, WEFT_ACT_NONE, 0, 1, false);
}

static weft_status product_act(rank_state *s, int64_t count)
{
    return product(s, count, 1, s->odd ? WEFT_ACT_RELU : WEFT_ACT_NONE, 0, 1, false);
}

static weft_status product_trans(rank_state *s, int64_t count)
{
    return product(s, count, 1, WEFT_ACT_NONE, s->odd, 1, false);
}

static weft_status product_workers(rank_state *s, int64_t count)
{
    return product(s, count, 1, WEFT_ACT_NONE, 0, s->odd ? 2 : 1, false);
}

static weft_status product_scale(rank_state *s, int64_t count)
{
    return product(s, count, 1, WEFT_ACT_NONE, 0, 1, s->odd);
}

static weft_status product_granule(rank_state *s, int64_t count)
{
    weft_operands operands = {.size = sizeof(operands), .a = from, .b = from, .d = s->to};
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_GEMM_AR);
    p.m = count < 64 ? count : 64;
    p.n = 30;
    p.k = 60;
    p.granule_k = s->odd ? 8 : 4;
    return weft_gemm_ar(s->group, &p, &operands);
}

static weft_status layer(rank_state *s, int topk, weft_moe_mode mode, const int *expert_rank)
{
    weft_moe_config config;
    weft_moe *moe = NULL;
    weft_status status;

    weft_moe_config_init(&config);
    config.experts = 4;
    config.topk = topk;
    config.hidden = config.tokens = 8;
    config.mode = mode;
    config.expert_rank = expert_rank;
    status = weft_moe_create(s->group, &config, &moe);
    weft_moe_free(moe);
    return status;
}

static weft_status layer_topk(rank_state *s, int64_t count)
{
    (void)count;
    return layer(s, s->odd ? 3 : 2, WEFT_MOE_EXACT, NULL);
}

static weft_status layer_mode(rank_state *s, int64_t count)
{
    (void)count;
    return layer(s, 2, s->odd ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT, NULL);
}

static weft_status layer_places(rank_state *s, int64_t count)
{
    const int places[2][4] = {{0, 1, 2, 0}, {0, 2, 1, 0}};

    (void)count;
    return layer(s, 2, WEFT_MOE_EXACT, places[s->odd]);
}

static const struct {
    weft_status (*call)(rank_state *s, int64_t count);
    const char *name;
} calls[] = {
    {reduce_type, "all_reduce, dtype"},
    {reduce_reduction, "all_reduce, reduction"},
    {reduce_count, "all_reduce, count"},
    {another_collective, "all_gather, all_to_all"},
    {scatter_reduction, "reduce_scatter, reduction"},
    {broadcast_root, "broadcast, root"},
    {gather_root, "gather, root"},
    {gather_type, "gather, dtype"},
    {scatter_root, "scatter, root"},
    {scatter_count, "scatter, count"},
    {reduce_to_root, "reduce, root"},
    {reduce_to_reduction, "reduce, reduction"},
    {reduce_to_type, "reduce, dtype"},
    {gather_counts, "all_gather_v, counts"},
    {gather_counts_type, "all_gather_v, dtype"},
    {gather_or_reduce, "gather, reduce"},
    {scattered_reduction, "reduce_scatter_v, reduction"},
    {alignment, "alloc, alignment"},
    {product_alpha, "gemm_ar, alpha"},
    {product_act, "gemm_ar, act"},
    {product_trans, "gemm_ar, transb"},
    {product_workers, "gemm_ar, workers"},
    {product_scale, "gemm_ar, row_scale"},
    {product_granule, "gemm_ar, granule_k"},
    {layer_topk, "moe, topk"},
    {layer_mode, "moe, mode"},
    {layer_places, "moe, expert_rank"},
};

static void body(weft_group *group, void *argument)
{
    rank_state s = {.group = group, .odd = weft_rank(group) == ODD};

    (void)argument;
    s.to = calloc(LARGE * WORLD, sizeof(float));
    weft_set_deadlines(group, 60, 60); /* so that a rank that waits in vain is not waited for too long */
    for (int64_t count = SMALL; count <= LARGE; count *= LARGE / SMALL) {
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
            weft_status status = calls[i].call(&s, count);
            float sum[SMALL];

            CHECK_INT(status, WEFT_ERR_MISMATCH);
            if (status != WEFT_ERR_MISMATCH)
                fprintf(stderr, "%s, %lld elements, rank %d: %s\n", calls[i].name, (long long)count,
                        weft_rank(group), weft_error(group));
            CHECK_INT(weft_all_reduce(group, from, sum, SMALL, WEFT_F32, WEFT_SUM), WEFT_OK);
        }
    }
    free(s.to);
}

int main(void)
{
    ranks_run(WORLD, body, NULL);
    return check_report("test_run_differ");
}
