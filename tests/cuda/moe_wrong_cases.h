/* Inputs and calls of mixture of experts that are refused on a group of GPUs: by themselves, and beside the
 * CPU, which says the same. */
#ifndef WEFT_TESTS_CUDA_MOE_WRONG_CASES_H
#define WEFT_TESTS_CUDA_MOE_WRONG_CASES_H

#include "moe_round_cases.h"

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
    /* what the second half refuses is refused before anything is sent, and the call can be made again */
    CHECK_INT(weft_moe_combine(q->gpu, 0, q->packed, q->start, host), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(r->gpu), "y is at");
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

/* ---- beside the CPU -------------------------------------------------------------------------------------
 */

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

#endif
