/*
 * The competitors of `weft bench moe`: what a program does that has MPI, and a plain copy of the same bytes.
 *
 * The MPI version is a good one: a counting sort, one exchange of counts, one MPI_Alltoallv each way with
 * buffers made beforehand, the same expert kernel, and the same sum over the inverse permutation.
 */
#include "bench/moe/bench_moe.h"

#include "bench/standin/scale.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct moe_peer {
    moe_subject *it;
    int ranks, most_here;           /* experts of the rank that has most */
    int *send_counts, *recv_counts; /* [rank][local expert] */
    int *send_bytes, *send_offsets, *recv_bytes, *recv_offsets;
    int32_t *first;          /* per expert: first place in the sorted order */
    int32_t *place;          /* token, k -> place */
    char *packed, *received; /* room for the rows sent, and for the most that can be received */
    const void **rows;
    float *weights;
    int32_t *order; /* one token's k in ascending expert */
};

bool moe_peer_can(const moe_subject *it)
{
    double rows = (double)it->shape.tokens * it->shape.topk * it->context->size;

    return it->context->mpi && it->wire == WEFT_MOE_WIRE_GIVEN && rows * (double)it->row_bytes <= INT_MAX;
}

moe_peer *moe_peer_open(moe_subject *it)
{
    moe_peer *p = calloc(1, sizeof(*p));
    size_t ranks = (size_t)it->context->size, pairs = (size_t)(it->shape.tokens * it->shape.topk);

    if (!p)
        return NULL;
    p->it = it;
    p->ranks = it->context->size;
    for (int e = 0; e < it->shape.experts; e++)
        if (it->local_index[e] >= p->most_here)
            p->most_here = it->local_index[e] + 1;
    p->send_counts = calloc(2 * ranks * (size_t)p->most_here, sizeof(int));
    p->recv_counts = p->send_counts + ranks * (size_t)p->most_here;
    p->send_bytes = calloc(4 * ranks, sizeof(int));
    p->send_offsets = p->send_bytes + ranks;
    p->recv_bytes = p->send_offsets + ranks;
    p->recv_offsets = p->recv_bytes + ranks;
    p->first = calloc((size_t)it->shape.experts + 1, sizeof(int32_t));
    p->place = calloc(pairs, sizeof(int32_t));
    p->packed = malloc(pairs * (size_t)it->row_bytes);
    p->received = malloc(pairs * ranks * (size_t)it->row_bytes);
    p->rows = calloc((size_t)it->shape.topk, sizeof(void *));
    p->weights = calloc((size_t)it->shape.topk, sizeof(float));
    p->order = calloc((size_t)it->shape.topk, sizeof(int32_t));
    if (!p->send_counts || !p->send_bytes || !p->first || !p->place || !p->packed || !p->received ||
        !p->rows || !p->weights || !p->order) {
        moe_peer_close(p);
        return NULL;
    }
    return p;
}

void moe_peer_close(moe_peer *p)
{
    if (!p)
        return;
    free(p->send_counts);
    free(p->send_bytes);
    free(p->first);
    free(p->place);
    free(p->packed);
    free(p->received);
    free(p->rows);
    free(p->weights);
    free(p->order);
    free(p);
}

static int prepare_peer(void *argument, int iteration)
{
    moe_peer *p = argument;

    (void)iteration;
    return moe_prepare(p->it);
}

/* Stable counting sort by (rank, expert), and the rows packed in that order. */
static void sort_and_pack(moe_peer *p, const weft_contest_data *data)
{
    const moe_subject *it = p->it;
    int64_t pairs = data->tokens * it->shape.topk;
    int32_t sum = 0;

    memset(p->send_counts, 0, (size_t)(p->ranks * p->most_here) * sizeof(int));
    for (int64_t i = 0; i < pairs; i++)
        p->send_counts[it->owner[data->expert[i]] * p->most_here + it->local_index[data->expert[i]]]++;
    for (int e = 0; e < it->shape.experts; e++) { /* owners are ascending in the contest's placement */
        p->first[e] = sum;
        sum += p->send_counts[it->owner[e] * p->most_here + it->local_index[e]];
    }
    for (int64_t i = 0; i < pairs; i++) {
        p->place[i] = p->first[data->expert[i]]++;
        memcpy(p->packed + p->place[i] * it->row_bytes,
               (const char *)data->x + i / it->shape.topk * it->row_bytes, (size_t)it->row_bytes);
    }
}

