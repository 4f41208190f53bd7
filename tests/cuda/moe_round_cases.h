/* Rounds of mixture of experts back to back on a group of GPUs, in two lanes, and those that go wrong: inputs
 * that are refused, ranks that are lost. */
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

/* ---- what cannot be right ------------------------------------------------------------------------------ */

/* The same call on both: the same status, and where it is an error the same sentence. */
static inline void moe_alike(const moe_rank *r, weft_status gpu, weft_status cpu, const char *what)
{
    bool same = gpu == cpu && (cpu == WEFT_OK || strcmp(weft_error(r->gpu), weft_error(r->cpu)) == 0);

    CHECK(same);
    if (!same)
        fprintf(stderr, "  %s on rank %d of %d: gpu %s: %s\n  cpu %s: %s\n", what, weft_rank(r->gpu),
                weft_size(r->gpu), weft_status_name(gpu), gpu ? weft_error(r->gpu) : "",
                weft_status_name(cpu), cpu ? weft_error(r->cpu) : "");
}

/* How the input of a rank is wrong. */
typedef enum moe_wrong {
    MOE_RIGHT,
    MOE_HIGH, /* an expert beyond the last */
    MOE_LOW,  /* one below -1 */
    MOE_TWICE,
    MOE_TWICE_AND_HIGH, /* in the same token */
    MOE_SEVERAL,        /* tokens, the later ones first beyond the last expert, then named twice */
    MOE_TOO_MANY,
    MOE_NEGATIVE,
    MOE_NO_X,
    MOE_NO_INPUT,
    MOE_NO_ROUTING, /* repeats one of another number of tokens */
    MOE_WRONGS
} moe_wrong;

static inline void moe_spoil(const moe_case *c, moe_wrong wrong, moe_tokens *t)
{
    int32_t *last = t->expert + (c->tokens - 1) * c->topk, *second = t->expert + c->topk;

    if (wrong == MOE_HIGH || wrong == MOE_SEVERAL)
        last[1] = c->experts + 3;
    if (wrong == MOE_LOW)
        second[c->topk - 1] = -2;
    if (wrong == MOE_TWICE || wrong == MOE_TWICE_AND_HIGH || wrong == MOE_SEVERAL)
        second[c->topk - 1] = second[0];
    if (wrong == MOE_TWICE_AND_HIGH)
        second[1] = c->experts;
    if (wrong == MOE_SEVERAL)
        t->expert[2 * c->topk] = INT32_MIN;
}

static inline weft_moe_input *moe_wrong_input(moe_wrong wrong, weft_moe_input *input)
{
    input->tokens += wrong == MOE_TOO_MANY;
    if (wrong == MOE_NEGATIVE)
        input->tokens = -7;
    if (wrong == MOE_NO_X)
        input->x = NULL;
    if (wrong == MOE_NO_ROUTING) {
        input->expert = NULL;
        input->tokens--;
    }
    return wrong == MOE_NO_INPUT ? NULL : input;
}

/* A round of both layers with a wrong input on one rank, or on two: all hear of it as on the CPU. */
static inline void moe_wrong_round(moe_rank *r, const moe_case *c, weft_moe *cpu, weft_moe *gpu,
                                   moe_wrong wrong, bool two)
{
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu), first = (int)wrong % world;
    bool mine = rank == first || (two && rank == (first + 1) % world);
    moe_tokens t = moe_tokens_make(c, rank, 5);

    wrong = mine ? wrong : MOE_RIGHT;
    moe_spoil(c, wrong, &t);
    r->used = 0;
    weft_moe_input there = moe_input_up(r, c, &t), here = {.size = sizeof(here),
                                                           .tokens = t.count,
                                                           .x = t.x,
                                                           .expert = t.expert,
                                                           .weight = t.weight};
    weft_status status = weft_moe_dispatch(cpu, 0, moe_wrong_input(wrong, &here), NULL);

    moe_alike(r, weft_moe_dispatch(gpu, 0, moe_wrong_input(wrong, &there), NULL), status, "a dispatch");
    CHECK(status == WEFT_ERR_ARGUMENT || status == WEFT_ERR_PEER);
    moe_tokens_free(&t);
}

/* Calls out of order, and arguments that change nothing: of a lane on which nothing is under way, and of one
 * that has received. */
