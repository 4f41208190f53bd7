/*
 * A whole round against the closed form y[t] = sum over k of w[t,k] * round(x[t] * factor(expert)), for every
 * rung, both modes and many shapes. Exact data (small integers, weights with few bits) must come out exactly;
 * real data must give the same bits for every number of ranks and every rung, and lie within the derived
 * bound.
 */
#include <math.h>

#include "core/dtype.h"
#include "bench/standin/contest.h"
#include "bench/standin/standin.h"
#include "moe/moe.h"
#include "support/check.h"
#include "support/ranks.h"

enum { GLOBAL_PARTS = 8 };

typedef struct round_case {
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_moe_mode mode;
    weft_moe_impl impl;
    int *table;     /* or NULL */
    bool integers;  /* exact data */
    bool blocks;    /* hide the row callback, so that reduced mode stores results */
    bool symmetric; /* x in symmetric memory */
    int kind;       /* of routing: see route */
    uint64_t seed;
    uint64_t *bits; /* hash per global token, compared between runs; 0 = not set */
    int ranks;
} round_case;

enum { RANDOM, NOBODY, SOME_EMPTY, ONE_EXPERT, ALL_NONE, SOME_NONE, FULL, KINDS };

/* The tokens of all ranks are the tokens of GLOBAL_PARTS parts, so that any number of ranks has the same
 * ones. */
static void make_part(const round_case *c, int part, weft_contest_data *data)
{
    int64_t tokens = c->shape.tokens / GLOBAL_PARTS;
    int topk = c->shape.topk;
    uint64_t state = c->seed * 77 + (uint64_t)part;

    if (c->kind == NOBODY || (c->kind == SOME_EMPTY && part % 4 == 1))
        tokens = 0;
    weft_contest_fill(&c->shape, c->dtype, c->seed, part, tokens, 0, data);
    for (int64_t i = 0; i < tokens * topk; i++) {
        if (c->kind == ONE_EXPERT)
            data->expert[i] = i % topk == 0 ? c->shape.experts - 1 : -1;
        if (c->kind == ALL_NONE || (c->kind == SOME_NONE && check_random(&state) % 3 == 0))
            data->expert[i] = -1;
        if (c->integers)
            data->weight[i] = (float)(check_random(&state) % 9) * 0.25f - 1.0f;
    }
    for (int64_t i = 0; c->integers && i < tokens * c->shape.hidden; i++)
        weft_element_set(c->dtype, data->x, (size_t)i, (double)(check_random(&state) % 5) - 2);
}

static double rounding(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-24;
}

/* Checks one element: value against the sum in double. */
static bool element_right(const round_case *c, const weft_standin *standin, const weft_contest_data *data,
                          int64_t t, int64_t i, double value)
{
    double x = weft_element_get(c->dtype, data->x, (size_t)(t * c->shape.hidden + i)), sum = 0, size = 0;
    int topk = c->shape.topk, terms = 0;

    for (int k = 0; k < topk; k++) {
        int expert = data->expert[t * topk + k];
        float rounded[1];

        if (expert < 0)
            continue;
        weft_element_set(c->dtype, rounded, 0, x * weft_standin_factor(standin, expert));
        sum += (double)data->weight[t * topk + k] * weft_element_get(c->dtype, rounded, 0);
        size += fabs((double)data->weight[t * topk + k] * weft_element_get(c->dtype, rounded, 0));
        terms++;
    }
    if (c->integers && c->mode == WEFT_MOE_EXACT)
        return value == sum;
    /* fp32 sums (with weights of 22 bits at least), one rounding to the dtype, in reduced mode one more a
     * rank */
    return fabs(value - sum) <=
           size * (terms + 2) * 0x1p-22 + 1e-7 +
               rounding(c->dtype) * (c->mode == WEFT_MOE_REDUCED ? 2 * size : fabs(sum) * 1.01);
}

static void check_result(const round_case *c, const weft_standin *standin, const weft_contest_data *data,
                         int part, const void *y)
{
    size_t row = (size_t)c->shape.hidden * weft_dtype_size(c->dtype);
    long wrong = 0;

    for (int64_t t = 0; t < data->tokens; t++) {
        uint64_t hash = weft_hash(WEFT_HASH_START, (const char *)y + (size_t)t * row, row);
        uint64_t *seen = c->bits ? &c->bits[part * (c->shape.tokens / GLOBAL_PARTS) + t] : &hash;

        for (int64_t i = 0; i < c->shape.hidden; i++)
            wrong += !element_right(c, standin, data, t, i,
                                    weft_element_get(c->dtype, y, (size_t)(t * c->shape.hidden + i)));
        if (!*seen)
            *seen = hash;
        CHECK(*seen == hash);
    }
    CHECK_INT(wrong, 0);
}

