/*
 * Experts start on the rows that have arrived, and the order of arrival does not change a bit.
 *
 * A rank is made late by a send that posts its counts as always, but stages its tokens only after an event on
 * another rank. If experts waited for all rows, the event would never come.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "core/dtype.h"
#include "moe/moe.h"
#include "support/check.h"
#include "support/ranks.h"

/* ---- a rank whose rows come late -------------------------------------------------------------------------
 */

static atomic_int calls;       /* of experts, on all ranks */
static atomic_int rows_called; /* rows in them */
static atomic_int calls_awaited, calls_at_stage;
static atomic_bool too_late;

static void await_calls(void)
{
    for (int i = 0; atomic_load(&calls) < atomic_load(&calls_awaited); i++) {
        if (i == 20000) {
            atomic_store(&too_late, true);
            break;
        }
        usleep(1000);
    }
    atomic_store(&calls_at_stage, atomic_load(&calls));
}

static weft_status late_send(weft_moe_lane *lane, const void *x)
{
    weft_moe *moe = lane->moe;
    weft_moe_routing *out = &lane->out;

    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_manifest_for(lane, d) =
            (weft_moe_manifest){.generation = lane->generation,
                                .x = lane->stage_place,
                                .x_stride = moe->stage_stride,
                                .row_base = out->row_base[d],
                                .entry_base = out->entry_base[d],
                                .entries = out->entry_base[d + 1] - out->entry_base[d]};
    weft_moe_post_counts(lane, false);
    await_calls();
    for (int64_t t = 0; t < out->tokens; t++) {
        memcpy(lane->stage + t * moe->stage_stride, (const char *)x + t * moe->row_bytes,
               (size_t)moe->row_bytes);
        weft_moe_post_staged(lane, t + 1);
    }
    return WEFT_OK;
}

static weft_moe_rung late_rung(void)
{
    weft_moe_rung rung = weft_moe_fused;

    rung.dispatch_send = late_send;
    return rung;
}

/* ---- early rows run first --------------------------------------------------------------------------------
 */

enum { HIDDEN = 40, EARLY = 40, LATE = 20, WORTH = 8 };

typedef struct early_case {
    int ranks;
    weft_moe_mode mode;
} early_case;

static void times_two(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context;
    for (int64_t i = 0; i < rows; i++)
        for (int h = 0; h < HIDDEN; h++)
            ((float *)out[i])[h] = ((const float *)in[i])[h] * (float)(2 + expert);
    CHECK(rows >= WORTH / 2 && rows < WORTH + WORTH / 2);
    atomic_fetch_add(&rows_called, (int)rows);
    atomic_fetch_add(&calls, 1);
}

