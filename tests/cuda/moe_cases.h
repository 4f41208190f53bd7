/*
 * Mixture of experts on a group of GPUs, each round beside the same round on a group of CPUs: what is
 * received, and the sums, bit for bit. Small integers and weights with few bits, so that every order of
 * summation is exact. The expert depends on the expert, so that a row at the wrong one shows. Ranks are
 * threads or processes; the GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_MOE_CASES_H
#define WEFT_TESTS_CUDA_MOE_CASES_H

#include "core/dtype.h"
#include "moe/wire.h"
#include "run/cuda/driver.h"
#include "support/check.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/weft.h>

enum { MOE_BYTES = 24 << 20 };

typedef struct moe_rank {
    weft_group *gpu, *cpu, *solo;
    char *device; /* GPU memory that is not the group's, and where its next free byte is */
    size_t used;
} moe_rank;

typedef struct moe_case {
    int experts, topk;
    int64_t hidden, tokens, row_bytes;
    weft_dtype dtype;
    weft_moe_mode mode;
    bool table; /* experts dealt out unevenly */
    int kind;   /* of routing */
    int64_t alignment;
    int rounds;
    uint64_t seed;
    weft_moe_wire wire;
} moe_case;

enum { MOE_RANDOM, MOE_NOBODY, MOE_SOME_EMPTY, MOE_ONE_EXPERT, MOE_SOME_NONE, MOE_FULL, MOE_KINDS };

/* The tokens of one rank in one round, on the host. */
typedef struct moe_tokens {
    int64_t count;
    char *x;
    int32_t *expert;
    float *weight;
} moe_tokens;

static inline int64_t moe_row_bytes(const moe_case *c)
{
    return c->row_bytes ? c->row_bytes : c->hidden * (int64_t)weft_dtype_size(c->dtype);
}

static inline moe_tokens moe_tokens_make(const moe_case *c, int rank, int round)
{
    uint64_t state = c->seed * 7919 + (uint64_t)rank * 104729 + (uint64_t)round * 31 + 5;
    size_t pairs = (size_t)(c->tokens * c->topk);
    moe_tokens t = {.x = calloc((size_t)c->tokens, (size_t)moe_row_bytes(c)),
                    .expert = malloc(pairs * sizeof(int32_t)),
                    .weight = malloc(pairs * sizeof(float))};
    int *all = malloc((size_t)c->experts * sizeof(int));

    t.count = c->kind == MOE_FULL ? c->tokens : (int64_t)(check_random(&state) % (uint64_t)(c->tokens + 1));
    if (c->kind == MOE_NOBODY || (c->kind == MOE_SOME_EMPTY && (rank + round) % 3 == 1))
        t.count = 0;
    for (int64_t i = 0; i < c->tokens; i++) {
        for (int e = 0; e < c->experts; e++)
            all[e] = e;
        for (int k = 0; k < c->topk; k++) {
            int other = k + (int)(check_random(&state) % (uint64_t)(c->experts - k)), chosen = all[other];
            bool none = c->kind == MOE_SOME_NONE && check_random(&state) % 3 == 0;

            all[other] = all[k];
            all[k] = chosen;
            if (c->kind == MOE_ONE_EXPERT) {
                chosen = c->experts - 1;
                none = k != c->topk / 2;
            }
            t.expert[i * c->topk + k] = none ? -1 : chosen;
            t.weight[i * c->topk + k] = (float)(check_random(&state) % 9) * 0.25f - 1.0f;
        }
    }
    for (int64_t i = 0; i < c->tokens * moe_row_bytes(c) && c->wire == WEFT_MOE_WIRE_GIVEN; i++)
        t.x[i] = (char)(check_random(&state) % 251);
    /* numbers of many sizes; every third 128 of them zeros, some sizes below what scales count */
    for (int64_t i = 0; i < c->tokens * c->hidden && c->wire == WEFT_MOE_WIRE_FP8; i++) {
        uint64_t block = i % c->hidden / 128, size = (block * 5 + (uint64_t)(i / c->hidden)) % 21;
        double scale = c->dtype != WEFT_F16 && size == 20 ? 0x1p-112 : (double)(1 << size) * 0x1p-12;

        weft_element_set(c->dtype, t.x, (size_t)i,
                         block % 3 == 2 ? 0 : ((double)(check_random(&state) % 2001) - 1000) * 1e-3 * scale);
    }
    free(all);
    return t;
}

static inline void moe_tokens_free(moe_tokens *t)
{
    free(t->x);
    free(t->expert);
    free(t->weight);
}

/* One row through one expert. */
static inline void moe_expert(const moe_case *c, int expert, const char *row, char *result)
{
    for (int64_t i = 0; i < c->hidden; i++)
        weft_element_set(c->dtype, result, (size_t)i,
                         (double)((unsigned char)row[i * 7 % moe_row_bytes(c)] % 5) * (1 + expert % 3));
}

static inline void moe_configure(const moe_case *c, int world, int *table, weft_moe_config *config)
{
    weft_moe_config_init(config);
    config->experts = c->experts;
    config->topk = c->topk;
    config->hidden = c->hidden;
    config->tokens = c->tokens;
    config->row_bytes = c->row_bytes;
    config->dtype = c->dtype;
    config->mode = c->mode;
    config->wire = c->wire;
    for (int e = 0; e < c->experts; e++)
        table[e] = e % 3 == 0 ? 0 : e * 5 % world;
    config->expert_rank = c->table ? table : NULL;
}

/* ---- GPU memory --------------------------------------------------------------------------------------- */

static inline void *moe_take(moe_rank *r, size_t bytes)
{
    char *at = r->device + r->used;

    r->used += (bytes + 255) / 256 * 256 + 256;
    CHECK(r->used <= MOE_BYTES);
    return at;
}

static inline void *moe_up(moe_rank *r, const void *host, size_t bytes)
{
    void *device = moe_take(r, bytes);

    CHECK_INT(weft_memcpy(r->solo, device, host, bytes), WEFT_OK);
    return device;
}

