/*
 * Mixture of experts over several nodes, exactly: every rung and mode, any placement, routings that repeat,
 * some ranks without tokens or experts, round after round without a barrier; what comes of input that one
 * rank rejects, and of a rank that dies.
 * With an argument it is one rank of a job that somebody else started (hosts.sh).
 */
#include "support/nodes.h"

#include <weft/weft.h>

enum { EXPERTS = 11, TOPK = 3, HIDDEN = 24, TOKENS = 40, ROUNDS = 12 };

static const char *placement;

/* An expert that multiplies by its number and one. */
static void multiply(void *context, int expert, int64_t rows, const void *const *x, void *const *y)
{
    (void)context;
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < HIDDEN; j++)
            ((float *)y[i])[j] = ((const float *)x[i])[j] * (float)(expert + 1);
}

static weft_moe_config config_of(void)
{
    weft_moe_config config;

    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    return config;
}

typedef struct tokens {
    int64_t count;
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
    float *x;
    float y[TOKENS * HIDDEN];
} tokens;

static void draw(tokens *t, int rank, int round, bool same)
{
    uint64_t state = (uint64_t)(round * 64 + rank + 1) * 7919;

    if (!same) {
        t->count = round % 5 == rank % 5 ? 0 : 1 + (int64_t)(check_random(&state) % TOKENS);
        for (int64_t i = 0; i < t->count * TOPK; i++) {
            t->weight[i] = (float)(check_random(&state) % 9) * 0.25f - 1.0f;
            t->expert[i] = (int32_t)((check_random(&state) % 3 + 4 * (uint64_t)(i % TOPK)) % EXPERTS);
            if (check_random(&state) % 5 == 0)
                t->expert[i] = -1;
        }
    }
    for (int64_t i = 0; i < t->count * HIDDEN; i++)
        t->x[i] = ((float)(check_random(&state) % 5) - 2) * 0.875f; /* exact also as fp8 */
    memset(t->y, 0xff, sizeof(t->y));
}

static int64_t wrong_of(const tokens *t)
{
    int64_t wrong = 0;

    for (int64_t i = 0; i < t->count; i++)
        for (int j = 0; j < HIDDEN; j++) {
            float sum = 0;

            for (int k = 0; k < TOPK; k++)
                if (t->expert[i * TOPK + k] >= 0)
                    sum +=
                        t->weight[i * TOPK + k] * t->x[i * HIDDEN + j] * (float)(t->expert[i * TOPK + k] + 1);
            wrong += t->y[i * HIDDEN + j] != sum;
        }
    return wrong;
}

static weft_status run(weft_moe *moe, tokens *t, bool same, bool split)
{
    weft_moe_input input = {.size = sizeof(input),
                            .tokens = t->count,
                            .x = t->x,
                            .expert = same ? NULL : t->expert,
                            .weight = same ? NULL : t->weight};
    weft_moe_expert expert = {.size = sizeof(expert), .block = multiply, .expert_rows = t->count % 2 ? 4 : 0};
    weft_moe_view view = {.size = sizeof(view)};
    weft_status status;
    float *results, *rows;

    if (!split)
        return weft_moe_forward(moe, 0, &input, &expert, t->y);
    status = weft_moe_dispatch(moe, 0, &input, &view);
    if (status)
        return status;
    results = malloc((size_t)(view.offset[view.experts] + 1) * HIDDEN * sizeof(float));
    rows = malloc((size_t)(view.offset[view.experts] + 1) * HIDDEN * sizeof(float));
    CHECK_INT(weft_moe_gather(moe, 0, NULL, rows), WEFT_OK);
    for (int e = 0; e < view.experts; e++)
        for (int64_t i = view.offset[e]; i < view.offset[e + 1]; i++)
            for (int j = 0; j < HIDDEN; j++)
                results[i * HIDDEN + j] = rows[i * HIDDEN + j] * (float)(view.expert[e] + 1);
    status = weft_moe_combine(moe, 0, results, NULL, t->y);
    free(results);
    free(rows);
    return status;
}