static void count_bytes(moe_peer *p, const int *counts, int *bytes, int *offsets)
{
    int offset = 0;

    for (int r = 0; r < p->ranks; r++) {
        int rows = 0;

        for (int e = 0; e < p->most_here; e++)
            rows += counts[r * p->most_here + e];
        bytes[r] = rows * (int)p->it->row_bytes;
        offsets[r] = offset;
        offset += bytes[r];
    }
}

/* Rows came by source, and by expert within a source. */
static void run_experts(moe_peer *p)
{
    const moe_subject *it = p->it;
    char *row = p->received;
    int first = 0;

    while (first < it->shape.experts && it->owner[first] != it->context->rank)
        first++;
    for (int r = 0; r < p->ranks; r++)
        for (int e = 0; e < p->most_here; e++)
            for (int i = 0; i < p->recv_counts[r * p->most_here + e]; i++, row += it->row_bytes)
                weft_standin_scale(it->dtype, row, row, weft_standin_factor(&it->standin, first + e),
                                   it->shape.hidden);
}

/* Each token's rows again, in ascending expert id. */
static void invert_and_sum(moe_peer *p, const weft_contest_data *data)
{
    const moe_subject *it = p->it;
    int topk = it->shape.topk;

    for (int64_t t = 0; t < data->tokens; t++) {
        const int32_t *expert = data->expert + t * topk;

        for (int k = 0; k < topk; k++) {
            int i = k;

            for (; i > 0 && expert[p->order[i - 1]] > expert[k]; i--)
                p->order[i] = p->order[i - 1];
            p->order[i] = k;
        }
        for (int k = 0; k < topk; k++) {
            p->rows[k] = p->packed + p->place[t * topk + p->order[k]] * it->row_bytes;
            p->weights[k] = data->weight[t * topk + p->order[k]];
        }
        weft_moe_sum(it->dtype, it->y + t * it->row_bytes, p->rows, p->weights, topk, it->shape.hidden);
    }
}

static int run_peer(void *argument, int iteration)
{
    moe_peer *p = argument;
    const bench_mpi *mpi = p->it->context->mpi;
    const weft_contest_data *data = moe_data(p->it, iteration);

    sort_and_pack(p, data);
    mpi->all_to_all(p->send_counts, p->most_here * (int64_t)sizeof(int), p->recv_counts);
    count_bytes(p, p->send_counts, p->send_bytes, p->send_offsets);
    count_bytes(p, p->recv_counts, p->recv_bytes, p->recv_offsets);
    mpi->all_to_all_v(p->packed, p->send_bytes, p->send_offsets, p->received, p->recv_bytes, p->recv_offsets);
    run_experts(p);
    mpi->all_to_all_v(p->received, p->recv_bytes, p->recv_offsets, p->packed, p->send_bytes, p->send_offsets);
    invert_and_sum(p, data);
    return 0;
}

static int check_peer(void *argument, int iteration)
{
    moe_peer *p = argument;

    return moe_check(p->it, iteration, false);
}

bench_contender moe_peer_contender(moe_peer *p)
{
    return (bench_contender){
        .name = "sort + MPI", .argument = p, .prepare = prepare_peer, .run = run_peer, .check = check_peer};
}

/* ---- a plain copy of the same bytes ---------------------------------------------------------------- */

struct moe_copy {
    moe_subject *it;
    bool reduced;
    char *there, *out, *back; /* symmetric: rows received, results as made, results returned */
    int32_t *to[MOE_DRAWS];   /* per row: token, destination, results it has */
    int64_t rows[MOE_DRAWS];
};

enum { COPY_FIELDS = 3 };