static inline void *moe_down(moe_rank *r, const void *device, size_t bytes)
{
    void *host = malloc(bytes + 1);

    CHECK_INT(weft_memcpy(r->solo, host, device, bytes), WEFT_OK);
    return host;
}

static inline void moe_same(moe_rank *r, const void *device, const void *host, size_t bytes, const char *what)
{
    char *copy = moe_down(r, device, bytes);

    if (memcmp(copy, host, bytes) != 0)
        fprintf(stderr, "%s differ on rank %d of %d\n", what, weft_rank(r->gpu), weft_size(r->gpu));
    CHECK_INT(memcmp(copy, host, bytes), 0);
    free(copy);
}

static inline weft_moe_input moe_input_up(moe_rank *r, const moe_case *c, const moe_tokens *t)
{
    size_t pairs = (size_t)(c->tokens * c->topk);
    weft_moe_input input = {.size = sizeof(input), .tokens = t->count};

    input.x = moe_up(r, t->x, (size_t)(c->tokens * moe_row_bytes(c)));
    input.expert = moe_up(r, t->expert, pairs * sizeof(int32_t));
    input.weight = moe_up(r, t->weight, pairs * sizeof(float));
    return input;
}

/* ---- a round, on both --------------------------------------------------------------------------------- */

static inline void moe_round(moe_rank *r, const moe_case *c, weft_moe *cpu, weft_moe *gpu, int round)
{
    int64_t row_bytes = moe_row_bytes(c), result_bytes = c->hidden * (int64_t)weft_dtype_size(c->dtype);
    moe_tokens t = moe_tokens_make(c, weft_rank(r->gpu), round);
    weft_moe_input input = {
        .size = sizeof(input), .tokens = t.count, .x = t.x, .expert = t.expert, .weight = t.weight};
    weft_moe_view view = {.size = sizeof(view)}, there = {.size = sizeof(there)};
    int experts = weft_moe_local_experts(cpu, NULL);
    int64_t *start = calloc((size_t)experts + 1, sizeof(*start)), rows = 0, counted = 0;
    char *packed, *results, *y = calloc((size_t)c->tokens, (size_t)result_bytes);
    weft_moe_stats stats = {.size = sizeof(stats)}, same = {.size = sizeof(same)};
    int64_t wire_bytes = c->wire == WEFT_MOE_WIRE_FP8 ? weft_moe_fp8_bytes(c->hidden) : row_bytes;

    CHECK_INT(weft_moe_dispatch(cpu, 0, &input, &view), WEFT_OK);
    CHECK_INT(weft_moe_layout(cpu, 0, c->alignment, start, &rows), WEFT_OK);
    packed = calloc((size_t)rows + 1, (size_t)row_bytes);
    results = calloc((size_t)rows + 1, (size_t)result_bytes);
    CHECK_INT(weft_moe_gather(cpu, 0, start, packed), WEFT_OK);
    for (int e = 0; e < experts; e++)
        for (int64_t i = 0; i < view.offset[e + 1] - view.offset[e]; i++)
            moe_expert(c, view.expert[e], packed + (start[e] + i) * row_bytes,
                       results + (start[e] + i) * result_bytes);

    r->used = 0;
    weft_moe_input up = moe_input_up(r, c, &t);
    int64_t *there_start = moe_take(r, ((size_t)experts + 1) * sizeof(int64_t)),
            *there_rows = moe_take(r, sizeof(int64_t));
    char *clean = calloc((size_t)rows + 1, (size_t)row_bytes),
         *there_packed = moe_up(r, clean, (size_t)(rows * row_bytes) + 1); /* padding is left as it is */

    free(clean);
    CHECK_INT(weft_moe_dispatch(gpu, 0, &up, &there), WEFT_OK);
    CHECK_INT(there.rows, view.rows);
    CHECK_INT(there.experts, view.experts);
    moe_same(r, there.source, view.source, (size_t)view.rows * sizeof(int32_t), "sources");
    moe_same(r, there.token, view.token, (size_t)view.rows * sizeof(int32_t), "tokens");
    moe_same(r, there.offset, view.offset, ((size_t)experts + 1) * sizeof(int64_t), "offsets");
    moe_same(r, there.entry_row, view.entry_row, (size_t)view.offset[experts] * sizeof(int32_t), "entries");
    moe_same(r, there.entry_weight, view.entry_weight, (size_t)view.offset[experts] * sizeof(float),
             "weights");
    if (view.rows > 0) { /* as they travelled */
        const void *last;

        CHECK_INT(weft_memcpy(r->solo, &last, there.row + view.rows - 1, sizeof(last)), WEFT_OK);
        moe_same(r, last, view.row[view.rows - 1], (size_t)wire_bytes, "the last row");
    }
    CHECK_INT(weft_moe_layout(gpu, 0, c->alignment, there_start, there_rows), WEFT_OK);
    moe_same(r, there_start, start, (size_t)experts * sizeof(int64_t), "layouts");
    CHECK_INT(weft_memcpy(r->solo, &counted, there_rows, sizeof(counted)), WEFT_OK);
    CHECK_INT(counted, rows);
    CHECK_INT(weft_moe_gather(gpu, 0, there_start, there_packed), WEFT_OK);
    moe_same(r, there_packed, packed, (size_t)(rows * row_bytes), "packed rows");
    char *there_results = moe_up(r, results, (size_t)(rows * result_bytes) + 1),
         *there_y = moe_up(r, y, (size_t)(c->tokens * result_bytes));

    CHECK_INT(weft_moe_combine_send(cpu, 0, results, start), WEFT_OK);
    CHECK_INT(weft_moe_combine_recv(cpu, 0, y), WEFT_OK);
    CHECK_INT(weft_moe_combine_send(gpu, 0, there_results, there_start), WEFT_OK);
    CHECK_INT(weft_moe_combine_recv(gpu, 0, there_y), WEFT_OK);
    moe_same(r, there_y, y, (size_t)(c->tokens * result_bytes), "sums");
    CHECK_INT(weft_moe_get_stats(cpu, 0, &stats), WEFT_OK);
    CHECK_INT(weft_moe_get_stats(gpu, 0, &same), WEFT_OK);
    CHECK_INT(same.rows_sent, stats.rows_sent);
    CHECK_INT(same.results_sent, stats.results_sent);
    CHECK_INT(same.dispatch_bytes, stats.dispatch_bytes);
    CHECK_INT(same.entries, stats.entries);
    CHECK_INT(same.tokens, stats.tokens);
    free(start);
    free(packed);
    free(results);
    free(y);
    moe_tokens_free(&t);
}