static inline void moe_wrong_calls(moe_rank *r, const moe_case *c, weft_moe *cpu, weft_moe *gpu)
{
    moe_tokens t = moe_tokens_make(c, weft_rank(r->gpu), 0);
    char *memory;
    int64_t start[64], rows, *there_start;
    weft_moe_view view = {.size = 1};

    r->used = 0;
    weft_moe_input there = moe_input_up(r, c, &t), here = {.size = sizeof(here),
                                                           .tokens = t.count,
                                                           .x = t.x,
                                                           .expert = t.expert,
                                                           .weight = t.weight};
    memory = moe_take(r, (size_t)(c->tokens * moe_row_bytes(c)));
    there_start = moe_take(r, sizeof(start));
    for (int received = 0; received < 2; received++) {
        moe_alike(r, weft_moe_combine_recv(gpu, 0, memory), weft_moe_combine_recv(cpu, 0, t.x),
                  "combine_recv");
        moe_alike(r, weft_moe_dispatch_recv(gpu, 0, NULL), weft_moe_dispatch_recv(cpu, 0, NULL),
                  "dispatch_recv");
        moe_alike(r, weft_moe_dispatch(gpu, 0, &there, &view), weft_moe_dispatch(cpu, 0, &here, &view),
                  "a view");
        moe_alike(r, weft_moe_dispatch(gpu, -1, &there, NULL), weft_moe_dispatch(cpu, -1, &here, NULL),
                  "a lane");
        moe_alike(r, weft_moe_layout(gpu, 0, 0, there_start, there_start),
                  weft_moe_layout(cpu, 0, 0, start, &rows), "an alignment of 0");
        moe_alike(r, weft_moe_layout(gpu, 0, 1, NULL, there_start), weft_moe_layout(cpu, 0, 1, NULL, &rows),
                  "a layout without start");
        if (received) {
            moe_alike(r, weft_moe_dispatch_send(gpu, 0, &there), weft_moe_dispatch_send(cpu, 0, &here),
                      "a second dispatch");
            moe_alike(r, weft_moe_layout(gpu, 0, -2, there_start, there_start + 63),
                      weft_moe_layout(cpu, 0, -2, start, &rows), "a layout that is too narrow");
            moe_alike(r, weft_moe_combine(gpu, 0, memory, NULL, NULL),
                      weft_moe_combine(cpu, 0, t.x, NULL, NULL), "a combine without y");
        } else {
            moe_alike(r, weft_moe_combine(gpu, 0, memory, NULL, memory),
                      weft_moe_combine(cpu, 0, t.x, NULL, t.x), "combine");
            moe_alike(r, weft_moe_gather(gpu, 0, NULL, memory), weft_moe_gather(cpu, 0, NULL, t.x), "gather");
            CHECK_INT(weft_moe_dispatch(cpu, 0, &here, NULL), WEFT_OK);
            CHECK_INT(weft_moe_dispatch(gpu, 0, &there, NULL), WEFT_OK);
        }
    }
    moe_tokens_free(&t);
}

/* What is wrong on the CPU is wrong on GPUs, in the same words; the round behind it is right. */
static inline void moe_errors_alike(moe_rank *r)
{
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, WEFT_MOE_EXACT, true, MOE_FULL, 8, 0, 51, 0};
    int *table = malloc((size_t)c.experts * sizeof(int));
    weft_moe *cpu = NULL, *gpu = NULL;
    weft_moe_config config;

    for (int reduced = 0; reduced < 2; reduced++) {
        c.mode = reduced ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT;
        moe_configure(&c, weft_size(r->gpu), table, &config);
        CHECK_INT(weft_moe_create(r->cpu, &config, &cpu), WEFT_OK);
        CHECK_INT(weft_moe_create(r->gpu, &config, &gpu), WEFT_OK);
        for (int wrong = MOE_RIGHT + 1; wrong < MOE_WRONGS; wrong++)
            for (int two = 0; two < 2; two++) {
                moe_wrong_round(r, &c, cpu, gpu, (moe_wrong)wrong, two);
                moe_round(r, &c, cpu, gpu, wrong);
            }
        moe_wrong_calls(r, &c, cpu, gpu);
        CHECK_INT(weft_moe_free(cpu), WEFT_OK);
        CHECK_INT(weft_moe_free(gpu), WEFT_OK);
    }
    free(table);
}

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
    moe_errors_alike(r);
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