/* Which rows a mode sends: one per token and rank; and back one each, or one per expert there. */
static bool list_rows(moe_copy *c, int draw)
{
    const moe_subject *it = c->it;
    const weft_contest_data *data = &it->data[draw];
    int topk = it->shape.topk;

    c->to[draw] = calloc((size_t)(data->tokens * topk) * COPY_FIELDS + 1, sizeof(int32_t));
    if (!c->to[draw])
        return false;
    for (int64_t t = 0; t < data->tokens; t++)
        for (int r = 0; r < it->context->size; r++) {
            int32_t *row = c->to[draw] + c->rows[draw] * COPY_FIELDS, experts = 0;

            for (int k = 0; k < topk; k++)
                experts += data->expert[t * topk + k] >= 0 && it->owner[data->expert[t * topk + k]] == r;
            if (!experts)
                continue;
            row[0] = (int32_t)t;
            row[1] = r;
            row[2] = c->reduced ? 1 : experts;
            c->rows[draw]++;
        }
    return true;
}

moe_copy *moe_copy_open(moe_subject *it, bool reduced)
{
    moe_copy *c = calloc(1, sizeof(*c));
    size_t tokens = (size_t)it->shape.tokens, row = (size_t)it->row_bytes;
    size_t results = reduced ? (size_t)it->context->size : (size_t)it->shape.topk;
    bool listed = c != NULL;

    if (!c)
        return NULL;
    c->it = it;
    c->reduced = reduced;
    if (weft_alloc(it->context->group, tokens * (size_t)it->context->size * row, 0, (void **)&c->there) !=
            WEFT_OK ||
        weft_alloc(it->context->group, tokens * results * row, 0, (void **)&c->out) != WEFT_OK ||
        weft_alloc(it->context->group, tokens * results * row, 0, (void **)&c->back) != WEFT_OK) {
        bench_fail(it->context, "allocating");
        listed = false;
    }
    for (int draw = 0; listed && draw < it->draws; draw++)
        listed = list_rows(c, draw);
    if (!listed) {
        moe_copy_close(c);
        return NULL;
    }
    return c;
}

void moe_copy_close(moe_copy *c)
{
    if (!c)
        return;
    weft_free(c->it->context->group, c->there);
    weft_free(c->it->context->group, c->out);
    weft_free(c->it->context->group, c->back);
    for (int draw = 0; draw < c->it->draws; draw++)
        free(c->to[draw]);
    free(c);
}

/* A rank on another node has no memory here: what goes there is copied inside this one. */
static char *memory_of(const moe_subject *it, char *mine, int rank)
{
    char *theirs = weft_peer(it->context->group, mine, rank);

    return theirs ? theirs : mine;
}

/* Every row is written to its rank, then every result is read from there; each row once. */
static int run_copy(void *argument, int iteration)
{
    moe_copy *c = argument;
    const moe_subject *it = c->it;
    int draw = iteration % it->draws, me = it->context->rank;
    const weft_contest_data *data = &it->data[draw];
    size_t row = (size_t)it->row_bytes, result = 0;
    size_t wire = (size_t)(it->wire_bytes < it->row_bytes ? it->wire_bytes : it->row_bytes);

    for (int64_t i = 0; i < c->rows[draw]; i++) {
        const int32_t *to = c->to[draw] + i * COPY_FIELDS;
        char *there = memory_of(it, c->there, to[1]);

        memcpy(there + ((size_t)me * (size_t)it->shape.tokens + (size_t)to[0]) * wire,
               (const char *)data->x + (size_t)to[0] * row, wire);
    }
    for (int64_t i = 0; i < c->rows[draw]; i++) {
        const int32_t *to = c->to[draw] + i * COPY_FIELDS;
        const char *out = memory_of(it, c->out, to[1]);

        for (int32_t j = 0; j < to[2]; j++, result++)
            memcpy(c->back + result * row, out + result * row, row);
    }
    return 0;
}

bench_contender moe_copy_contender(moe_copy *c)
{
    return (bench_contender){
        .name = c->reduced ? "memcpy reduced" : "memcpy exact", .argument = c, .run = run_copy};
}