/* What is told beforehand: room for what comes and what returns at least, on GPUs as on CPUs. */
static inline void moe_bytes(moe_rank *r, const weft_moe_config *config)
{
    size_t symmetric = 0, own = 0, cpu[2] = {0, 0}, same[2] = {0, 0}, row = (size_t)config->row_bytes;

    CHECK_INT(weft_moe_group_bytes(r->gpu, config, &symmetric, &own), WEFT_OK);
    row = config->wire == WEFT_MOE_WIRE_FP8 ? (size_t)weft_moe_fp8_bytes(config->hidden)
          : row                             ? row
                                            : (size_t)config->hidden * weft_dtype_size(config->dtype);
    CHECK(symmetric >= (size_t)weft_size(r->gpu) * (size_t)config->tokens * row);
    CHECK(own >= (size_t)config->tokens * (size_t)config->topk * sizeof(int32_t));
    CHECK_INT(weft_moe_group_bytes(r->cpu, config, &cpu[0], &cpu[1]), WEFT_OK);
    CHECK_INT(weft_moe_bytes(config, weft_size(r->cpu), &same[0], &same[1]), WEFT_OK);
    CHECK(cpu[0] == same[0] && cpu[1] == same[1]);
}

/* Every kind of routing through one layer. */
static inline void moe_layer(moe_rank *r, moe_case c)
{
    int *table = malloc((size_t)c.experts * sizeof(int));
    weft_moe *cpu = NULL, *gpu = NULL;
    weft_moe_config config;

    moe_configure(&c, weft_size(r->gpu), table, &config);
    CHECK_INT(weft_moe_create(r->cpu, &config, &cpu), WEFT_OK);
    moe_bytes(r, &config);
    CHECK_INT(weft_moe_create(r->gpu, &config, &gpu), WEFT_OK);
    for (int i = 0; i < c.rounds && cpu && gpu; i++) {
        c.kind = i % MOE_KINDS;
        moe_round(r, &c, cpu, gpu, i);
    }
    CHECK_INT(weft_moe_free(cpu), WEFT_OK);
    CHECK_INT(weft_moe_free(gpu), WEFT_OK);
    free(table);
}

