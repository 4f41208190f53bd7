/*
 * What dispatch shows: rows ordered by source and token, packed and padded forms, rows of bytes that are not
 * numbers, two lanes in flight, a routing used again with other weights, and the numbers of a round.
 */
#include "moe/moe.h"
#include "support/check.h"
#include "support/ranks.h"

enum { EXPERTS = 6, TOPK = 3, HIDDEN = 9, TOKENS = 10, ROW_BYTES = 23 };

typedef struct tokens {
    int64_t count;
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
    unsigned char x[TOKENS * ROW_BYTES];
} tokens;

/* Every rank can make every rank's tokens: that is how a receiver checks what it got. */
static void make(tokens *t, int rank, uint64_t seed)
{
    uint64_t state = seed * 100 + (uint64_t)rank;

    t->count = (int64_t)(check_random(&state) % TOKENS) + 1;
    for (int64_t i = 0; i < t->count; i++)
        for (int k = 0; k < TOPK; k++) {
            t->expert[i * TOPK + k] =
                (int32_t)((check_random(&state) % 2 + 2 * (uint64_t)(TOPK - 1 - k)) % EXPERTS);
            t->weight[i * TOPK + k] = (float)(check_random(&state) % 7) * 0.5f;
        }
    for (size_t i = 0; i < sizeof(t->x); i++)
        t->x[i] = (unsigned char)check_random(&state);
}

/* Counts and rows of every local expert, by looking at everybody's tokens. */
static void check_view(weft_group *group, const weft_moe_view *view, uint64_t seed,
                       const unsigned char *packed, const int64_t *start)
{
    for (int e = 0; e < view->experts; e++) {
        int64_t at = view->offset[e];

        for (int source = 0; source < weft_size(group); source++) {
            tokens t;

            make(&t, source, seed);
            for (int64_t i = 0; i < t.count; i++)
                for (int k = 0; k < TOPK; k++) {
                    int32_t row;

                    if (t.expert[i * TOPK + k] != view->expert[e])
                        continue;
                    CHECK(at < view->offset[e + 1]);
                    if (at >= view->offset[e + 1])
                        return;
                    row = view->entry_row[at];
                    CHECK_INT(view->source[row], source);
                    CHECK_INT(view->token[row], i);
                    CHECK(view->entry_weight[at] == t.weight[i * TOPK + k]);
                    CHECK(!memcmp(view->row[row], t.x + i * ROW_BYTES, ROW_BYTES));
                    CHECK(!memcmp(packed + (start[e] + at - view->offset[e]) * ROW_BYTES, t.x + i * ROW_BYTES,
                                  ROW_BYTES));
                    at++;
                }
        }
        CHECK_INT(at, view->offset[e + 1]);
    }
}

/* Results that name their expert, so that combine can be checked: every element is 1 + expert. */
static void fill_results(const weft_moe_view *view, const int64_t *start, float *results)
{
    for (int e = 0; e < view->experts; e++)
        for (int64_t i = 0; i < view->offset[e + 1] - view->offset[e]; i++)
            for (int j = 0; j < HIDDEN; j++)
                results[((start ? start[e] : view->offset[e]) + i) * HIDDEN + j] =
                    (float)(1 + view->expert[e]);
}

static void check_combined(const tokens *t, const float *weight, const float *y)
{
    for (int64_t i = 0; i < t->count; i++) {
        float sum = 0;

        for (int k = 0; k < TOPK; k++)
            sum += weight[i * TOPK + k] * (float)(1 + t->expert[i * TOPK + k]);
        for (int j = 0; j < HIDDEN; j++)
            CHECK(y[i * HIDDEN + j] == sum);
    }
}

