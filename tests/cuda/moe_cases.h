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

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
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

/* ---- groups -------------------------------------------------------------------------------------------- */

static inline bool moe_begin_on(weft_group *group, int gpu, moe_rank *r)
{
    void *memory = NULL;
    weft_status status;

    *r = (moe_rank){.gpu = group};
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &r->cpu), WEFT_OK);
    CHECK_INT(weft_group_split(group, weft_rank(group), 0, &r->solo), WEFT_OK);
    status = weft_group_use_gpu(group, gpu);
    if (status == WEFT_OK)
        status = weft_group_use_gpu(r->solo, gpu);
    if (status == WEFT_OK)
        status = weft_alloc(r->solo, MOE_BYTES, 0, &memory);
    r->device = memory;
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "rank %d: %s\n", weft_rank(group), weft_error(group));
    weft_set_deadlines(group, 20, 20);
    return status == WEFT_OK;
}

static inline bool moe_begin(weft_group *group, moe_rank *r)
{
    return moe_begin_on(group, 0, r);
}

static inline void moe_end(moe_rank *r)
{
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    weft_group_free(r->solo);
    weft_group_free(r->cpu);
}

#endif
