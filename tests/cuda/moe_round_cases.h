/* Rounds of mixture of experts back to back on a group of GPUs, in two lanes, captured and replayed, and with
 * ranks that are lost. */
#ifndef WEFT_TESTS_CUDA_MOE_ROUND_CASES_H
#define WEFT_TESTS_CUDA_MOE_ROUND_CASES_H

#include "moe_cases.h"

#include <signal.h>
#include <time.h>

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

/* One round captured on the caller's stream and replayed with the routings of many: only the memory that the
 * graph reads changes between replays, on the stream. `cu`: the GPU's driver, with the calling thread's
 * context. */
static inline void moe_graph(moe_rank *r, const weft_cuda_driver *cu, int replays)
{
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, WEFT_MOE_EXACT, true, 0, 8, replays, 77, 0};
    size_t pairs = (size_t)(c.tokens * c.topk), y_bytes = (size_t)(c.tokens * moe_row_bytes(&c));
    int32_t *none = malloc(pairs * sizeof(*none));
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;
    moe_queue q;

    moe_queue_make(r, &c, &q);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    memset(none, 0xff, pairs * sizeof(*none));
    weft_moe_input fixed = {.size = sizeof(fixed),
                            .tokens = c.tokens,
                            .x = moe_take(r, y_bytes),
                            .expert = moe_up(r, none, pairs * sizeof(*none)),
                            .weight = moe_take(r, pairs * sizeof(float))};
    char *y = moe_take(r, y_bytes);

    CHECK_INT(moe_queue_round(&q, &fixed, y), WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_INT(moe_queue_round(&q, &fixed, y), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < replays; i++) {
        const void *from[4] = {q.input[i].x, q.input[i].expert, q.input[i].weight, y},
                   *to[4] = {fixed.x, fixed.expert, fixed.weight, q.y[i]};
        size_t bytes[4] = {y_bytes, pairs * sizeof(int32_t), pairs * sizeof(float), y_bytes};

        for (int j = 0; j < 4; j++) {
            if (j == 3)
                CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
            CHECK_INT(cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to[j], (CUdeviceptr)(uintptr_t)from[j],
                                        bytes[j], stream),
                      CUDA_SUCCESS);
        }
    }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    for (int i = 0; i < replays; i++)
        moe_queue_check(r, &q, i, q.y[i], c.tokens, true);
    free(none);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    moe_queue_free(&q);
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    cu->cuStreamDestroy(stream);
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
    if (combines)
        CHECK_INT(weft_moe_dispatch(q.gpu, 0, &q.input[0], NULL), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, missing ? 20 : 0.3, 20), WEFT_OK);
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