static void run_round(weft_group *group, void *argument)
{
    const round_case *c = argument;
    size_t row = (size_t)c->shape.hidden * weft_dtype_size(c->dtype);
    weft_contest_data part, all = {0};
    weft_moe_config config;
    weft_moe *moe = NULL;
    weft_standin standin = {.dtype = c->dtype, .hidden = c->shape.hidden, .topk = c->shape.topk};
    weft_moe_expert expert = weft_standin_expert(&standin);
    int first = GLOBAL_PARTS * weft_rank(group) / c->ranks,
        last = GLOBAL_PARTS * (weft_rank(group) + 1) / c->ranks;
    int64_t counts[GLOBAL_PARTS];
    char *y;

    weft_moe_config_init(&config);
    config.experts = c->shape.experts;
    config.topk = c->shape.topk;
    config.hidden = c->shape.hidden;
    config.tokens = c->shape.tokens;
    config.dtype = c->dtype;
    config.mode = c->mode;
    config.impl = c->impl;
    config.expert_rank = c->table;
    if (c->blocks)
        expert.row = NULL;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    all.expert = malloc((size_t)(c->shape.tokens * c->shape.topk) * 4);
    all.weight = malloc((size_t)(c->shape.tokens * c->shape.topk) * 4);
    y = malloc((size_t)c->shape.tokens * row);
    if (c->symmetric)
        CHECK_INT(weft_alloc(group, (size_t)c->shape.tokens * row, 0, &all.x), WEFT_OK);
    else
        all.x = malloc((size_t)c->shape.tokens * row);
    for (int p = first; p < last; p++) {
        part = (weft_contest_data){.expert = all.expert + all.tokens * c->shape.topk,
                                   .weight = all.weight + all.tokens * c->shape.topk,
                                   .x = (char *)all.x + (size_t)all.tokens * row};
        make_part(c, p, &part);
        counts[p] = part.tokens;
        all.tokens += part.tokens;
    }
    for (int pass = 0; pass < 2; pass++) {
        weft_moe_input input = {.size = sizeof(input),
                                .tokens = all.tokens,
                                .x = all.x,
                                .expert = pass ? NULL : all.expert,
                                .weight = pass ? NULL : all.weight};
        int64_t done = 0;

        memset(y, 0xff, (size_t)c->shape.tokens * row);
        CHECK_INT(weft_moe_forward(moe, 0, &input, &expert, y), WEFT_OK);
        for (int p = first; p < last; p++) {
            part = (weft_contest_data){.tokens = counts[p],
                                       .expert = all.expert + done * c->shape.topk,
                                       .weight = all.weight + done * c->shape.topk,
                                       .x = (char *)all.x + (size_t)done * row};
            check_result(c, &standin, &part, p, y + (size_t)done * row);
            done += counts[p];
        }
    }
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    if (c->symmetric)
        weft_free(group, all.x);
    else
        free(all.x);
    free(all.expert);
    free(all.weight);
    free(y);
}

static void run_case(round_case c, int ranks)
{
    c.ranks = ranks;
    ranks_run(ranks, run_round, &c);
}

/* The contest's shapes (a little smaller per part), all rungs, all world sizes: the same bits everywhere. */
static void contest_shapes(void)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (int s = 0; s < WEFT_CONTEST_TESTS; s += check_repeat(1, 1)) {
        round_case c = {.shape = weft_contest_tests[s], .dtype = WEFT_F16, .seed = 11 + (uint64_t)s};

        c.shape.tokens = (c.shape.tokens + GLOBAL_PARTS - 1) / GLOBAL_PARTS * GLOBAL_PARTS;
        c.shape.tokens = c.shape.tokens > 64 && check_repeat(1, 0) ? 32 : c.shape.tokens;
        c.bits = calloc((size_t)c.shape.tokens, sizeof(*c.bits));
        for (int w = 0; w < 5; w++) {
            c.symmetric = w % 2;
            c.impl = WEFT_MOE_FUSED;
            run_case(c, worlds[w]);
            c.impl = (weft_moe_impl)(1 + (s + w) % 3);
            run_case(c, worlds[w]);
        }
        free(c.bits);
        c.bits = NULL;
        c.impl = WEFT_MOE_FUSED;
        c.mode = WEFT_MOE_REDUCED;
        run_case(c, worlds[s % 5]);
    }
}

