/*
 * The top of the ladder: a token is one row for a rank however many experts it has there, it is read where it
 * lies, experts write their results where they are summed, and a round is nothing but that work.
 */
#include <string.h>

#include "moe/moe.h"

#include "core/round.h"

/* Of a thread, from one word to the other ranks to the next; over nodes as much as is lent (net/). */
enum { CHUNK_BYTES = 128 << 10, FAR_CHUNK_BYTES = 256 << 10 };

static int64_t chunk_of(const weft_moe *moe, int64_t row_bytes)
{
    return ((moe->nodes.count ? FAR_CHUNK_BYTES : CHUNK_BYTES) / row_bytes + 1) * weft_moe_members(moe);
}

typedef struct staging {
    weft_moe_lane *lane;
    const char *x;
} staging;

static void stage_tokens(void *context, int64_t begin, int64_t end)
{
    const staging *s = context;
    const weft_moe *moe = s->lane->moe;

    for (int64_t i = begin; i < end; i++)
        weft_moe_put_row(moe, s->lane->stage + i * moe->stage_stride, s->x + i * moe->row_bytes);
}

static weft_status fused_dispatch_send(weft_moe_lane *lane, const void *x)
{
    weft_moe *moe = lane->moe;
    int64_t tokens = lane->out.tokens, chunk = chunk_of(moe, moe->wire_bytes);
    staging copy = {lane, x};
    weft_symm_place place = lane->stage_place;
    bool in_place = moe->config.wire == WEFT_MOE_WIRE_GIVEN && tokens &&
                    weft_symm_find(moe->group, x, (size_t)(tokens * moe->row_bytes), &place);

    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_manifest_for(lane, d) =
            (weft_moe_manifest){.generation = lane->generation,
                                .x = place,
                                .x_stride = in_place ? moe->row_bytes : moe->stage_stride,
                                .row_base = lane->out.row_base[d],
                                .entry_base = lane->out.entry_base[d],
                                .entries = lane->out.entry_base[d + 1] - lane->out.entry_base[d],
                                .sharers = weft_moe_sharers(lane, d)};
    weft_moe_post_counts(lane, false);
    if (in_place)
        weft_moe_post_staged(lane, tokens);
    weft_moe_relay_begin(lane);
    for (int64_t t = 0; t < tokens; t += chunk) {
        int64_t end = weft_min(t + chunk, tokens);

        if (!in_place) {
            weft_moe_share(moe, t, end, moe->row_bytes, stage_tokens, &copy);
            weft_moe_post_staged(lane, end);
        }
        weft_moe_relay(lane, in_place ? x : lane->stage, in_place ? moe->row_bytes : moe->stage_stride, t,
                       end);
    }
    return WEFT_OK;
}

/* Waits until the tokens of received rows [begin, end) can be read. */
static weft_status await_rows(weft_moe_lane *lane, int64_t begin, int64_t end)
{
    weft_moe_received *in = &lane->in;
    weft_status status = WEFT_OK;

    while (begin < end && !status) {
        int source = in->source[begin];
        int64_t last = weft_min(in->rank_base[source + 1], end);

        status = weft_moe_await_staged(lane, source, in->token[last - 1] + 1);
        begin = last;
    }
    return status;
}

/* Tells the owners of received rows [begin, end) that those, and all of theirs before, have been returned. */
static void post_rows(weft_moe_lane *lane, int64_t begin, int64_t end)
{
    weft_moe_received *in = &lane->in;

    while (begin < end) {
        int source = in->source[begin];
        int64_t last = weft_min(in->rank_base[source + 1], end);

        weft_moe_post_done(lane, source, last - in->rank_base[source]);
        begin = last;
    }
}

static weft_status fused_dispatch_recv(weft_moe_lane *lane)
{
    weft_moe_collect(lane);
    weft_moe_group_by_expert(lane);
    return await_rows(lane, 0, lane->in.rows);
}

static weft_status fused_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    int64_t chunk = chunk_of(lane->moe, lane->moe->result_bytes), rows = lane->in.rows;

    for (int64_t i = 0; i < rows; i += chunk) {
        int64_t end = weft_min(i + chunk, rows);

        weft_moe_return_from(lane, i, end, results, start);
        post_rows(lane, i, end);
    }
    return WEFT_OK;
}

/* Waits for the results of token t. */
static weft_status await_token(weft_moe_lane *lane, int64_t t)
{
    const weft_moe_routing *out = &lane->out;
    const weft_moe_term *term = out->term + t * lane->moe->shape.terms_per_token;
    weft_status status = WEFT_OK;

    for (int32_t i = 0; i < out->terms[t] && !lane->summed[t] && !status; i++)
        status = weft_moe_await_back(lane, t, &term[i]);
    return status;
}

