/* Layers on a group of GPUs, each with a rank to itself, that have so many rows that experts begin with those
 * that have arrived: beside the CPU, and what becomes of a round that cannot be. For three ranks. */
#ifndef WEFT_TESTS_CUDA_MOE_ARRIVING_CASES_H
#define WEFT_TESTS_CUDA_MOE_ARRIVING_CASES_H

#include "moe_ffn_cases.h"

static const moe_case moe_arriving_shapes[] = {
    {4, 2, 8, 400, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 0, 31, 0},
    {5, 3, 24, 330, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 1, 0, 32, 0}};

/* A token of rank 1 names an expert that is not there: all leave the round, and the next one works. */
static inline void moe_arriving_refused(moe_rank *r, moe_ffn_pair *p)
{
    bool wrong = weft_rank(r->gpu) == 1;
    size_t y_bytes = (size_t)(p->c.tokens * moe_row_bytes(&p->c)), mark = r->used;
    int32_t outside = p->c.experts;
    weft_moe_input up;
    moe_tokens t;
    void *y;

    p->c.kind = MOE_FULL;
    t = moe_ffn_tokens(&p->c, weft_rank(r->gpu), 0);
    up = moe_input_up(r, &p->c, &t);
    y = moe_take(r, y_bytes);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    if (wrong)
        CHECK_INT(
            weft_memcpy(r->solo, (void *)(uintptr_t)(up.expert + 3 * p->c.topk), &outside, sizeof(outside)),
            WEFT_OK);
    CHECK_INT(weft_moe_forward(p->gpu, 0, &up, &p->there, y), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), wrong ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(r->gpu), wrong ? "token 3" : "rank 1");
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    moe_tokens_free(&t);
    r->used = mark;
}

/* Round by round each rank does one or the other: it begins with rows that have arrived, or its call returns
 * when it is done, or x lies so that rows cannot be moved. In every fifth round a token of one rank cannot
 * be. */
static inline void moe_arriving_by_turns(moe_rank *r, moe_ffn_pair *p, int rounds)
{
    size_t y_bytes = (size_t)(p->c.tokens * moe_row_bytes(&p->c)), mark = r->used;
    int rank = weft_rank(r->gpu), world = weft_size(r->gpu);
    char *clean = calloc(1, y_bytes), *y = calloc(1, y_bytes);

    for (int i = 0; i < rounds; i++) {
        int way = (i * i + i / 3 + 2 * rank) % 3, wrong = i % 5 == 4 ? i / 5 % world : -1;
        moe_tokens t;

        p->c.kind = wrong >= 0 ? MOE_FULL : i % MOE_KINDS;
        t = moe_ffn_tokens(&p->c, rank, i);
        if (wrong == rank)
            t.expert[7 * p->c.topk] = p->c.experts;
        weft_moe_input input = {.size = sizeof(input),
                                .tokens = t.count,
                                .x = t.x,
                                .expert = t.expert,
                                .weight = t.weight},
                       up = moe_input_up(r, &p->c, &t);
        void *there_y = moe_up(r, clean, y_bytes);
        weft_status refused = rank == wrong ? WEFT_ERR_ARGUMENT : wrong >= 0 ? WEFT_ERR_PEER : WEFT_OK;

        if (way == 2) {
            up.x = (char *)moe_take(r, y_bytes + 8) + 8;
            CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.x, t.x, y_bytes), WEFT_OK);
        }
        memset(y, 0, y_bytes);
        CHECK_INT(weft_moe_forward(p->cpu, 0, &input, &p->expert, y), refused);
        CHECK_INT(weft_group_set_stream(r->gpu, way != 1, way != 1 ? WEFT_STREAM_OWN : NULL), WEFT_OK);
        CHECK_INT(weft_moe_forward(p->gpu, 0, &up, &p->there, there_y), way == 1 ? refused : WEFT_OK);
        if (way != 1)
            CHECK_INT(weft_group_wait(r->gpu), refused);
        moe_same(r, there_y, y, y_bytes, "results of ranks that take turns");
        moe_tokens_free(&t);
        r->used = mark;
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK); /* a refused call leaves a kernel, and a graph follows */
    free(clean);
    free(y);
}

static inline void moe_arriving(moe_rank *r, const weft_cuda_driver *cu)
{
    for (size_t i = 0; i < sizeof(moe_arriving_shapes) / sizeof(*moe_arriving_shapes); i++) {
        moe_ffn_pair p;

        moe_ffn_open(r, &moe_arriving_shapes[i], true, &p);
        moe_forward_rounds(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, true);
        /* those whose calls return when they are done wait for all rows */
        moe_forward_rounds(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, weft_rank(r->gpu) % 2);
        moe_arriving_refused(r, &p);
        moe_arriving_by_turns(r, &p, 20);
        moe_forward_graph(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, cu);
        moe_round(r, &p.c, p.cpu, p.gpu, 0);
        moe_ffn_close(&p, i % 2 == 0);
    }
}

/* GPUs of different sizes, so that one rank alone has all of its own. */
static inline void moe_arriving_uneven(moe_rank *r)
{
    moe_ffn_pair p;

    moe_ffn_open(r, &moe_arriving_shapes[0], true, &p);
    moe_forward_rounds(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, true);
    moe_ffn_close(&p, true);
}

/* Rank 1 does not come. */
static inline void moe_arriving_missing(moe_rank *r)
{
    bool missing = weft_rank(r->gpu) == 1;
    weft_moe_input up;
    moe_ffn_pair p;
    moe_tokens t;
    void *y;

    moe_ffn_open(r, &moe_arriving_shapes[0], true, &p);
    p.c.kind = MOE_FULL;
    t = moe_ffn_tokens(&p.c, weft_rank(r->gpu), 0);
    up = moe_input_up(r, &p.c, &t);
    y = moe_take(r, (size_t)(p.c.tokens * moe_row_bytes(&p.c)));
    CHECK_INT(weft_set_deadlines(r->gpu, missing ? 20 : 0.3, 20), WEFT_OK);
    if (missing) {
        CHECK_INT(weft_barrier(r->gpu), WEFT_ERR_TIMEOUT);
    } else {
        CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
        CHECK_INT(weft_moe_forward(p.gpu, 0, &up, &p.there, y), WEFT_OK);
        CHECK_INT(weft_group_wait(r->gpu), WEFT_ERR_TIMEOUT);
    }
    CHECK_HAS(weft_error(r->gpu), "for rank 1 to enter round 1 of lane 0");
    moe_tokens_free(&t);
    weft_moe_ffn_free(p.there_ffn);
    weft_moe_free(p.gpu);
    weft_moe_ffn_free(p.ffn);
    weft_moe_free(p.cpu);
    for (int e = 0; e < 64; e++)
        for (int j = 0; j < 3; j++)
            free(p.w.cpu[j][e]);
    weft_group_free(r->solo);
    weft_group_free(r->cpu);
}

#endif
