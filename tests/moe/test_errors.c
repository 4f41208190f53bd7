/*
 * Bad input: one clear error on the rank that erred, a short one on its peers in the same round, no hang, and
 * the next correct round works.
 */
#include "core/dtype.h"
#include "bench/standin/scale.h"
#include "bench/standin/standin.h"
#include "moe/moe.h"
#include "support/check.h"
#include "support/ranks.h"

#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, EXPERTS = 7, TOPK = 2, HIDDEN = 5, TOKENS = 4 };

typedef struct layer {
    weft_group *group;
    weft_moe *moe;
    weft_standin standin;
    weft_moe_expert expert;
    int32_t choice[(TOKENS + 1) * TOPK];
    float weight[(TOKENS + 1) * TOPK];
    float x[(TOKENS + 1) * HIDDEN], y[(TOKENS + 1) * HIDDEN];
    weft_moe_input input;
} layer;

static void set_good(layer *l)
{
    for (int i = 0; i < (TOKENS + 1) * TOPK; i++) {
        l->choice[i] = (i + weft_rank(l->group)) % EXPERTS;
        l->weight[i] = 0.5f;
    }
    for (int i = 0; i < (TOKENS + 1) * HIDDEN; i++)
        l->x[i] = (float)(i % 7 + weft_rank(l->group));
    l->input = (weft_moe_input){.size = sizeof(weft_moe_input),
                                .tokens = TOKENS,
                                .x = l->x,
                                .expert = l->choice,
                                .weight = l->weight};
}

static void check_good_round(layer *l)
{
    long wrong = 0;

    set_good(l);
    memset(l->y, 0xff, sizeof(l->y));
    CHECK_INT(weft_moe_forward(l->moe, 0, &l->input, &l->expert, l->y), WEFT_OK);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < HIDDEN; i++) {
            float sum = 0;

            for (int k = 0; k < TOPK; k++)
                sum += 0.5f * l->x[t * HIDDEN + i] * (float)(1 + l->choice[t * TOPK + k]);
            wrong += l->y[t * HIDDEN + i] != sum;
        }
    CHECK_INT(wrong, 0);
}

static void open_layer(layer *l, weft_group *group, weft_moe_impl impl, weft_moe_mode mode)
{
    weft_moe_config config;

    memset(l, 0, sizeof(*l));
    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    config.impl = impl;
    config.mode = mode;
    l->group = group;
    l->standin = (weft_standin){.dtype = WEFT_F32, .hidden = HIDDEN, .topk = TOPK};
    l->expert = weft_standin_expert(&l->standin);
    CHECK_INT(weft_moe_create(group, &config, &l->moe), WEFT_OK);
    set_good(l);
}

/* `spoil` makes the input of one rank bad; that rank must say `sentence`. */
static void check_rejected(layer *l, int bad, void (*spoil)(layer *), const char *sentence, int split)
{
    weft_status status;

    set_good(l);
    if (weft_rank(l->group) == bad)
        spoil(l);
    if (split) {
        status = weft_moe_dispatch_send(l->moe, 0, &l->input);
        if (weft_rank(l->group) != bad)
            status = weft_moe_dispatch_recv(l->moe, 0, NULL);
    } else {
        status = weft_moe_forward(l->moe, 0, &l->input, &l->expert, l->y);
    }
    if (weft_rank(l->group) == bad) {
        CHECK_INT(status, WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(l->group), sentence);
    } else {
        CHECK_INT(status, WEFT_ERR_PEER);
        CHECK_HAS(weft_error(l->group), bad == 1 ? "rank 1 rejected" : "rank 2 rejected");
    }
}

static void spoil_high(layer *l)
{
    l->choice[5] = EXPERTS;
}

static void spoil_low(layer *l)
{
    l->choice[5] = -2;
}

static void spoil_twice(layer *l)
{
    l->choice[2 * TOPK] = l->choice[2 * TOPK + 1] = 4;
}

