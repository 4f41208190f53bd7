/*
 * Mixtures of experts nobody thought of, exactly: any number of ranks, experts, choices, tokens and elements,
 * every type, mode and rung, experts anywhere, rounds by forward, by their parts and through packed layouts,
 * ranks without tokens, rejected rounds, repeated routings. Buffers that are not symmetric lie between guard
 * pages.
 *
 * usage: test_fuzz_moe [seed]   runs that one layer
 */
#include "core/dtype.h"
#include "bench/standin/standin.h"
#include "moe/moe.h"
#include "support/check.h"
#include "support/guard.h"
#include "support/ranks.h"

#include <inttypes.h>

enum { EXPERTS = 12, WORLDS = 5, ROUNDS = 6 };

/* The same on every rank. */
typedef struct layer {
    uint64_t seed;
    weft_moe_config config;
    int table[EXPERTS];
} layer;

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static int world_of(uint64_t seed)
{
    return 1 + (int)((seed * 2654435761u >> 7) % WORLDS);
}

static void make_layer(uint64_t seed, int world, layer *l)
{
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    uint64_t s = seed * 77 + 5;
    weft_moe_config *c = &l->config;

    l->seed = seed;
    weft_moe_config_init(c);
    c->experts = 1 + (int)pick(&s, EXPERTS);
    c->topk = 1 + (int)pick(&s, (uint64_t)(c->experts < 5 ? c->experts : 5));
    c->hidden = 1 + (int64_t)pick(&s, pick(&s, 4) ? 70 : 700);
    c->tokens = 1 + (int64_t)pick(&s, pick(&s, 4) ? 20 : 90);
    c->dtype = dtypes[pick(&s, 3)];
    c->impl = (weft_moe_impl)(pick(&s, 2) ? 0 : pick(&s, 4));
    c->mode = c->impl == WEFT_MOE_FUSED ? (weft_moe_mode)pick(&s, 2) : WEFT_MOE_EXACT;
    c->lanes = 1 + (int)pick(&s, 2);
    for (int e = 0; e < c->experts; e++)
        l->table[e] = (int)pick(&s, (uint64_t)world);
    c->expert_rank = pick(&s, 2) ? l->table : NULL;
    c->wire = pick(&s, 3) ? WEFT_MOE_WIRE_GIVEN : WEFT_MOE_WIRE_FP8;
}

/* One rank's tokens of a round, and what comes back. */
typedef struct round {
    int64_t tokens;
    guarded x_guard, expert_guard, weight_guard, y_guard;
    char *x;
    int32_t *expert;
    float *weight;
} round_of;

/* Small integers: results and sums are exact in every type, also as fp8 with a scale. */
static void fill(const layer *l, uint64_t *s, char *symmetric, round_of *r)
{
    const weft_moe_config *c = &l->config;
    size_t size = weft_dtype_size(c->dtype);
    uint64_t shape = pick(s, 6);

    r->tokens = shape == 0 ? 0 : shape == 1 ? c->tokens : (int64_t)pick(s, (uint64_t)c->tokens + 1);
    r->x_guard = guarded_make((size_t)(r->tokens * c->hidden) * size);
    r->y_guard = guarded_make((size_t)(r->tokens * c->hidden) * size);
    r->expert_guard = guarded_make((size_t)(r->tokens * c->topk) * sizeof(int32_t));
    r->weight_guard = guarded_make((size_t)(r->tokens * c->topk) * sizeof(float));
    r->x = pick(s, 2) ? symmetric : r->x_guard.data;
    r->expert = r->expert_guard.data;
    r->weight = r->weight_guard.data;
    for (int64_t t = 0; t < r->tokens; t++) {
        int first = (int)pick(s, shape == 2 ? 1 : (uint64_t)c->experts);

        for (int k = 0; k < c->topk; k++) {
            r->expert[t * c->topk + k] = pick(s, 8) ? (first + k) % c->experts : -1;
            r->weight[t * c->topk + k] = (float)pick(s, 3) - 1;
        }
    }
    for (int64_t i = 0; i < r->tokens * c->hidden; i++)
        weft_element_set(c->dtype, r->x, (size_t)i, (double)pick(s, 5) - 2);
    memset(r->y_guard.data, 0xff, (size_t)(r->tokens * c->hidden) * size);
}

static void drop(round_of *r)
{
    guarded_drop(&r->x_guard);
    guarded_drop(&r->y_guard);
    guarded_drop(&r->expert_guard);
    guarded_drop(&r->weight_guard);
}

static long count_wrong(const layer *l, const round_of *r, bool weighted)
{
    const weft_moe_config *c = &l->config;
    long wrong = 0;

    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t i = 0; i < c->hidden; i++) {
            double sum = 0, x = weft_element_get(c->dtype, r->x, (size_t)(t * c->hidden + i));

            for (int k = 0; k < c->topk; k++)
                if (r->expert[t * c->topk + k] >= 0)
                    sum += (weighted ? (double)r->weight[t * c->topk + k] : 1) * x *
                           (1 + r->expert[t * c->topk + k]);
            wrong += weft_element_get(c->dtype, r->y_guard.data, (size_t)(t * c->hidden + i)) != sum;
        }
    return wrong;
}

