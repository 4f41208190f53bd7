/*
 * The rung below fused: every (token, expert) pair is a row of its own with a flag of its own. Counts go out
 * first, so receivers already wait for rows while they are being copied. A flag holds the epoch in which its
 * row was last written and is never reset.
 */
#include <string.h>

#include "moe/moe.h"

typedef struct flag_wait {
    _Atomic uint64_t *flag;
    uint64_t epoch;
} flag_wait;

static bool flag_is_up(void *argument)
{
    const flag_wait *wait = argument;

    /* Partner: raise on the rank that wrote the row. */
    return weft_signal_passed(atomic_load_explicit(wait->flag, memory_order_acquire), wait->epoch);
}

static void raise(_Atomic uint64_t *flag, uint64_t epoch)
{
    /* Partner: flag_is_up on the rank that reads the row. */
    atomic_store_explicit(flag, epoch, memory_order_release);
}

static weft_status await_flag(weft_moe_lane *lane, const char *op, int peer, _Atomic uint64_t *flag,
                              weft_wait_kind kind)
{
    flag_wait wait = {flag, lane->epoch};
    weft_wait_note note = {.op = op, .peer = peer, .task = lane->index, .epoch = lane->epoch, .kind = kind};

    if (flag_is_up(&wait))
        return WEFT_OK;
    return weft_wait_until(lane->moe->group, flag_is_up, &wait, &note);
}

static weft_status rows_dispatch_send(weft_moe_lane *lane, const void *x)
{
    const weft_moe *moe = lane->moe;

    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_manifest_for(lane, d) =
            (weft_moe_manifest){.generation = lane->generation,
                                .x = lane->stage_place,
                                .x_stride = moe->stage_stride,
                                .row_base = lane->out.row_base[d],
                                .entry_base = lane->out.entry_base[d],
                                .entries = lane->out.entry_base[d + 1] - lane->out.entry_base[d]};
    weft_moe_post_counts(lane, false);
    for (int d = 0; d < moe->shape.ranks; d++)
        for (int64_t i = lane->out.row_base[d]; i < lane->out.row_base[d + 1]; i++) {
            char *row = lane->stage + i * moe->stage_stride;

            weft_moe_put_row(moe, row, (const char *)x + lane->out.row[i].token * moe->row_bytes);
            if (weft_moe_is_far(lane, d))
                weft_moe_far_row(lane, d, row, moe->wire_bytes, &lane->row_flag[i]);
            else
                raise(&lane->row_flag[i], lane->epoch);
        }
    return WEFT_OK;
}

static weft_status rows_dispatch_recv(weft_moe_lane *lane)
{
    weft_moe_received *in = &lane->in;

    weft_moe_collect(lane);
    weft_moe_group_by_expert(lane);
    for (int64_t i = 0; i < in->rows; i++) {
        int source = in->source[i];
        _Atomic uint64_t *flags = weft_moe_at(lane, lane->row_flag, source);
        int64_t row = weft_moe_manifest_of(lane, source)->row_base + i - in->rank_base[source];
        weft_status status = await_flag(lane, "moe dispatch", source, flags + row, WEFT_WAIT_PROGRESS);

        if (status)
            return status;
    }
    return WEFT_OK;
}

static weft_status rows_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    weft_moe_received *in = &lane->in;

    for (int64_t i = 0; i < in->rows; i++) {
        int32_t slot = in->entry[in->entry_base[i]].slot;
        _Atomic uint64_t *flag =
            (_Atomic uint64_t *)weft_moe_at(lane, lane->result_flag, in->source[i]) + slot;

        weft_moe_return_from(lane, i, i + 1, results, start);
        if (weft_moe_is_far(lane, in->source[i]))
            weft_moe_far_row(lane, in->source[i], weft_moe_slot_at(lane, in->source[i], slot),
                             lane->moe->result_bytes, flag);
        else
            raise(flag, lane->epoch);
    }
    return WEFT_OK;
}

static weft_status rows_combine_recv(weft_moe_lane *lane, void *y)
{
    weft_moe_routing *out = &lane->out;

    memset(lane->summed, 0, (size_t)out->tokens);
    for (int64_t t = 0; t < out->tokens; t++) {
        const weft_moe_term *term = out->term + t * lane->moe->shape.terms_per_token;

        for (int32_t i = 0; i < out->terms[t]; i++) {
            weft_status status = await_flag(lane, "moe combine", term[i].rank,
                                            &lane->result_flag[term[i].slot], WEFT_WAIT_ENTER);

            if (status)
                return status;
        }
        weft_moe_sum_tokens(lane, t, t + 1, y);
    }
    return WEFT_OK;
}

const weft_moe_rung weft_moe_rows = {
    .name = "rows",
    .row_flags = true,
    .dispatch_send = rows_dispatch_send,
    .dispatch_recv = rows_dispatch_recv,
    .combine_send = rows_combine_send,
    .combine_recv = rows_combine_recv,
};
