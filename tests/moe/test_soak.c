/*
 * Many rounds without barriers: routings change, ranks sleep at random, some rounds are rejected, some repeat
 * the routing before, two lanes are in flight, and ranks differ in whether they call forward or the parts,
 * and in how their experts want the rows. Every result is exact. 10 000 rounds with WEFT_SOAK=1.
 *
 * Ranks are threads, or with the argument `processes` processes.
 */
#include <time.h>

#include "core/dtype.h"
#include "bench/standin/scale.h"
#include "bench/standin/standin.h"
#include "moe/moe.h"
#include "support/check.h"
#include "support/procs.h"
#include "support/ranks.h"

enum { RANKS = 4, EXPERTS = 10, TOPK = 3, HIDDEN = 40, TOKENS = 12, LANES = 2 };

typedef struct soak {
    weft_moe_impl impl;
    weft_moe_mode mode;
    weft_dtype dtype;
    long rounds;
} soak;

typedef struct soak_lane {
    int64_t tokens;
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
    float y[TOKENS * HIDDEN];
    float *x; /* symmetric in lane 0 */
} soak_lane;

static void pause_sometimes(uint64_t *state)
{
    uint64_t r = check_random(state);

    if (r % 16 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(r >> 8) % 300000}, NULL);
}

/* Fills the lane from what all ranks can compute: the round's seed and the rank. Values and weights are
 * small. */
static void fill(const soak *s, soak_lane *lane, uint64_t seed, int rank, bool repeat)
{
    uint64_t state = seed * 31 + (uint64_t)rank;

    if (!repeat) {
        uint64_t shape = check_random(&state) % 8;

        lane->tokens = shape == 0 ? 0 : shape == 1 ? TOKENS : (int64_t)(check_random(&state) % TOKENS);
        for (int64_t t = 0; t < lane->tokens; t++)
            for (int k = 0; k < TOPK; k++) {
                lane->expert[t * TOPK + k] =
                    shape == 2 ? k : (int32_t)((check_random(&state) % 3 + (uint64_t)k * 3) % EXPERTS);
                if (shape == 3 || check_random(&state) % 8 == 0)
                    lane->expert[t * TOPK + k] = -1;
                lane->weight[t * TOPK + k] = (float)(check_random(&state) % 5) * 0.5f - 1;
            }
    }
    for (int64_t i = 0; i < lane->tokens * HIDDEN; i++)
        weft_element_set(s->dtype, lane->x, (size_t)i, (double)(check_random(&state) % 9) - 4);
}

static void check_lane(const soak *s, const soak_lane *lane)
{
    long wrong = 0;

    for (int64_t t = 0; t < lane->tokens; t++)
        for (int64_t i = 0; i < HIDDEN; i++) {
            double sum = 0, x = weft_element_get(s->dtype, lane->x, (size_t)(t * HIDDEN + i));

            for (int k = 0; k < TOPK; k++)
                if (lane->expert[t * TOPK + k] >= 0)
                    sum += (double)lane->weight[t * TOPK + k] * x * (1 + lane->expert[t * TOPK + k]);
            wrong += weft_element_get(s->dtype, lane->y, (size_t)(t * HIDDEN + i)) != sum;
        }
    CHECK_INT(wrong, 0);
}

/* The round by its parts, with pauses between them. */
static weft_status by_parts(weft_moe *moe, int lane, const weft_moe_input *input, const soak *s, void *y,
                            uint64_t *state)
{
    static const size_t most = (size_t)RANKS * TOKENS * TOPK * HIDDEN;
    size_t size = weft_dtype_size(s->dtype);
    weft_moe_view view = {.size = sizeof(view)};
    weft_status status = weft_moe_dispatch_send(moe, lane, input);
    char *results;

    pause_sometimes(state);
    if (!status)
        status = weft_moe_dispatch_recv(moe, lane, &view);
    if (status)
        return status;
    results = malloc(most * size);
    for (int e = 0; e < view.experts; e++)
        for (int64_t i = view.offset[e]; i < view.offset[e + 1]; i++)
            weft_standin_scale(s->dtype, results + (size_t)(i * HIDDEN) * size, view.row[view.entry_row[i]],
                               (float)(1 + view.expert[e]), HIDDEN);
    pause_sometimes(state);
    status = weft_moe_combine_send(moe, lane, results, NULL);
    free(results);
    pause_sometimes(state);
    return status ? status : weft_moe_combine_recv(moe, lane, y);
}