static inline void moe_shapes(moe_rank *r)
{
    static const moe_case cases[] = {
        {8, 2, 64, 4, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 6, 1, 0},
        {16, 4, 72, 9, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 4, 6, 2, 0},
        {7, 3, 33, 12, 0, WEFT_F16, WEFT_MOE_REDUCED, false, 0, 1, 6, 3, 0},
        {64, 6, 128, 16, 0, WEFT_F32, WEFT_MOE_EXACT, true, 0, -160, 6, 4, 0},
        {5, 5, 17, 6, 100, WEFT_BF16, WEFT_MOE_EXACT, false, 0, 2, 6, 5, 0},
        {3, 1, 40, 5, 37, WEFT_F32, WEFT_MOE_REDUCED, true, 0, 1, 6, 6, 0},
        {40, 33, 16, 3, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 8, 6, 7, 0},
        {300, 8, 264, 40, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 6, 8, 0},
        {24, 6, 16, 1100, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 1, 3, 9,
         0}, /* lists that are looked at twice */
        {6, 2, 4104, 3, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 3, 10, 0}, /* sums in pieces */
        {4, 2, 2063, 2, 0, WEFT_F32, WEFT_MOE_REDUCED, false, 0, 1, 3, 11, 0},
        {16, 4, 72, 9, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 4, 6, 12, WEFT_MOE_WIRE_FP8},
        {7, 3, 33, 12, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 6, 13, WEFT_MOE_WIRE_FP8},
        {12, 3, 2056, 5, 0, WEFT_BF16, WEFT_MOE_EXACT, true, 0, 1, 6, 14, WEFT_MOE_WIRE_FP8},
        {6, 2, 1032, 7, 0, WEFT_F32, WEFT_MOE_EXACT, false, 0, -40, 6, 15, WEFT_MOE_WIRE_FP8},
        {5, 2, 4104, 4, 0, WEFT_F16, WEFT_MOE_REDUCED, false, 0, 1, 6, 16, WEFT_MOE_WIRE_FP8},
        {4, 1, 9000, 3, 0, WEFT_F32, WEFT_MOE_REDUCED, true, 0, 2, 3, 17, WEFT_MOE_WIRE_FP8},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        moe_layer(r, cases[i]);
}

/* ---- the feed-forward expert --------------------------------------------------------------------------- */

/* Weights for which everything is exact: gates and ups pick one element of a row each, so that a gate is so
 * large that its activation is itself, and the product of both has one significant bit. */
typedef struct moe_weights {
    int64_t inter;
    void *cpu[3][64], *gpu[3][64]; /* gate, up, down of each local expert */
} moe_weights;

static inline void moe_weights_make(moe_rank *r, const moe_case *c, weft_moe *cpu, moe_weights *w)
{
    const int32_t *here;
    int experts = weft_moe_local_experts(cpu, &here);
    size_t bytes = (size_t)(c->hidden * w->inter) * weft_dtype_size(c->dtype);

    for (int e = 0; e < experts; e++) {
        for (int i = 0; i < 3; i++)
            w->cpu[i][e] = calloc(1, bytes);
        for (int64_t j = 0; j < w->inter; j++) {
            int64_t gate = (j * 5 + here[e]) % c->hidden, up = (j * 3 + here[e] * 7) % c->hidden;

            weft_element_set(c->dtype, w->cpu[0][e], (size_t)(gate * w->inter + j), 64);
            weft_element_set(c->dtype, w->cpu[1][e], (size_t)(up * w->inter + j),
                             (double)((j + here[e]) % 4) - 1);
        }
        for (int64_t j = 0; j < w->inter * c->hidden; j++)
            weft_element_set(c->dtype, w->cpu[2][e], (size_t)j, (double)((j * 7 + here[e]) % 3) - 1);
        for (int i = 0; i < 3; i++)
            w->gpu[i][e] = moe_up(r, w->cpu[i][e], bytes);
    }
}

/* Tokens for which the weights above are exact. */
static inline moe_tokens moe_ffn_tokens(const moe_case *c, int rank, int round)
{
    moe_tokens t = moe_tokens_make(c, rank, round);

    for (int64_t j = 0; j < c->tokens * c->hidden; j++)
        weft_element_set(c->dtype, t.x, (size_t)j, (double)(1 + (j * 3 + round + rank) % 7 / 4));
    return t;
}

/* Whole rounds on both, each in a call; on a stream too, several before the first is waited for. */
static inline void moe_forward_rounds(moe_rank *r, moe_case c, weft_moe *cpu, weft_moe *gpu,
                                      const weft_moe_expert *expert, const weft_moe_expert *there,
                                      bool ordered)
{
    enum { ROUNDS = MOE_KINDS };
    size_t y_bytes = (size_t)(c.tokens * moe_row_bytes(&c)), mark = r->used;
    char *y[ROUNDS], *there_y[ROUNDS];

    CHECK_INT(weft_group_set_stream(r->gpu, ordered, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < ROUNDS; i++) {
        c.kind = i;
        moe_tokens t = moe_ffn_tokens(&c, weft_rank(r->gpu), i);
        weft_moe_input input = {
            .size = sizeof(input), .tokens = t.count, .x = t.x, .expert = t.expert, .weight = t.weight};

        y[i] = calloc(1, y_bytes);
        there_y[i] = moe_up(r, y[i], y_bytes);
        weft_moe_input up = moe_input_up(r, &c, &t);
        CHECK_INT(weft_moe_forward(cpu, 0, &input, expert, y[i]), WEFT_OK);
        CHECK_INT(weft_moe_forward(gpu, 0, &up, there, there_y[i]), WEFT_OK);
        moe_tokens_free(&t);
    }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    for (int i = 0; i < ROUNDS; i++) {
        moe_same(r, there_y[i], y[i], y_bytes, "results of the feed-forward expert");
        free(y[i]);
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    r->used = mark;
}

/* A whole round captured, and replayed with other routings: only the memory that the graph reads changes. */
static inline void moe_forward_graph(moe_rank *r, moe_case c, weft_moe *cpu, weft_moe *gpu,
                                     const weft_moe_expert *expert, const weft_moe_expert *there,
                                     const weft_cuda_driver *cu)
{
    size_t y_bytes = (size_t)(c.tokens * moe_row_bytes(&c)), pairs = (size_t)(c.tokens * c.topk),
           mark = r->used;
    char *y = calloc(1, y_bytes), *there_y = moe_up(r, y, y_bytes);
    moe_tokens none = moe_ffn_tokens(&c, 0, 0);
    weft_moe_input up = moe_input_up(r, &c, &none);
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    moe_tokens_free(&none);
    up.tokens = c.tokens;
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_INT(weft_moe_forward(gpu, 0, &up, there, there_y), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 2 * MOE_KINDS; i++) {
        c.kind = i % MOE_KINDS;
        moe_tokens t = moe_ffn_tokens(&c, weft_rank(r->gpu), i);
        weft_moe_input input = {
            .size = sizeof(input), .tokens = c.tokens, .x = t.x, .expert = t.expert, .weight = t.weight};

        for (int64_t j = t.count * c.topk; j < c.tokens * c.topk; j++)
            t.expert[j] = -1;
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.x, t.x, y_bytes), WEFT_OK);
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.expert, t.expert, pairs * sizeof(*t.expert)),
                  WEFT_OK);
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.weight, t.weight, pairs * sizeof(*t.weight)),
                  WEFT_OK);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
        CHECK_INT(weft_moe_forward(cpu, 0, &input, expert, y), WEFT_OK);
        moe_same(r, there_y, y, y_bytes, "results of a replayed round");
        moe_tokens_free(&t);
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
    free(y);
    r->used = mark;
}

/* The same numbers as another type stores them, and factors of their columns: still exact. `up` is without
 * any.
 */
typedef struct moe_stored {
    weft_moe_weights cpu, gpu;
    void *matrix[2][3][64];
    float *scale[2][3][64];
} moe_stored;

static inline void moe_stored_make(moe_rank *r, const moe_case *c, const moe_weights *w, int experts,
                                   weft_dtype dtype, moe_stored *s)
{
    size_t count = (size_t)(c->hidden * w->inter);

    for (int i = 0; i < 3; i++)
        for (int e = 0; e < experts; e++) {
            int64_t cols = i == 2 ? c->hidden : w->inter;

            s->matrix[0][i][e] = malloc(count * weft_dtype_size(dtype));
            for (size_t j = 0; j < count; j++)
                weft_element_set(dtype, s->matrix[0][i][e], j, weft_element_get(c->dtype, w->cpu[i][e], j));
            s->matrix[1][i][e] = moe_up(r, s->matrix[0][i][e], count * weft_dtype_size(dtype));
            s->scale[0][i][e] = malloc((size_t)cols * sizeof(float));
            for (int64_t j = 0; j < cols; j++)
                s->scale[0][i][e][j] = (j + e + i) % 3 ? 1 : 0.5f;
            s->scale[1][i][e] = moe_up(r, s->scale[0][i][e], (size_t)cols * sizeof(float));
        }
    for (int there = 0; there < 2; there++)
        *(there ? &s->gpu : &s->cpu) =
            (weft_moe_weights){.size = sizeof(weft_moe_weights),
                               .inter = w->inter,
                               .dtype = dtype,
                               .gate = (const void *const *)s->matrix[there][0],
                               .up = (const void *const *)s->matrix[there][1],
                               .down = (const void *const *)s->matrix[there][2],
                               .gate_scale = (const float *const *)s->scale[there][0],
                               .down_scale = (const float *const *)s->scale[there][2]};
}