static void run(weft_group *group, void *argument)
{
    enum { MOST = 8 * TOKENS * TOPK };
    int variant = *(int *)argument, rank = weft_rank(group);
    int64_t alignment[] = {1, 4, 16, -4 * TOKENS * TOPK}, start[2][EXPERTS], rows;
    unsigned char *packed = malloc((size_t)MOST * 8 * ROW_BYTES);
    float *results = malloc((size_t)MOST * 8 * HIDDEN * sizeof(float)), y[TOKENS * HIDDEN],
          other[TOKENS * TOPK];
    weft_moe_config config;
    weft_moe_stats stats = {.size = sizeof(stats)};
    weft_moe *moe;
    tokens t[2];

    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.row_bytes = ROW_BYTES;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    config.mode = variant == 4 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT;
    config.impl = (weft_moe_impl)(variant % 4);
    config.lanes = 2;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    for (uint64_t seed = 1; seed < 40; seed++) {
        weft_moe_view view[2] = {{.size = sizeof(view[0])}, {.size = sizeof(view[1])}};

        for (int lane = 0; lane < 2; lane++) {
            weft_moe_input input = {.size = sizeof(input)};

            make(&t[lane], rank, seed * 2 + (uint64_t)lane);
            input = (weft_moe_input){sizeof(weft_moe_input), t[lane].count, t[lane].x, t[lane].expert,
                                     t[lane].weight};
            CHECK_INT(weft_moe_dispatch_send(moe, lane, &input), WEFT_OK);
        }
        for (int lane = 1; lane >= 0; lane--) {
            CHECK_INT(weft_moe_dispatch_recv(moe, lane, &view[lane]), WEFT_OK);
            CHECK_INT(weft_moe_layout(moe, lane, alignment[seed % 4], start[lane], &rows), WEFT_OK);
            for (int e = 0; alignment[seed % 4] > 0 && e < view[lane].experts; e++)
                CHECK_INT(start[lane][e] % alignment[seed % 4], 0);
            memset(packed, 0, (size_t)rows * ROW_BYTES);
            CHECK_INT(weft_moe_gather(moe, lane, start[lane], packed), WEFT_OK);
            check_view(group, &view[lane], seed * 2 + (uint64_t)lane, packed, start[lane]);
        }
        for (int lane = 0; lane < 2; lane++) {
            fill_results(&view[lane], start[lane], results);
            CHECK_INT(weft_moe_combine_send(moe, lane, results, start[lane]), WEFT_OK);
        }
        for (int lane = 0; lane < 2; lane++) {
            CHECK_INT(weft_moe_combine_recv(moe, lane, y), WEFT_OK);
            check_combined(&t[lane], t[lane].weight, y);
        }
        CHECK_INT(weft_moe_get_stats(moe, 0, &stats), WEFT_OK);
        CHECK_INT(stats.tokens, t[0].count);
        CHECK_INT(stats.dispatch_bytes, stats.rows_sent * ROW_BYTES);
        CHECK(stats.entries == view[0].offset[view[0].experts] && stats.rows_received == view[0].rows);
        CHECK(variant > 0 && variant < 4 ? stats.rows_sent == t[0].count * TOPK
                                         : stats.rows_sent <= t[0].count * TOPK);

        /* Again over the same routing: some ranks with other weights, others with the same. */
        for (int64_t i = 0; i < t[0].count * TOPK; i++)
            other[i] = seed % 2 && rank % 2 ? (float)(i % 5) : t[0].weight[i];
        CHECK_INT(weft_moe_dispatch(moe, 0,
                                    &(weft_moe_input){.size = sizeof(weft_moe_input),
                                                      .tokens = t[0].count,
                                                      .x = t[0].x,
                                                      .weight = seed % 2 && rank % 2 ? other : NULL},
                                    &view[0]),
                  WEFT_OK);
        fill_results(&view[0], NULL, results);
        CHECK_INT(weft_moe_combine(moe, 0, results, NULL, y), WEFT_OK);
        check_combined(&t[0], other, y);
    }
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    free(packed);
    free(results);
}

int main(void)
{
    for (int variant = 0; variant < 5; variant++)
        for (int ranks = 1; ranks <= 4; ranks++)
            ranks_run(ranks, run, &variant);
    return check_report("test_moe_forms");
}