static void run(weft_group *group, void *argument)
{
    const soak *s = argument;
    int rank = weft_rank(group);
    uint64_t mine = 1000 + (uint64_t)rank, common = 7;
    weft_standin standin = {.dtype = s->dtype, .hidden = HIDDEN, .topk = TOPK};
    weft_moe_expert expert = weft_standin_expert(&standin);
    soak_lane lanes[LANES] = {{0}};
    weft_moe_config config;
    weft_moe *moe;
    long bad = 0;

    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = s->dtype;
    config.mode = s->mode;
    config.impl = s->impl;
    config.lanes = LANES;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    CHECK_INT(weft_alloc(group, TOKENS * HIDDEN * sizeof(float), 0, (void **)&lanes[0].x), WEFT_OK);
    lanes[1].x = malloc(TOKENS * HIDDEN * sizeof(float));
    for (long i = 0; i < s->rounds && bad < 5; i++) {
        uint64_t seed = check_random(&common), way = check_random(&mine);
        soak_lane *lane = &lanes[i % LANES];
        int rejecting = seed % 11 == 0 ? (int)(seed >> 8) % RANKS : -1;
        bool repeat = i >= LANES && seed % 5 == 1;
        weft_moe_input input;
        weft_status status, expected = rejecting < 0       ? WEFT_OK
                                       : rejecting == rank ? WEFT_ERR_ARGUMENT
                                                           : WEFT_ERR_PEER;

        expert.row = way % 2 ? NULL : weft_standin_expert(&standin).row;
        expert.block_rows = (int64_t)(way >> 4) % 4;
        expert.expert_rows = (int64_t)(way >> 8) % 6;
        fill(s, lane, seed, rank, repeat);
        input = (weft_moe_input){sizeof(weft_moe_input), lane->tokens, lane->x, lane->expert, lane->weight};
        if (repeat && lane->tokens)
            input.expert = NULL;
        if (repeat && way % 3)
            input.weight = input.expert ? lane->weight : NULL;
        if (rejecting == rank)
            input.tokens = TOKENS + 1;
        memset(lane->y, 0xff, sizeof(lane->y));
        pause_sometimes(&mine);
        status = way % 5 < 2 ? by_parts(moe, (int)(i % LANES), &input, s, lane->y, &mine)
                             : weft_moe_forward(moe, (int)(i % LANES), &input, &expert, lane->y);
        bad += status != expected;
        CHECK_INT(status, expected);
        if (!status)
            check_lane(s, lane);
        else
            lane->tokens = 0; /* a later round that repeats this one has nothing to send */
    }
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    weft_free(group, lanes[0].x);
    free(lanes[1].x);
}

static void run_process(int rank, void *argument)
{
    weft_group *group;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    run(group, argument);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

int main(int count, char **words)
{
    bool processes = count > 1 && !strcmp(words[1], "processes");
    long rounds = check_repeat(processes ? 300 : 800, 10000);
    soak soaks[] = {
        {WEFT_MOE_FUSED, WEFT_MOE_EXACT, WEFT_F32, rounds},
        {WEFT_MOE_FUSED, WEFT_MOE_REDUCED, WEFT_F32, rounds},
        {WEFT_MOE_FUSED, WEFT_MOE_EXACT, WEFT_F16, rounds},
        {WEFT_MOE_ROWS, WEFT_MOE_EXACT, WEFT_F16, rounds},
        {WEFT_MOE_SORTED, WEFT_MOE_EXACT, WEFT_F32, rounds},
        {WEFT_MOE_REFERENCE, WEFT_MOE_EXACT, WEFT_F32, rounds},
        {WEFT_MOE_FUSED, WEFT_MOE_REDUCED, WEFT_F16, rounds},
    };

    for (size_t i = 0; i < sizeof(soaks) / sizeof(soaks[0]); i++)
        if (processes)
            procs_run(RANKS, run_process, &soaks[i]);
        else
            ranks_run(RANKS, run, &soaks[i]);
    return check_report(processes ? "test_moe_soak_processes" : "test_moe_soak");
}