/* Experts of stored weights, on both. */
static inline void moe_ffn_stored(moe_rank *r, const moe_case *c, const moe_weights *w, weft_moe *cpu,
                                  weft_moe *gpu, weft_dtype dtype)
{
    int experts = weft_moe_local_experts(cpu, NULL);
    moe_stored *s = calloc(1, sizeof(*s));
    weft_moe_ffn *ffn = NULL, *there = NULL;
    weft_moe_expert expert = {.size = sizeof(expert)}, its = {.size = sizeof(its)};

    moe_stored_make(r, c, w, experts, dtype, s);
    CHECK_INT(weft_moe_ffn_create_stored(cpu, &s->cpu, &ffn), WEFT_OK);
    CHECK_INT(weft_moe_ffn_create_stored(gpu, &s->gpu, &there), WEFT_OK);
    CHECK_INT(weft_moe_ffn_expert(ffn, &expert), WEFT_OK);
    CHECK_INT(weft_moe_ffn_expert(there, &its), WEFT_OK);
    moe_forward_rounds(r, *c, cpu, gpu, &expert, &its, false);
    weft_moe_ffn_free(ffn);
    weft_moe_ffn_free(there);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < experts; e++) {
            free(s->matrix[0][i][e]);
            free(s->scale[0][i][e]);
        }
    free(s);
}

/* `works`: the GPU has the products. `cu`: its driver, with the calling thread's context. */
static inline void moe_ffn(moe_rank *r, bool works, const weft_cuda_driver *cu)
{
    static const moe_case cases[] = {
        {7, 3, 64, 9, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 0, 21, 0},
        {10, 4, 40, 7, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 1, 0, 22, 0},
        {9, 3, 264, 6, 0, WEFT_BF16, WEFT_MOE_EXACT, true, 0, 1, 0, 23, WEFT_MOE_WIRE_FP8}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const moe_case *c = &cases[i];
        int table[64];
        weft_moe *cpu = NULL, *gpu = NULL;
        weft_moe_config config;
        moe_weights w = {.inter = 32};
        weft_moe_ffn *ffn = NULL, *there = NULL;
        weft_moe_expert expert = {.size = sizeof(expert)}, its = {.size = sizeof(its)};

        r->used = 0;
        moe_configure(c, weft_size(r->gpu), table, &config);
        CHECK_INT(weft_moe_create(r->cpu, &config, &cpu), WEFT_OK);
        CHECK_INT(weft_moe_create(r->gpu, &config, &gpu), WEFT_OK);
        moe_weights_make(r, c, cpu, &w);
        CHECK_INT(weft_moe_ffn_create(cpu, w.inter, (const void *const *)w.cpu[0],
                                      (const void *const *)w.cpu[1], (const void *const *)w.cpu[2], &ffn),
                  WEFT_OK);
        CHECK_INT(weft_moe_ffn_create(gpu, w.inter, (const void *const *)w.gpu[0],
                                      (const void *const *)w.gpu[1], (const void *const *)w.gpu[2], &there),
                  works ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        CHECK_INT(weft_moe_ffn_expert(ffn, &expert), WEFT_OK);
        if (works) {
            CHECK_INT(weft_moe_ffn_expert(there, &its), WEFT_OK);
            moe_forward_rounds(r, *c, cpu, gpu, &expert, &its, false);
            moe_forward_rounds(r, *c, cpu, gpu, &expert, &its, true);
            moe_forward_graph(r, *c, cpu, gpu, &expert, &its, cu);
            moe_ffn_stored(r, c, &w, cpu, gpu, i == 0 ? WEFT_FP8_E4M3 : i == 1 ? WEFT_I8 : WEFT_F32);
        }
        for (int e = 0; e < weft_moe_local_experts(cpu, NULL); e++)
            for (int j = 0; j < 3; j++)
                free(w.cpu[j][e]);
        weft_moe_ffn_free(ffn);
        CHECK_INT(weft_moe_free(cpu), WEFT_OK);
        if (i % 2)
            weft_moe_ffn_free(there);
        CHECK_INT(weft_moe_free(gpu), WEFT_OK);
        if (i % 2 == 0)
            weft_moe_ffn_free(there);
    }
}

/* ---- rounds back to back ------------------------------------------------------------------------------- */

/* Rounds with identity experts, each with its own routing, prepared in GPU memory: what one round reads and
 * writes there. */
typedef struct moe_queue {
    moe_case c;
    weft_moe *gpu;
    weft_moe_input *input;
    char **y;
    int64_t *start, *rows;
    char *packed, *packed_of[2]; /* by lane */
} moe_queue;

enum { MOE_X = 4 }; /* different tokens; they are used in turn */

static inline void moe_queue_make(moe_rank *r, const moe_case *c, moe_queue *q)
{
    weft_moe_config config;
    int *table = malloc((size_t)c->experts * sizeof(int));
    size_t y_bytes = (size_t)(c->tokens * moe_row_bytes(c));
    char *poison = malloc(y_bytes), *x[MOE_X];

    *q = (moe_queue){.c = *c,
                     .input = calloc((size_t)c->rounds, sizeof(*q->input)),
                     .y = calloc((size_t)c->rounds, sizeof(*q->y))};
    moe_configure(c, weft_size(r->gpu), table, &config);
    config.lanes = 2;
    CHECK_INT(weft_moe_create(r->gpu, &config, &q->gpu), WEFT_OK);
    free(table);
    r->used = 0;
    memset(poison, 0x5a, y_bytes);
    for (int i = 0; i < MOE_X; i++) {
        char *host = malloc(y_bytes);

        for (int64_t j = 0; j < c->tokens * c->hidden; j++)
            weft_element_set(c->dtype, host, (size_t)j,
                             (double)((j * 7 + i * 3 + weft_rank(r->gpu)) % 11) - 5);
        x[i] = moe_up(r, host, y_bytes);
        free(host);
    }
    for (int i = 0; i < c->rounds; i++) {
        moe_case one = *c;

        one.kind = i % MOE_KINDS;
        moe_tokens t = moe_tokens_make(&one, weft_rank(r->gpu), i);
        size_t pairs = (size_t)(c->tokens * c->topk);

        q->input[i] = (weft_moe_input){.size = sizeof(q->input[i]), .tokens = t.count, .x = x[i % MOE_X]};
        q->input[i].expert = moe_up(r, t.expert, pairs * sizeof(int32_t));
        q->input[i].weight = moe_up(r, t.weight, pairs * sizeof(float));
        q->y[i] = moe_up(r, poison, y_bytes);
        moe_tokens_free(&t);
    }
    q->start = moe_take(r, (size_t)c->experts * sizeof(int64_t));
    q->rows = moe_take(r, sizeof(int64_t));
    for (int i = 0; i < 2; i++)
        q->packed_of[i] = moe_take(r, (size_t)(weft_size(r->gpu) * c->tokens * c->topk + 8 * c->experts) *
                                          (size_t)moe_row_bytes(c));
    q->packed = q->packed_of[0];
    free(poison);
}

/* A round on the stream: nothing is waited for. */
static inline weft_status moe_queue_round(moe_queue *q, const weft_moe_input *input, void *y)
{
    weft_status status = weft_moe_dispatch(q->gpu, 0, input, NULL);

    if (!status)
        status = weft_moe_layout(q->gpu, 0, 8, q->start, q->rows);
    if (!status)
        status = weft_moe_gather(q->gpu, 0, q->start, q->packed);
    return status ? status : weft_moe_combine(q->gpu, 0, q->packed, q->start, y);
}

/* y of a round against the closed form; `count` tokens were given, the rest is as it was. */
static inline void moe_queue_check(moe_rank *r, moe_queue *q, int round, const void *y, int64_t count,
                                   bool ran)
{
    const moe_case *c = &q->c;
    moe_case one = *c;
    size_t y_bytes = (size_t)(c->tokens * moe_row_bytes(c));
    char *got = moe_down(r, y, y_bytes), *want = malloc(y_bytes);

    one.kind = round % MOE_KINDS;
    moe_tokens t = moe_tokens_make(&one, weft_rank(r->gpu), round);
    memset(want, 0x5a, y_bytes);
    for (int64_t i = 0; ran && i < count * c->hidden; i++) {
        double x = (double)((i * 7 + round % MOE_X * 3 + weft_rank(r->gpu)) % 11) - 5, sum = 0;

        for (int k = 0; k < c->topk; k++)
            if (t.expert[i / c->hidden * c->topk + k] >= 0)
                sum += (double)t.weight[i / c->hidden * c->topk + k] * x;
        weft_element_set(c->dtype, want, (size_t)i, sum);
    }
    if (memcmp(got, want, y_bytes) != 0) {
        size_t at = 0;

        while (got[at] == want[at])
            at++;
        fprintf(stderr, "round %d is wrong on rank %d of %d: token %lld of %lld, element %lld\n", round,
                weft_rank(r->gpu), weft_size(r->gpu), (long long)((int64_t)at / moe_row_bytes(c)),
                (long long)count,
                (long long)((int64_t)at % moe_row_bytes(c) / (int64_t)weft_dtype_size(c->dtype)));
    }
    CHECK_INT(memcmp(got, want, y_bytes), 0);
    moe_tokens_free(&t);
    free(got);
    free(want);
}

static inline void moe_queue_free(moe_queue *q)
{
    CHECK_INT(weft_moe_free(q->gpu), WEFT_OK);
    free(q->input);
    free(q->y);
}

static inline void moe_back_to_back(moe_rank *r, int rounds, weft_moe_mode mode)
{
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, mode, true, 0, 8, rounds, 21, 0};
    moe_queue q;

    moe_queue_make(r, &c, &q);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < rounds; i++)
        CHECK_INT(moe_queue_round(&q, &q.input[i], q.y[i]), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    for (int i = 0; i < rounds; i++)
        moe_queue_check(r, &q, i, q.y[i], q.input[i].tokens, true);
    moe_queue_free(&q);
}