static void check_layer(weft_group *group, weft_moe_impl impl, weft_moe_mode mode, bool symmetric,
                        weft_moe_wire wire)
{
    int rank = weft_rank(group), bad = weft_size(group) - 1;
    tokens *t = calloc(1, sizeof(*t));
    weft_moe_config config = config_of();
    weft_moe *moe = NULL;
    int64_t wrong = 0;

    config.impl = impl;
    config.mode = mode;
    config.wire = wire;
    if (symmetric)
        CHECK_INT(weft_alloc(group, TOKENS * HIDDEN * sizeof(float), 0, (void **)&t->x), WEFT_OK);
    else
        t->x = malloc(TOKENS * HIDDEN * sizeof(float));
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    for (int round = 0; moe && round < ROUNDS; round++) {
        bool same = round % 3 == 2;

        draw(t, rank, round, same);
        if (round % 4 == 3) { /* twice in a row */
            int32_t expert = t->expert[0];

            t->count += t->count == 0;
            for (int again = 0; again < 2; again++) {
                t->expert[0] = rank == bad ? EXPERTS : t->expert[0];
                CHECK_INT(run(moe, t, false, round % 2), rank == bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
            }
            t->expert[0] = expert;
            draw(t, rank, round, false);
            same = false;
        }
        CHECK_INT(run(moe, t, same, round % 2), WEFT_OK);
        wrong += wrong_of(t);
    }
    if (wrong)
        fprintf(stderr, "rank %d of %s: impl %d mode %d symmetric %d wire %d\n", rank, placement, (int)impl,
                (int)mode, symmetric, (int)wire);
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    if (symmetric)
        CHECK_INT(weft_free(group, t->x), WEFT_OK);
    else
        free(t->x);
    free(t);
}

static void be_well(int rank, void *argument)
{
    weft_group *group = NULL;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error(NULL));
        return;
    }
    for (int impl = WEFT_MOE_FUSED; impl <= WEFT_MOE_REFERENCE; impl++)
        for (int wire = WEFT_MOE_WIRE_GIVEN; wire <= WEFT_MOE_WIRE_FP8; wire++)
            check_layer(group, (weft_moe_impl)impl, WEFT_MOE_EXACT, impl % 2, (weft_moe_wire)wire);
    for (int symmetric = 0; symmetric < 2; symmetric++)
        check_layer(group, WEFT_MOE_FUSED, WEFT_MOE_REDUCED, symmetric,
                    symmetric ? WEFT_MOE_WIRE_FP8 : WEFT_MOE_WIRE_GIVEN);
    check_layer(group, WEFT_MOE_FUSED, WEFT_MOE_REDUCED, true, WEFT_MOE_WIRE_GIVEN);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

static void be_bad(int rank, void *argument)
{
    int bad = *(const int *)argument;
    weft_group *group = NULL;
    weft_moe_config config = config_of();
    weft_moe *moe = NULL;
    weft_status status = WEFT_OK;
    tokens *t = calloc(1, sizeof(*t));
    char sentence[24];

    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group)
        return;
    t->x = calloc(TOKENS * HIDDEN, sizeof(float));
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    for (int i = 0; status == WEFT_OK && i < 100000; i++) {
        if (rank == bad && i == 5)
            kill(getpid(), SIGKILL);
        draw(t, rank, i, false);
        status = run(moe, t, false, false);
    }
    CHECK_INT(status, WEFT_ERR_PEER_DIED);
    snprintf(sentence, sizeof(sentence), "rank %d (process", bad);
    CHECK_HAS(weft_error(group), sentence);
    weft_moe_free(moe);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    free(t->x);
    free(t);
}

/* Rounds until one fails, in one call and in two in turn. */
static int be_looping(void)
{
    weft_group *group = NULL;
    weft_moe_config config = config_of();
    weft_moe *moe = NULL;
    weft_status status = weft_init(&group);
    tokens *t = calloc(1, sizeof(*t));

    t->x = calloc(TOKENS * HIDDEN, sizeof(float));
    if (status == WEFT_OK)
        status = weft_moe_create(group, &config, &moe);
    for (int round = 0; status == WEFT_OK; round++) {
        draw(t, weft_rank(group), round % 1000, false);
        status = run(moe, t, false, round % 2);
        if (round == 20)
            nodes_say_running(group);
    }
    nodes_say_end(group);
    weft_moe_free(moe);
    weft_finalize(group);
    free(t->x);
    free(t);
    return 3;
}

int main(int argc, char **argv)
{
    static const char *const placements[] = {"aabb", "abcab", "aaab"};

    if (argc > 1) {
        placement = "hosts";
        if (strcmp(argv[1], "loop") == 0)
            return be_looping();
        be_well(0, NULL);
        return check_report("test_nodes_moe");
    }

    if (!nodes_possible("test_nodes_moe"))
        return NODES_SKIPPED;
    for (int i = 0; i < 3; i++) {
        placement = placements[i];
        nodes_run(placement, be_well, NULL);
    }
    placement = "abab";
    nodes_lose(placement, 1, be_bad); /* the first of its node */
    return check_report("test_nodes_moe");
}