static void spoil_many(layer *l)
{
    l->input.tokens = TOKENS + 1;
}

static void spoil_negative(layer *l)
{
    l->input.tokens = -1;
}

static void spoil_x(layer *l)
{
    l->input.x = NULL;
}

static void spoil_reuse(layer *l)
{
    l->input.expert = NULL;
    l->input.tokens = TOKENS - 1;
}

static void bad_inputs(weft_group *group, void *argument)
{
    static const struct {
        void (*spoil)(layer *);
        const char *sentence;
    } cases[] = {
        {spoil_high, "token 2 asks for expert 7 in position 1; experts are 0 to 6"},
        {spoil_low, "token 2 asks for expert -2"},
        {spoil_twice, "token 2 names expert 4 twice"},
        {spoil_many, "5 tokens, but the layer was made for at most 4 a rank; make it for 5"},
        {spoil_negative, "-1 tokens"},
        {spoil_x, "x is NULL"},
        {spoil_reuse, "repeats a routing of 4 tokens, but there are 3"},
    };
    int impl = *(int *)argument;
    layer l;

    open_layer(&l, group, (weft_moe_impl)(impl % 4), impl == 4 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT);
    check_good_round(&l);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_rejected(&l, 1, cases[i].spoil, cases[i].sentence, 0);
        if (i % 2)
            check_good_round(&l);
        check_rejected(&l, 2, cases[i].spoil, cases[i].sentence, 1);
        check_good_round(&l);
        /* The same rank three times in a row, so that words are written again before they were read. */
        for (int j = 0; j < 3; j++)
            check_rejected(&l, 1, cases[i].spoil, cases[i].sentence, j % 2);
        check_good_round(&l);
    }
    CHECK_INT(weft_moe_free(l.moe), WEFT_OK);
}

/* Calls out of order: an error that changes nothing, and nobody else notices. */
static void wrong_order(weft_group *group, void *argument)
{
    weft_moe_view view = {.size = sizeof(view)};
    int64_t start[EXPERTS], rows;
    float results[RANKS * TOKENS * TOPK * HIDDEN];
    layer l;

    (void)argument;
    open_layer(&l, group, WEFT_MOE_FUSED, WEFT_MOE_EXACT);
    CHECK_INT(weft_moe_combine(l.moe, 0, results, NULL, l.y), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(group), "a dispatch must be sent first");
    CHECK_INT(weft_moe_dispatch_recv(l.moe, 0, &view), WEFT_ERR_STATE);
    CHECK_INT(weft_moe_layout(l.moe, 0, 1, start, &rows), WEFT_ERR_STATE);
    CHECK_INT(weft_moe_dispatch(l.moe, 0, &l.input, &(weft_moe_view){.size = 8}), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_moe_dispatch(l.moe, 0, &l.input, &view), WEFT_OK);
    if (weft_rank(group) == 1) {
        CHECK_INT(weft_moe_dispatch(l.moe, 0, &l.input, &view), WEFT_ERR_STATE);
        CHECK_HAS(weft_error(group), "must be combined first");
        CHECK_INT(weft_moe_combine_recv(l.moe, 0, l.y), WEFT_ERR_STATE);
        CHECK_INT(weft_moe_layout(l.moe, 0, -1, start, &rows), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "padded to 1");
        CHECK_INT(weft_moe_layout(l.moe, 0, INT64_MIN, start, &rows), WEFT_ERR_ARGUMENT);
        CHECK_INT(weft_moe_layout(l.moe, 0, INT64_MAX, start, &rows), WEFT_ERR_ARGUMENT);
        CHECK_INT(weft_moe_combine_send(l.moe, 0, NULL, NULL), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "results is NULL");
    }
    for (int e = 0; e < view.experts; e++)
        for (int64_t i = view.offset[e]; i < view.offset[e + 1]; i++)
            weft_standin_scale(WEFT_F32, results + i * HIDDEN, view.row[view.entry_row[i]],
                               (float)(1 + view.expert[e]), HIDDEN);
    CHECK_INT(weft_moe_combine(l.moe, 0, results, NULL, NULL), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_moe_combine(l.moe, 0, results, NULL, l.y), WEFT_OK);
    CHECK_INT(weft_moe_dispatch(l.moe, 1, &l.input, &view), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "lane is 1; the layer has lanes 0 to 0");
    check_good_round(&l);
    if (weft_rank(group) == 2) {
        weft_moe_expert none = {.size = sizeof(none)};

        CHECK_INT(weft_moe_forward(l.moe, 0, &l.input, &none, l.y), WEFT_ERR_ARGUMENT);
    } else {
        CHECK_INT(weft_moe_forward(l.moe, 0, &l.input, &l.expert, l.y), WEFT_ERR_PEER);
    }
    check_good_round(&l);
    for (int which = 0; which < 2; which++) { /* structs whose size nobody set */
        weft_moe_expert unsized = {.block = l.expert.block};
        weft_moe_input nothing = {0};

        if (weft_rank(group) == 2) {
            CHECK_INT(
                weft_moe_forward(l.moe, 0, which ? &l.input : &nothing, which ? &unsized : &l.expert, l.y),
                WEFT_ERR_ARGUMENT);
            CHECK_HAS(weft_error(group), "size is not that of");
        } else {
            CHECK_INT(weft_moe_forward(l.moe, 0, &l.input, &l.expert, l.y), WEFT_ERR_PEER);
        }
        check_good_round(&l);
    }
    CHECK_INT(weft_moe_free(l.moe), WEFT_OK);
}