/* Two rounds in flight, each half a call; which lane goes first differs from rank to rank. */
static inline void moe_two_lanes(moe_rank *r, int rounds)
{
    enum { SEND, RECEIVE, GIVE, TAKE, HALVES };
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, WEFT_MOE_REDUCED, true, 0, 8, rounds, 43, 0};
    moe_queue q;

    moe_queue_make(r, &c, &q);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i + 1 < rounds; i += 2)
        for (int half = 0; half < HALVES; half++)
            for (int j = 0; j < 2; j++) {
                int lane = (weft_rank(r->gpu) + i / 2 + half + j) % 2, round = i + lane;
                weft_status status = half == SEND      ? weft_moe_dispatch_send(q.gpu, lane, &q.input[round])
                                     : half == RECEIVE ? weft_moe_dispatch_recv(q.gpu, lane, NULL)
                                     : half == GIVE
                                         ? weft_moe_combine_send(q.gpu, lane, q.packed_of[lane], NULL)
                                         : weft_moe_combine_recv(q.gpu, lane, q.y[round]);

                CHECK_INT(status, WEFT_OK);
                if (half == RECEIVE)
                    CHECK_INT(weft_moe_gather(q.gpu, lane, NULL, q.packed_of[lane]), WEFT_OK);
            }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    for (int i = 0; i + 1 < rounds; i++)
        moe_queue_check(r, &q, i, q.y[i], q.input[i].tokens, true);
    moe_queue_free(&q);
}

/* ---- what cannot be right ------------------------------------------------------------------------------ */

/* Rank 0 gives a routing that cannot be right: it is told why, the others by whom, and the next round works.
 */