/* Odd shapes, every kind of routing, every rung, mode and type, with data that must come out exactly. */
static void odd_shapes(void)
{
    static const weft_contest_shape shapes[] = {
        {7, 3, 1, 16},    {5, 1, 33, 16},  {16, 16, 100, 8}, {3, 2, 2880, 8},
        {50, 8, 257, 24}, {11, 4, 64, 16}, {9, 5, 7, 40},
    };
    static const weft_dtype types[] = {WEFT_F16, WEFT_BF16, WEFT_F32};
    int permuted[64];
    uint64_t seed = 1;

    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int ranks = 1; ranks <= 5; ranks++)
                for (int impl = 0; impl < 5; impl++) {
                    round_case c = {.shape = shapes[s],
                                    .dtype = types[seed % 3],
                                    .mode = impl == 4 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT,
                                    .impl = (weft_moe_impl)(impl % 4),
                                    .integers = true,
                                    .kind = kind,
                                    .blocks = seed % 2,
                                    .symmetric = seed % 5 == 0,
                                    .table = seed % 4 == 0 ? permuted : NULL,
                                    .seed = seed};

                    if (c.dtype == WEFT_BF16)
                        c.shape.experts = c.shape.experts > 7 ? 7 : c.shape.experts;
                    if (c.shape.topk > c.shape.experts)
                        c.shape.topk = c.shape.experts;
                    for (int e = 0; e < c.shape.experts; e++)
                        permuted[e] = (e * 7 + (int)seed) % ranks;
                    run_case(c, ranks);
                    seed++;
                }
}

/* Reduced mode gives the same bits every time, with and without stored results in exact data. */
static void reduced_repeats(void)
{
    round_case c = {.shape = {128, 8, 4096, 32}, .dtype = WEFT_F16, .mode = WEFT_MOE_REDUCED, .seed = 5};
    uint64_t bits[32] = {0};

    c.bits = bits;
    for (int i = 0; i < 4; i++)
        run_case(c, 4);
}

/* Ranks that have mappings of their own, as processes do, in which the windows of two groups lie differently
 * far apart. */
enum { APART = 3, APART_HIDDEN = 5, APART_TOKENS = 4 };

typedef struct apart {
    const weft_id *id;
    int rank;
} apart;

static void negate(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context, (void)expert;
    for (int64_t i = 0; i < rows * APART_HIDDEN; i++)
        ((float *)out[i / APART_HIDDEN])[i % APART_HIDDEN] =
            -((const float *)in[i / APART_HIDDEN])[i % APART_HIDDEN];
}

/* Tokens in memory of the group that the layer's was split from. */
static void *give_from_the_parent(void *opaque)
{
    const apart *self = opaque;
    weft_group *parent = NULL, *sub = NULL, *alone[3] = {NULL};
    int32_t where[APART_TOKENS];
    float *x = NULL, y[APART_TOKENS * APART_HIDDEN];
    weft_moe_input input = {.size = sizeof(input), .tokens = APART_TOKENS, .expert = where};
    weft_moe_expert expert = {.size = sizeof(expert), .block = negate};
    weft_moe_config config;
    weft_moe *moe = NULL;
    long wrong = 0;

    CHECK_INT(weft_group_create(self->id, self->rank, APART, &parent), WEFT_OK);
    for (int i = 0; i < 3; i++) /* rank 0 has the first windows before the others have them */
        CHECK_INT(weft_group_split(parent, self->rank ? -1 : 0, 0, &alone[i]), WEFT_OK);
    for (int i = 0; i < 3; i++)
        weft_group_free(alone[i]);
    CHECK_INT(weft_group_split(parent, 0, -self->rank, &sub), WEFT_OK);
    CHECK_INT(weft_alloc(parent, sizeof(y), 0, (void **)&x), WEFT_OK);
    weft_moe_config_init(&config);
    config.experts = APART;
    config.topk = 1;
    config.hidden = APART_HIDDEN;
    config.tokens = APART_TOKENS;
    config.dtype = WEFT_F32;
    CHECK_INT(weft_moe_create(sub, &config, &moe), WEFT_OK);
    for (int i = 0; i < APART_TOKENS; i++)
        where[i] = (self->rank + i) % APART;
    for (int i = 0; i < APART_TOKENS * APART_HIDDEN; i++)
        x[i] = (float)(100 * self->rank + i);
    input.x = x;
    CHECK_INT(weft_moe_forward(moe, 0, &input, &expert, y), WEFT_OK);
    for (int i = 0; i < APART_TOKENS * APART_HIDDEN; i++)
        wrong += y[i] != -x[i];
    CHECK_INT(wrong, 0);
    weft_moe_free(moe);
    weft_group_free(sub);
    weft_group_free(parent);
    return NULL;
}

static void tokens_of_a_parent(void)
{
    pthread_t threads[APART];
    apart ranks[APART];
    weft_id id;

    CHECK_INT(weft_id_create(&id), WEFT_OK);
    for (int rank = 0; rank < APART; rank++) {
        ranks[rank] = (apart){&id, rank};
        CHECK_INT(pthread_create(&threads[rank], NULL, give_from_the_parent, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < APART; rank++)
        pthread_join(threads[rank], NULL);
}

int main(void)
{
    tokens_of_a_parent();
    contest_shapes();
    odd_shapes();
    reduced_repeats();
    return check_report("test_moe_layer");
}