/* A NaN weight is a value like any other, and reaches its token only. */
static void nan_weight(weft_group *group, void *argument)
{
    layer l;

    (void)argument;
    open_layer(&l, group, WEFT_MOE_FUSED, weft_size(group) == 2 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT);
    l.weight[TOPK] = __builtin_nanf("");
    CHECK_INT(weft_moe_forward(l.moe, 0, &l.input, &l.expert, l.y), WEFT_OK);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        CHECK((l.y[i] != l.y[i]) == (i / HIDDEN == 1));
    CHECK_INT(weft_moe_free(l.moe), WEFT_OK);
}

static void configurations(weft_group *group, void *argument)
{
    weft_moe_config good, config;
    weft_moe *moe = NULL;
    int table[EXPERTS] = {0, 1, 2, 0, 1, 2, 3};
    layer l;

    (void)argument;
    weft_moe_config_init(&good);
    good.experts = EXPERTS;
    good.topk = TOPK;
    good.hidden = HIDDEN;
    good.tokens = TOKENS;
    config = good;
    config.hidden += weft_rank(group) == 1;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "hidden 6");
    config = good;
    config.topk = weft_rank(group) == 1 ? EXPERTS + 1 : TOPK;
    CHECK_INT(weft_moe_create(group, &config, &moe),
              weft_rank(group) == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(group), "topk must be 1 to the number of experts");
    if (weft_rank(group) != 1)
        CHECK_HAS(weft_error(group), "rank 1 rejected its arguments");
    config = good;
    config.expert_rank = table;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "expert 6 on rank 3; ranks are 0 to 2");
    table[6] = weft_rank(group) == 2;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_MISMATCH);
    config = good;
    config.mode = WEFT_MOE_REDUCED;
    config.impl = WEFT_MOE_ROWS;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    config = good;
    config.dtype = WEFT_I8;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    config = good;
    config.size = 1;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    config = good;
    config.tokens = (int64_t)1 << 60;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    CHECK(moe == NULL);
    open_layer(&l, group, WEFT_MOE_FUSED, WEFT_MOE_EXACT);
    check_good_round(&l);
    CHECK_INT(weft_moe_free(l.moe), WEFT_OK);
}