static inline void moe_refused(moe_rank *r, moe_queue *q, weft_moe_input *input, const char *why, bool early)
{
    weft_moe_view view = {.size = sizeof(view)};
    bool mine = weft_rank(r->gpu) == 0;
    weft_status status = weft_moe_dispatch_send(q->gpu, 0, mine ? input : &q->input[0]);

    CHECK_INT(status, mine && (early || !input || !input->expert) ? WEFT_ERR_ARGUMENT : status);
    if (status == WEFT_OK)
        status = weft_moe_dispatch_recv(q->gpu, 0, &view);
    CHECK_INT(status, mine ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(r->gpu), mine ? why : "rank 0 rejected its input in round");
    CHECK_INT(weft_moe_combine(q->gpu, 0, q->packed, NULL, q->y[1]), WEFT_ERR_STATE);
    CHECK_INT(moe_queue_round(q, &q->input[2], q->y[2]), WEFT_OK);
    moe_queue_check(r, q, 2, q->y[2], q->input[2].tokens, true);
}

static inline void moe_wrong_inputs(moe_rank *r, moe_queue *q)
{
    int64_t tokens = q->c.tokens;
    moe_case full = q->c;

    full.kind = MOE_FULL;
    moe_tokens t = moe_tokens_make(&full, weft_rank(r->gpu), 3);
    weft_moe_input good = moe_input_up(r, &full, &t), input = good;
    int32_t kept = t.expert[(tokens - 1) * 3 + 1];

    t.expert[(tokens - 1) * 3 + 1] = q->c.experts;
    t.expert[4 * 3 + 2] = -2;
    input.expert = moe_up(r, t.expert, (size_t)(tokens * 3) * sizeof(int32_t));
    moe_refused(r, q, &input, "token 4 asks for expert -2 in position 2; experts are 0 to 10", true);
    t.expert[(tokens - 1) * 3 + 1] = kept;
    t.expert[4 * 3 + 2] = t.expert[4 * 3];
    input.expert = moe_up(r, t.expert, (size_t)(tokens * 3) * sizeof(int32_t));
    moe_refused(r, q, &input, "token 4 names expert", true);
    input = good;
    input.tokens = tokens + 1;
    moe_refused(r, q, &input, "made for at most 6 a rank; make it for 7", true);
    input.tokens = -1;
    moe_refused(r, q, &input, "-1 tokens", true);
    input = good;
    input.x = NULL;
    moe_refused(r, q, &input, "x is NULL", true);
    input = good;
    input.weight = t.weight;
    moe_refused(r, q, &input, "weight is at", true);
    moe_refused(r, q, NULL, "input is NULL", true);
    moe_tokens_free(&t);
}

/* The routing before, with other weights or the same, and what has none. */
static inline void moe_repeats(moe_rank *r, moe_queue *q)
{
    moe_case full = q->c;
    moe_tokens t;
    weft_moe_input input;
    char *y = moe_take(r, (size_t)(full.tokens * moe_row_bytes(&full)));

    full.kind = MOE_FULL;
    t = moe_tokens_make(&full, weft_rank(r->gpu), 5); /* 5: the kind FULL in moe_queue_check */
    input = moe_input_up(r, &full, &t);
    input.x = q->input[1].x;
    CHECK_INT(moe_queue_round(q, &input, y), WEFT_OK);
    moe_queue_check(r, q, 5, y, full.tokens, true);
    input.expert = NULL;
    for (int i = 0; i < 2; i++) { /* the weights are in the routing from here on */
        input.weight = i ? NULL : input.weight;
        CHECK_INT(moe_queue_round(q, &input, y), WEFT_OK);
        moe_queue_check(r, q, 5, y, full.tokens, true);
    }
    input.tokens--;
    moe_refused(r, q, &input, "repeats a routing of 6 tokens, but there are 5", false);
    moe_tokens_free(&t);
}

/* On a stream: the round that is rejected does nothing, those around it are right, and the wait says so. */
static inline void moe_rejected_on_stream(moe_rank *r, moe_queue *q)
{
    bool mine = weft_rank(r->gpu) == weft_size(r->gpu) - 1;
    int32_t wrong[3] = {1, 10, 11};
    weft_moe_input bad = q->input[5];
    size_t y_bytes = (size_t)(q->c.tokens * moe_row_bytes(&q->c));
    char *poison = malloc(y_bytes), *y[3];

    memset(poison, 0x5a, y_bytes);
    for (int i = 0; i < 3; i++)
        y[i] = moe_up(r, poison, y_bytes);
    bad.tokens = 1;
    if (mine)
        bad.expert = moe_up(r, wrong, sizeof(wrong));
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(moe_queue_round(q, &q->input[3], y[0]), WEFT_OK);
    CHECK_INT(moe_queue_round(q, &bad, y[1]), WEFT_OK);
    CHECK_INT(moe_queue_round(q, &q->input[4], y[2]), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), mine ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(r->gpu), mine ? "token 0 asks for expert 11 in position 2" : "rejected its input");
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    moe_queue_check(r, q, 3, y[0], q->input[3].tokens, true);
    moe_queue_check(r, q, 5, y[1], 1, false);
    moe_queue_check(r, q, 4, y[2], q->input[4].tokens, true);
    /* Known before the combine, the round is over. */
    CHECK_INT(weft_moe_dispatch_send(q->gpu, 0, &bad), WEFT_OK);
    if (mine) {
        CHECK_INT(weft_group_wait(r->gpu), WEFT_ERR_ARGUMENT);
    } else {
        CHECK_INT(weft_moe_dispatch_recv(q->gpu, 0, NULL), WEFT_OK);
        CHECK_INT(weft_group_wait(r->gpu), WEFT_ERR_PEER);
    }
    CHECK_INT(moe_queue_round(q, &q->input[3], y[0]), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    moe_queue_check(r, q, 3, y[0], q->input[3].tokens, true);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    free(poison);
}