/* Results entry by entry, or in a packed layout whose rows were gathered. */
static weft_status by_parts(weft_moe *moe, int lane, const layer *l, const weft_moe_input *input, bool packed,
                            void *y)
{
    const weft_moe_config *c = &l->config;
    size_t row_bytes = (size_t)c->hidden * weft_dtype_size(c->dtype);
    int64_t start[EXPERTS + 1] = {0}, rows = 0;
    weft_moe_view view = {.size = sizeof(view)};
    weft_status status = weft_moe_dispatch(moe, lane, input, &view);
    guarded results = {0};

    if (status != WEFT_OK)
        return status;
    if (packed)
        CHECK_INT(weft_moe_layout(moe, lane, 1 + (int64_t)(l->seed % 7), start, &rows), WEFT_OK);
    else
        rows = view.offset[view.experts];
    results = guarded_make((size_t)rows * row_bytes);
    if (packed)
        CHECK_INT(weft_moe_gather(moe, lane, start, results.data), WEFT_OK);
    for (int e = 0; e < view.experts; e++)
        for (int64_t i = view.offset[e]; i < view.offset[e + 1]; i++) {
            int64_t at = packed ? start[e] + i - view.offset[e] : i;
            char *to = (char *)results.data + (size_t)at * row_bytes;
            const void *from = packed ? to : view.row[view.entry_row[i]];

            for (int64_t k = 0; k < c->hidden; k++)
                weft_element_set(c->dtype, to, (size_t)k,
                                 weft_element_get(c->dtype, from, (size_t)k) * (1 + view.expert[e]));
        }
    status = weft_moe_combine(moe, lane, results.data, packed ? start : NULL, y);
    guarded_drop(&results);
    return status;
}

static void run(weft_group *group, void *argument)
{
    int rank = weft_rank(group), world = weft_size(group);
    char *symmetric = NULL;
    weft_moe *moe = NULL;
    weft_moe_expert expert;
    weft_standin standin;
    layer l;

    make_layer(*(uint64_t *)argument, world, &l);
    standin = (weft_standin){.dtype = l.config.dtype, .hidden = l.config.hidden, .topk = l.config.topk};
    expert = weft_standin_expert(&standin);
    CHECK_INT(weft_moe_create(group, &l.config, &moe), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)(l.config.tokens * l.config.hidden) * weft_dtype_size(l.config.dtype),
                         0, (void **)&symmetric),
              WEFT_OK);
    for (int turn = 0; moe && turn < ROUNDS; turn++) {
        uint64_t common = l.seed * 1009 + (uint64_t)turn, mine = common * 31 + (uint64_t)rank, way;
        int lane = turn % l.config.lanes, rejecting = -1;
        weft_status status, wanted = WEFT_OK;
        weft_moe_input input;
        round_of r;
        long wrong;

        check_random(&common);
        if (pick(&common, 7) == 0)
            rejecting = (int)pick(&common, (uint64_t)world);
        if (rejecting >= 0)
            wanted = rejecting == rank ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER;
        check_random(&mine);
        fill(&l, &mine, symmetric, &r);
        way = pick(&mine, 5);
        input = (weft_moe_input){sizeof(input), r.tokens, r.x, r.expert, way == 4 ? NULL : r.weight};
        if (rejecting == rank)
            input.tokens = l.config.tokens + 1;
        status = way < 2 ? by_parts(moe, lane, &l, &input, way == 1 || l.config.wire == WEFT_MOE_WIRE_FP8,
                                    r.y_guard.data)
                         : weft_moe_forward(moe, lane, &input, &expert, r.y_guard.data);
        wrong = status == WEFT_OK ? count_wrong(&l, &r, way != 4) : 0;
        CHECK_INT(status, wanted);
        CHECK_INT(wrong, 0);
        if (status != wanted || wrong)
            fprintf(stderr, "test_fuzz_moe: seed %" PRIu64 ", rank %d of %d, round %d: %s\n", l.seed, rank,
                    world, turn, status != wanted ? weft_error(group) : "wrong");
        /* Rows in symmetric memory are the caller's again when combine has returned. */
        drop(&r);
    }
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    CHECK_INT(weft_free(group, symmetric), WEFT_OK);
}

int main(int argc, char **argv)
{
    const long layers = check_repeat(150, 10000);

    if (argc > 1) {
        uint64_t seed = strtoull(argv[1], NULL, 10);

        ranks_run(world_of(seed), run, &seed);
        return check_report("test_fuzz_moe");
    }
    for (uint64_t seed = 0; seed < (uint64_t)layers; seed++)
        ranks_run(world_of(seed), run, &seed);
    return check_report("test_fuzz_moe");
}
