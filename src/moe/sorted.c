/*
 * The second rung: grouping is sorting. Each rank sorts its (token, expert) pairs by rank and expert, packs
 * its rows in that order, and all ranks exchange the pieces (all-to-all). Results go back the same way, and
 * the inverse of the permutation finds a token's rows again. Every phase waits for the one before it, on all
 * ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "moe/moe.h"

typedef struct pair {
    int32_t rank, expert, token;
    weft_moe_wire_entry entry;
} pair;

static int compare(const void *left, const void *right)
{
    const pair *a = left, *b = right;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->expert != b->expert)
        return a->expert < b->expert ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* Puts wire rows and entries in sorted order. A slot is the place in that order from now on; lane->inverse
 * leads there from the slots the routing counted. */
static weft_status sort_pairs(weft_moe_lane *lane)
{
    weft_moe_routing *out = &lane->out;
    weft_status status = weft_moe_scratch(lane, (size_t)out->rows * sizeof(pair) + 1);
    pair *pairs = (pair *)lane->scratch;

    if (status)
        return status;
    for (int64_t i = 0; i < out->rows; i++)
        pairs[i] = (pair){.rank = lane->moe->owner[out->entry[i].expert],
                          .expert = out->entry[i].expert,
                          .token = out->row[i].token,
                          .entry = out->entry[i]};
    qsort(pairs, (size_t)out->rows, sizeof(pair), compare);
    for (int64_t i = 0; i < out->rows; i++) {
        lane->inverse[pairs[i].entry.slot] = (int32_t)i;
        out->row[i] = (weft_moe_wire_row){.token = pairs[i].token, .entries = 1};
        out->entry[i] = pairs[i].entry;
        out->entry[i].slot = (int32_t)i;
    }
    return WEFT_OK;
}

static weft_status sorted_dispatch_send(weft_moe_lane *lane, const void *x)
{
    const weft_moe *moe = lane->moe;
    weft_moe_routing *out = &lane->out;

    if (lane->sorted_routing != lane->routing) {
        weft_status status = sort_pairs(lane);

        if (status)
            return status;
        lane->sorted_routing = lane->routing;
    }
    for (int64_t i = 0; i < out->rows; i++)
        weft_moe_put_row(moe, lane->stage + i * moe->stage_stride,
                         (const char *)x + out->row[i].token * moe->row_bytes);
    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_manifest_for(lane, d) =
            (weft_moe_manifest){.generation = lane->generation,
                                .x = lane->stage_place,
                                .x_stride = moe->stage_stride,
                                .row_base = out->row_base[d],
                                .entry_base = out->entry_base[d],
                                .entries = out->entry_base[d + 1] - out->entry_base[d]};
    weft_moe_post_counts(lane, false);
    return WEFT_OK;
}

/* The all-to-all: every piece is copied here, straight to its place in expert order. */
static weft_status sorted_dispatch_recv(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    size_t need;

    weft_moe_collect(lane);
    weft_moe_group_by_expert(lane);
    need = (size_t)(in->entries * moe->stage_stride);
    if (need > lane->receive_bytes) {
        free(lane->receive);
        lane->receive_bytes = 0;
        lane->receive = malloc(need);
        if (!lane->receive)
            return weft_group_poison(moe->group, WEFT_ERR_MEMORY,
                                     "moe: no memory for %zu bytes of received rows", need);
        lane->receive_bytes = need;
    }
    for (int64_t i = 0; i < in->rows; i++) {
        char *place = lane->receive + in->place[i] * moe->stage_stride;

        memcpy(place, in->row[i], (size_t)moe->wire_bytes);
        in->row[i] = place;
    }
    return WEFT_OK;
}

static weft_status sorted_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    weft_moe_return_from(lane, 0, lane->in.rows, results, start);
    for (int s = 0; s < lane->moe->shape.ranks; s++)
        weft_moe_post_done(lane, s, lane->counts[s]);
    return WEFT_OK;
}

static weft_status sorted_combine_recv(weft_moe_lane *lane, void *y)
{
    const weft_moe *moe = lane->moe;
    weft_moe_routing *out = &lane->out;

    for (int d = 0; d < moe->shape.ranks; d++) {
        weft_status status = weft_moe_await_done(lane, d, out->row_base[d + 1] - out->row_base[d]);

        if (status)
            return status;
    }
    for (int64_t t = 0; t < out->tokens; t++) {
        const weft_moe_term *term = out->term + t * moe->shape.terms_per_token;

        for (int32_t i = 0; i < out->terms[t]; i++) {
            lane->block_in[i] = lane->slot + lane->inverse[term[i].slot] * moe->slot_stride;
            lane->block_weight[i] = term[i].weight;
        }
        weft_moe_sum(moe->config.dtype, (char *)y + t * moe->result_bytes, lane->block_in, lane->block_weight,
                     out->terms[t], moe->config.hidden);
    }
    return WEFT_OK;
}

const weft_moe_rung weft_moe_sorted = {
    .name = "sorted",
    .dispatch_send = sorted_dispatch_send,
    .dispatch_recv = sorted_dispatch_recv,
    .combine_send = sorted_combine_send,
    .combine_recv = sorted_combine_recv,
};