/* The size query is what create takes, and needs no group. */
static void sizes(void)
{
    weft_moe_config config;
    size_t symmetric, private;

    weft_moe_config_init(&config);
    CHECK_INT(weft_moe_bytes(&config, 8, &symmetric, &private), WEFT_ERR_ARGUMENT);
    config.experts = 256;
    config.topk = 8;
    config.hidden = 7168;
    config.tokens = 128;
    CHECK_INT(weft_moe_bytes(&config, 0, &symmetric, &private), WEFT_ERR_ARGUMENT);
    config.mode = WEFT_MOE_REDUCED;
    CHECK_INT(weft_moe_bytes(&config, 8, &symmetric, &private), WEFT_OK);
    CHECK(symmetric > 128 * 7168 * 2 * 9 && symmetric < 128 * 7168 * 2 * 10);
    config.tokens = 1 << 20; /* what all ranks may send to one must be countable there */
    CHECK_INT(weft_moe_bytes(&config, 255, &symmetric, &private), WEFT_OK);
    CHECK_INT(weft_moe_bytes(&config, 1024, &symmetric, &private), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_moe_bytes(NULL, 8, &symmetric, &private), WEFT_ERR_ARGUMENT);
    config.tokens = 128;
    config.experts = 1 << 20;
    CHECK_INT(weft_moe_bytes(&config, 8, &symmetric, &private), WEFT_OK);
    config.experts = INT32_MAX; /* said at once, not after a table of 24 GiB */
    CHECK_INT(weft_moe_bytes(&config, 8, &symmetric, &private), WEFT_ERR_ARGUMENT);
}

/* Every call of a round that is under way, on a layer whose group ended. */
static int calls_that_went_on(layer *l, weft_status expected)
{
    static float results[TOKENS * TOPK * HIDDEN];
    weft_moe_stats stats = {.size = sizeof(stats)};
    int64_t start[EXPERTS], rows;

    return (weft_moe_layout(l->moe, 0, 1, start, &rows) != expected) +
           (weft_moe_gather(l->moe, 0, NULL, results) != expected) +
           (weft_moe_combine_send(l->moe, 0, results, NULL) != expected) +
           (weft_moe_combine(l->moe, 0, results, NULL, l->y) != expected) +
           (weft_moe_dispatch(l->moe, 0, &l->input, NULL) != expected) +
           (weft_moe_get_stats(l->moe, 0, &stats) != expected);
}

/* A layer whose group was aborted, freed, or is the parent's of a fork is dead in the midst of a round, also
 * where the next call would wait for nobody. */
static void ended(weft_status expected)
{
    weft_group *group;
    layer l;

    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    open_layer(&l, group, WEFT_MOE_FUSED, WEFT_MOE_EXACT);
    CHECK_INT(weft_moe_dispatch(l.moe, 0, &l.input, NULL), WEFT_OK);
    if (expected == WEFT_ERR_ABORTED) {
        CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    } else {
        pid_t child = fork();
        int state = -1;

        if (child == 0)
            _exit(calls_that_went_on(&l, expected));
        CHECK(waitpid(child, &state, 0) == child && state == 0);
        weft_group_free(group);
    }
    CHECK_INT(calls_that_went_on(&l, expected), 0);
    CHECK_INT(weft_moe_free(l.moe), WEFT_OK);
    if (expected == WEFT_ERR_ABORTED)
        weft_group_free(group);
}

int main(void)
{
    for (int impl = 0; impl < 5; impl++)
        ranks_run(RANKS, bad_inputs, &impl);
    ranks_run(RANKS, wrong_order, NULL);
    ranks_run(2, nan_weight, NULL);
    ranks_run(3, nan_weight, NULL);
    ranks_run(RANKS, configurations, NULL);
    sizes();
    ended(WEFT_ERR_ABORTED);
    ended(WEFT_ERR_STATE);
    CHECK_INT(weft_moe_forward(NULL, 0, NULL, NULL, NULL), WEFT_ERR_ARGUMENT);
    return check_report("test_moe_errors");
}