/* The rest, waiting for it: by one thread token for token, by several as many as are worth sharing. */
static weft_status take_from(weft_moe_lane *lane, int64_t t, void *y)
{
    int64_t chunk = weft_moe_members(lane->moe) > 1 ? chunk_of(lane->moe, lane->moe->result_bytes) : 1;

    while (t < lane->out.tokens) {
        int64_t end = weft_min(t + chunk, lane->out.tokens);

        for (int64_t i = t; i < end; i++) {
            weft_status status = await_token(lane, i);

            if (status)
                return status;
        }
        weft_moe_sum_tokens(lane, t, end, y);
        t = end;
    }
    return WEFT_OK;
}

static weft_status fused_combine_recv(weft_moe_lane *lane, void *y)
{
    memset(lane->summed, 0, (size_t)lane->out.tokens);
    return take_from(lane, 0, y);
}

static weft_status run_rows(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t begin, int64_t end)
{
    weft_status status = await_rows(lane, begin, end);

    if (!status) {
        weft_moe_expand_rows(lane, begin, end);
        status = weft_moe_run_block(lane, expert, begin, end);
    }
    if (!status)
        post_rows(lane, begin, end);
    return status;
}

/* The one other result of own token t, if there is just one and it is here. */
static const void *only_other(const weft_moe_lane *lane, int64_t t)
{
    const weft_moe_term *term = lane->out.term + t * lane->moe->shape.terms_per_token;
    const weft_moe_term *other = &term[term[0].rank == lane->moe->group->rank];

    if (lane->out.terms[t] != 2 || !weft_moe_is_back(lane, t, other))
        return NULL;
    return lane->slot + other->slot * lane->moe->slot_stride;
}

/* Own rows, whose experts sum by the row. A token that waits for nothing else is finished at once, which
 * saves writing and reading the own result, and hides reading the other one behind the arithmetic. */
static weft_status finish_rows(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t begin, int64_t end,
                               void *y)
{
    weft_status status = WEFT_OK;

    weft_moe_expand_rows(lane, begin, end);
    for (int64_t i = begin; i < end && !status; i++) {
        int64_t t = lane->in.token[i];
        const void *other = only_other(lane, t);

        if (!other) {
            status = weft_moe_run_block(lane, expert, i, i + 1);
            continue;
        }
        weft_moe_run_row(lane, expert, i, other, (char *)y + t * lane->moe->result_bytes);
        lane->summed[t] = true;
    }
    if (!status)
        post_rows(lane, begin, end);
    return status;
}

/*
 * A block of rows of every other rank in turn, beginning with the next one; then a block of own rows, one
 * block behind, so that the others' results for those tokens are likely back; then the own tokens whose
 * results are back, while they are still in the cache; and again. Experts that gain from many rows at once
 * run as grouped.c says.
 */
static weft_status fused_forward(weft_moe_lane *lane, const weft_moe_expert *expert, void *y)
{
    const weft_moe_received *in = &lane->in;
    int ranks = lane->moe->shape.ranks, me = lane->moe->group->rank;
    bool by_row = weft_moe_by_row(lane, expert);
    weft_status status = WEFT_OK;
    int64_t block, taken = 0, left;

    weft_moe_collect(lane);
    weft_moe_note_received(lane);
    memset(lane->summed, 0, (size_t)lane->out.tokens);
    block = weft_moe_block_rows(lane, expert);
    left = in->rows;
    block = weft_min(block, left);
    if (expert->expert_rows > 0 && !expert->block_rows && !by_row) {
        status = weft_moe_run_by_expert(lane, expert, y, &taken);
        left = 0;
    } else if (block >= left && left && !by_row) {
        status = run_rows(lane, expert, 0, left);
        left = 0;
    }
    for (int64_t done = 0; left > 0 && !status; done += block) {
        for (int i = 1; i <= ranks && !status; i++) {
            int source = (me + i) % ranks;
            int64_t first = source == me ? done - block : done,
                    rows = in->rank_base[source + 1] - in->rank_base[source];
            int64_t begin = in->rank_base[source] + first;
            int64_t end = in->rank_base[source] + weft_min(first + block, rows);

            if (first < 0 || begin >= end)
                continue;
            status = source == me && by_row ? finish_rows(lane, expert, begin, end, y)
                                            : run_rows(lane, expert, begin, end);
            left -= end - begin;
        }
        taken = weft_moe_take_ready(lane, taken, y);
    }
    return status ? status : take_from(lane, taken, y);
}

const weft_moe_rung weft_moe_fused = {
    .name = "fused",
    .one_row_per_rank = true,
    .stage_once = true,
    .dispatch_send = fused_dispatch_send,
    .dispatch_recv = fused_dispatch_recv,
    .combine_send = fused_combine_send,
    .combine_recv = fused_combine_recv,
    .forward = fused_forward,
};