/* Calls out of order, a layout that does not hold the rows, what GPUs do not do. */
static inline void moe_other_errors(moe_rank *r, moe_queue *q)
{
    weft_moe_expert expert = {.size = sizeof(expert)};
    weft_moe_ffn *ffn;
    weft_moe_config config;
    weft_moe *other = NULL;
    int table[16];
    weft_moe_input one = q->input[3]; /* all to one expert, which lives on one rank */
    int64_t host[16];
    const int32_t *here;
    const void *weights[16];
    bool has = false;

    for (int i = weft_moe_local_experts(q->gpu, &here); i-- > 0;)
        has |= here[i] == 10;
    CHECK_INT(weft_moe_dispatch_recv(q->gpu, 0, NULL), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(r->gpu), "a dispatch must be sent first");
    CHECK_INT(weft_moe_gather(q->gpu, 0, NULL, q->packed), WEFT_ERR_STATE);
    CHECK_INT(weft_moe_dispatch(q->gpu, 2, &one, NULL), WEFT_ERR_ARGUMENT);
    one.tokens = q->c.tokens;
    CHECK_INT(weft_moe_dispatch(q->gpu, 0, &one, NULL), WEFT_OK);
    CHECK_INT(weft_moe_dispatch(q->gpu, 0, &one, NULL), WEFT_ERR_STATE);
    CHECK_INT(weft_moe_layout(q->gpu, 0, 8, host, host), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(r->gpu), "not memory that a GPU can use");
    CHECK_INT(weft_moe_layout(q->gpu, 0, -3, q->start, q->rows), has ? WEFT_ERR_ARGUMENT : WEFT_OK);
    if (has)
        CHECK_HAS(weft_error(r->gpu), "expert 10 received");
    CHECK_INT(weft_moe_gather(q->gpu, 0, q->start, q->packed), WEFT_OK);
    CHECK_INT(weft_moe_combine_recv(q->gpu, 0, q->y[3]), WEFT_ERR_STATE);
    CHECK_INT(weft_moe_combine(q->gpu, 0, q->packed, q->start, q->y[3]), WEFT_OK);
    CHECK_INT(weft_moe_forward(q->gpu, 0, &one, &expert, q->y[3]), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(r->gpu), "the feed-forward expert of its layer");
    for (int i = 0; i < 16; i++)
        weights[i] = q->packed;
    CHECK_INT(weft_moe_ffn_create(q->gpu, 8, weights, weights, weights, &ffn), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(r->gpu), "is of float16 or bfloat16");
    moe_configure(&q->c, weft_size(r->gpu), table, &config);
    config.mode = WEFT_MOE_EXACT;
    config.impl = WEFT_MOE_SORTED;
    CHECK_INT(weft_moe_create(r->gpu, &config, &other), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(r->gpu), "fused alone, not sorted");
}

static inline void moe_errors(moe_rank *r)
{
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, WEFT_MOE_EXACT, true, 0, 8, 6, 33, 0};
    moe_queue q;

    moe_queue_make(r, &c, &q);
    moe_wrong_inputs(r, &q);
    moe_repeats(r, &q);
    moe_rejected_on_stream(r, &q);
    moe_other_errors(r, &q);
    moe_queue_free(&q);
}

/* ---- groups -------------------------------------------------------------------------------------------- */

static inline bool moe_begin(weft_group *group, moe_rank *r)
{
    void *memory = NULL;
    weft_status status;

    *r = (moe_rank){.gpu = group};
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &r->cpu), WEFT_OK);
    CHECK_INT(weft_group_split(group, weft_rank(group), 0, &r->solo), WEFT_OK);
    status = weft_group_use_gpu(group, 0);
    if (status == WEFT_OK)
        status = weft_group_use_gpu(r->solo, 0);
    if (status == WEFT_OK)
        status = weft_alloc(r->solo, MOE_BYTES, 0, &memory);
    r->device = memory;
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "rank %d: %s\n", weft_rank(group), weft_error(group));
    weft_set_deadlines(group, 20, 20);
    return status == WEFT_OK;
}

static inline void moe_end(moe_rank *r)
{
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    weft_group_free(r->solo);
    weft_group_free(r->cpu);
}

/* ---- ranks that are lost ------------------------------------------------------------------------------- */

/* Rank 1 does not come to a round, or not to its combine. */
static inline void moe_missing_rank(weft_group *group, void *argument)
{
    bool combines = *(bool *)argument;
    moe_case c = {4, 2, 8, 4, 0, WEFT_F32, WEFT_MOE_EXACT, false, 0, 8, 2, 3, 0};
    bool missing = weft_rank(group) == 1;
    moe_queue q;
    moe_rank r;

    if (!moe_begin(group, &r))
        return;
    moe_queue_make(&r, &c, &q);
    CHECK_INT(moe_queue_round(&q, &q.input[0], q.y[0]), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, missing ? 20 : 0.3, 20), WEFT_OK);
    if (combines)
        CHECK_INT(weft_moe_dispatch(q.gpu, 0, &q.input[0], NULL), WEFT_OK);
    if (missing) {
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    } else {
        CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
        CHECK_INT(combines ? weft_moe_combine(q.gpu, 0, q.packed, NULL, q.y[0])
                           : moe_queue_round(&q, &q.input[1], q.y[1]),
                  WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_ERR_TIMEOUT);
    }
    CHECK_HAS(weft_error(group),
              combines ? "for rank 1 to combine round 2 of lane 0" : "for rank 1 to enter round 2 of lane 0");
    CHECK_INT(weft_moe_dispatch(q.gpu, 0, &q.input[0], NULL), WEFT_ERR_TIMEOUT);
    weft_moe_free(q.gpu);
    free(q.input);
    free(q.y);
    weft_group_free(r.solo);
    weft_group_free(r.cpu);
}

static inline void moe_killed_rank(int rank, void *argument)
{
    moe_case c = {4, 2, 8, 4, 0, WEFT_F32, WEFT_MOE_EXACT, false, 0, 8, 2, 3, 0};
    weft_group *group;
    moe_queue q;
    moe_rank r;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!moe_begin(group, &r))
        return;
    moe_queue_make(&r, &c, &q);
    CHECK_INT(moe_queue_round(&q, &q.input[0], q.y[0]), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 1) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        raise(SIGKILL);
    }
    CHECK_INT(moe_queue_round(&q, &q.input[1], q.y[1]), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_moe_free(q.gpu);
    free(q.input);
    free(q.y);
    weft_group_free(r.solo);
    weft_group_free(r.cpu);
    weft_group_free(group);
}

#endif
