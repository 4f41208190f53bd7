/*
 * The top of the ladder: a token is one row for a rank however many experts it has there, it is read where it
 * lies, experts write their results where they are summed, and a round is nothing but that work.
 */
#include <string.h>

#include "moe/moe.h"

enum { CHUNK_BYTES = 128 << 10 };

static weft_status fused_send(weft_moe_lane *lane, const void *x)
{
    weft_moe *moe = lane->moe;
    int64_t tokens = lane->out.tokens, chunk = CHUNK_BYTES / moe->row_bytes + 1;
    bool in_place = tokens && weft_symm_contains(moe->group, x, (size_t)(tokens * moe->row_bytes));

    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_board_for(lane, d) =
            (weft_moe_board){.generation = lane->generation,
                             .x_shift = in_place ? (const char *)x - lane->stage : 0,
                             .x_stride = in_place ? moe->row_bytes : moe->stage_stride,
                             .row_base = lane->out.row_base[d],
                             .entry_base = lane->out.entry_base[d],
                             .entries = lane->out.entry_base[d + 1] - lane->out.entry_base[d]};
    weft_moe_post_counts(lane, false);
    for (int64_t t = 0; t < tokens && !in_place; t += chunk) {
        int64_t end = t + chunk < tokens ? t + chunk : tokens;

        for (int64_t i = t; i < end; i++)
            memcpy(lane->stage + i * moe->stage_stride, (const char *)x + i * moe->row_bytes,
                   (size_t)moe->row_bytes);
        weft_moe_post_staged(lane, end);
    }
    if (in_place)
        weft_moe_post_staged(lane, tokens);
    return WEFT_OK;
}

/* Waits until the tokens of received rows [begin, end) can be read. */
static weft_status await_rows(weft_moe_lane *lane, int64_t begin, int64_t end)
{
    weft_moe_received *in = &lane->in;
    weft_status status = WEFT_OK;

    while (begin < end && !status) {
        int source = in->source[begin];
        int64_t last = in->rank_base[source + 1] < end ? in->rank_base[source + 1] : end;

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
        int64_t last = in->rank_base[source + 1] < end ? in->rank_base[source + 1] : end;

        weft_moe_post_done(lane, source, last - in->rank_base[source]);
        begin = last;
    }
}

static weft_status fused_receive(weft_moe_lane *lane)
{
    weft_moe_collect(lane);
    return await_rows(lane, 0, lane->in.rows);
}

static weft_status fused_give(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    int64_t chunk = CHUNK_BYTES / lane->moe->result_bytes + 1, rows = lane->in.rows;

    for (int64_t i = 0; i < rows; i += chunk) {
        int64_t end = i + chunk < rows ? i + chunk : rows;

        for (int64_t j = i; j < end; j++)
            weft_moe_return_from(lane, j, results, start);
        post_rows(lane, i, end);
    }
    return WEFT_OK;
}

static weft_status fused_take(weft_moe_lane *lane, void *y)
{
    weft_moe_routing *out = &lane->out;

    for (int64_t t = 0; t < out->tokens; t++) {
        const weft_moe_slot *slot = out->slot + t * lane->moe->shape.slots_per_token;

        for (int32_t i = 0; i < out->slots[t]; i++) {
            weft_status status = weft_moe_await_done(lane, slot[i].rank, slot[i].row + 1);

            if (status)
                return status;
        }
        weft_moe_sum_token(lane, t, y);
    }
    return WEFT_OK;
}

static weft_status run_rows(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t begin, int64_t end)
{
    int64_t block = weft_moe_block_rows(lane, expert);

    for (int64_t i = begin; i < end; i += block) {
        int64_t last = i + block < end ? i + block : end;
        weft_status status = await_rows(lane, i, last);

        if (!status)
            status = weft_moe_run_block(lane, expert, i, last);
        if (status)
            return status;
        post_rows(lane, i, last);
    }
    return WEFT_OK;
}

/* Serves the ranks after this one first and itself last: the others wait for their results, it does not. */
static weft_status fused_forward(weft_moe_lane *lane, const weft_moe_expert *expert, void *y)
{
    weft_status status;
    int64_t first;

    weft_moe_collect(lane);
    weft_moe_note_received(lane);
    first = lane->in.rank_base[lane->moe->group->rank + 1];
    if (weft_moe_block_rows(lane, expert) >= lane->in.rows)
        first = 0;
    status = run_rows(lane, expert, first, lane->in.rows);
    if (!status)
        status = run_rows(lane, expert, 0, first);
    return status ? status : fused_take(lane, y);
}

const weft_moe_rung weft_moe_fused = {
    .name = "fused",
    .one_row_per_rank = true,
    .stage_once = true,
    .send = fused_send,
    .receive = fused_receive,
    .give = fused_give,
    .take = fused_take,
    .forward = fused_forward,
};