/* Every token of every rank wants experts 0 and 1, both on rank 0; the last rank is late. */
static void early(weft_group *group, void *argument)
{
    const early_case *c = argument;
    static const int expert_rank[2] = {0, 0};
    bool late = weft_rank(group) == c->ranks - 1;
    int64_t tokens = late ? LATE : EARLY;
    weft_moe_rung rung = late_rung();
    weft_moe_expert callbacks = {.size = sizeof(callbacks), .block = times_two, .expert_rows = WORTH};
    static _Thread_local float x[EARLY * HIDDEN], y[EARLY * HIDDEN], weight[EARLY * 2];
    int32_t expert[EARLY * 2];
    weft_moe_config config;
    weft_moe *moe;
    long wrong = 0;

    weft_moe_config_init(&config);
    config.experts = 2;
    config.topk = 2;
    config.hidden = HIDDEN;
    config.tokens = EARLY;
    config.dtype = WEFT_F32;
    config.mode = c->mode;
    config.expert_rank = expert_rank;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    for (int i = 0; i < EARLY * 2; i++) {
        expert[i] = i % 2;
        weight[i] = (float)(1 + i % 3);
    }
    for (int i = 0; i < EARLY * HIDDEN; i++)
        x[i] = (float)(i % 97 + 100 * weft_rank(group));
    if (late)
        moe->rung = &rung;
    CHECK_INT(weft_moe_forward(moe, 0, &(weft_moe_input){sizeof(weft_moe_input), tokens, x, expert, weight},
                               &callbacks, y),
              WEFT_OK);
    for (int64_t i = 0; i < tokens * HIDDEN; i++) {
        const float *w = weight + i / HIDDEN * 2;

        wrong += y[i] != w[0] * 2 * x[i] + w[1] * 3 * x[i];
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void test_early(int ranks, weft_moe_mode mode)
{
    early_case c = {ranks, mode};

    /* the early ranks' rows make this many whole calls of each expert */
    atomic_store(&calls_awaited, 2 * ((ranks - 1) * EARLY / WORTH));
    atomic_store(&calls, 0);
    atomic_store(&rows_called, 0);
    ranks_run(ranks, early, &c);
    CHECK(!atomic_load(&too_late));
    CHECK_INT(atomic_load(&calls_at_stage), atomic_load(&calls_awaited));
    CHECK_INT(atomic_load(&rows_called), 2 * ((ranks - 1) * EARLY + LATE));
}

/* ---- the same bits
 * ----------------------------------------------------------------------------------------- */

enum { RANKS = 3, WIDTH = 52, INTER = 37, TOKENS = 160, EXPERTS = 4, TOPK = 2 };

typedef struct bits_case {
    weft_dtype dtype;
    weft_moe_mode mode;
    weft_moe_impl impl;
    int late; /* this rank, -1 = none */
    char *y;  /* RANKS x TOKENS x WIDTH x 4 bytes */
} bits_case;

static void fill(weft_dtype dtype, void *memory, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        weft_element_set(dtype, memory, (size_t)i, (double)(check_random(&seed) >> 40) * 0x1p-24 - 0.5);
}

static weft_moe_ffn *make_ffn(weft_moe *moe, weft_dtype dtype)
{
    static _Thread_local float w[3][EXPERTS][WIDTH * INTER];
    const void *matrix[3][EXPERTS];
    const int32_t *local;
    int here = weft_moe_local_experts(moe, &local);
    weft_moe_ffn *ffn = NULL;

    for (int m = 0; m < 3; m++)
        for (int e = 0; e < here; e++) {
            fill(dtype, w[m][e], WIDTH * INTER, (uint64_t)(local[e] * 3 + m + 1));
            matrix[m][e] = w[m][e];
        }
    CHECK_INT(weft_moe_ffn_create(moe, INTER, matrix[0], matrix[1], matrix[2], &ffn), WEFT_OK);
    return ffn;
}

/* The expert in `context`, counted. */
static void counted(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    const weft_moe_expert *real = context;

    real->block(real->context, expert, rows, in, out);
    atomic_fetch_add(&calls, 1);
}

static void one_layer(weft_group *group, void *argument)
{
    const bits_case *c = argument;
    int rank = weft_rank(group);
    uint64_t state = 7 + (uint64_t)rank;
    static _Thread_local float x[TOKENS * WIDTH];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
    weft_moe_rung rung = late_rung();
    weft_moe_config config;
    weft_moe_expert real, callbacks = {.size = sizeof(callbacks)};
    weft_moe_ffn *ffn;
    weft_moe *moe;

    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = WIDTH;
    config.tokens = TOKENS;
    config.dtype = c->dtype;
    config.mode = c->mode;
    config.impl = c->impl;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    ffn = make_ffn(moe, c->dtype);
    CHECK_INT(weft_moe_ffn_expert(ffn, &callbacks), WEFT_OK);
    real = callbacks;
    callbacks.block = counted;
    callbacks.context = &real;
    /* expert 0 gets most rows: several calls; expert 3 few */
    for (int i = 0; i < TOKENS; i++) {
        expert[i * TOPK] = (int32_t)(i % 8 == 7);
        expert[i * TOPK + 1] = 2 + (i % 40 == 0);
        weight[i * TOPK] = 0.7f;
        weight[i * TOPK + 1] = 0.3f;
    }
    fill(c->dtype, x, TOKENS * WIDTH, check_random(&state));
    if (rank == c->late)
        moe->rung = &rung;
    CHECK_INT(weft_moe_forward(moe, 0, &(weft_moe_input){sizeof(weft_moe_input), TOKENS, x, expert, weight},
                               &callbacks, c->y + (size_t)rank * TOKENS * WIDTH * weft_dtype_size(c->dtype)),
              WEFT_OK);
    weft_moe_ffn_free(ffn);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void test_same_bits(weft_dtype dtype)
{
    static char first[RANKS * TOKENS * WIDTH * 4], other[RANKS * TOKENS * WIDTH * 4];
    size_t bytes = RANKS * TOKENS * WIDTH * weft_dtype_size(dtype);

    atomic_store(&calls_awaited, 1); /* the rows of two ranks suffice for one, whoever is late */
    for (int mode = 0; mode < 2; mode++) {
        bits_case c = {dtype, (weft_moe_mode)mode, WEFT_MOE_FUSED, -1, first};

        ranks_run(RANKS, one_layer, &c);
        c.y = other;
        for (c.late = 0; c.late < RANKS; c.late++) {
            atomic_store(&calls, 0);
            memset(other, 0x7e, sizeof(other));
            ranks_run(RANKS, one_layer, &c);
            CHECK(!atomic_load(&too_late));
            CHECK(!memcmp(first, other, bytes));
        }
        c.late = -1;
        for (int impl = WEFT_MOE_ROWS; !mode && impl <= WEFT_MOE_REFERENCE; impl++) {
            c.impl = (weft_moe_impl)impl;
            memset(other, 0x7e, sizeof(other));
            ranks_run(RANKS, one_layer, &c);
            CHECK(!memcmp(first, other, bytes));
        }
    }
}

typedef struct expert_case {
    weft_dtype dtype;
    int threads;
} expert_case;

/* A row through the expert alone does not depend on the rows beside it, nor on how many there are, nor on the
 * number of threads. */
static void one_expert(weft_group *group, void *argument)
{
    enum { MOST = 700 };
    const expert_case *c = argument;
    weft_dtype dtype = c->dtype;
    int64_t row = WIDTH * (int64_t)weft_dtype_size(dtype), worth;
    static char x[MOST * WIDTH * 4], all[MOST * WIDTH * 4], some[MOST * WIDTH * 4], first[MOST * WIDTH * 4];
    const void *in[MOST];
    void *out[MOST];
    weft_moe_config config;
    weft_moe_expert callbacks = {.size = sizeof(callbacks)};
    weft_moe_ffn *ffn;
    weft_moe *moe;

    weft_moe_config_init(&config);
    config.experts = 1;
    config.topk = 1;
    config.hidden = WIDTH;
    config.tokens = 1;
    config.dtype = dtype;
    config.threads = -1;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    config.threads = c->threads;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    ffn = make_ffn(moe, dtype);
    CHECK_INT(weft_moe_ffn_expert(ffn, &callbacks), WEFT_OK);
    worth = callbacks.expert_rows;
    CHECK(worth > 0);
    fill(dtype, x, MOST * WIDTH, 3);
    for (int64_t i = 0; i < MOST; i++) {
        in[i] = x + i * row;
        out[i] = all + i * row;
    }
    callbacks.block(callbacks.context, 0, MOST, in, out);
    if (c->threads == 1)
        memcpy(first, all, sizeof(all));
    CHECK(!memcmp(first, all, (size_t)(MOST * row)));
    for (int64_t rows = worth / 2; rows <= 3 * worth; rows += 13) {
        for (int64_t i = 0; i < rows; i++) {
            in[i] = x + (MOST - 1 - i) * row;
            out[i] = some + (MOST - 1 - i) * row;
        }
        memset(some, 0x7e, sizeof(some));
        callbacks.block(callbacks.context, 0, rows, in, out);
        CHECK(!memcmp(all + (MOST - rows) * row, some + (MOST - rows) * row, (size_t)(rows * row)));
    }
    weft_moe_ffn_free(ffn);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

/* The sizes of an expert's calls, from its number of rows alone. */
static void test_sizes(void)
{
    CHECK_INT(weft_moe_next_call(INT64_MAX, 5), 5);
    for (int64_t worth = 1; worth < 20; worth++)
        for (int64_t rows = 1; rows < 100; rows++)
            for (int64_t left = rows; left > 0;) {
                int64_t next = weft_moe_next_call(worth, left);

                CHECK(next > 0 && next <= left);
                CHECK(next == worth || (next == left && 2 * next < 3 * worth + 1));
                CHECK(next == rows || 2 * next >= worth);
                left -= next;
            }
}

int main(void)
{
    static weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};

    test_sizes();
    for (int ranks = 2; ranks <= 4; ranks++) {
        test_early(ranks, WEFT_MOE_EXACT);
        test_early(ranks, WEFT_MOE_REDUCED);
    }
    for (int d = 0; d < 3; d++) {
        test_same_bits(types[d]);
        for (int threads = 1; threads <= 2; threads++)
            ranks_run(1, one_expert, &(expert_case){types[d], threads});
    }
    return check_report("test_moe_arrival");
}
