/*
 * The bottom of the ladder, to be read first: every rank shows its tokens, experts and weights; the owner of
 * an expert looks through all tokens of all ranks for it; results lie at [token][k]; and a token looks
 * through all experts, in ascending order, for its own. Nothing is counted, sorted or placed.
 */
#include "moe/moe.h"

static weft_status reference_dispatch_send(weft_moe_lane *lane, const void *x)
{
    const weft_moe *moe = lane->moe;
    weft_moe_routing *out = &lane->out;

    for (int64_t t = 0; t < out->tokens; t++)
        weft_moe_put_row(moe, lane->stage + t * moe->stage_stride, (const char *)x + t * moe->row_bytes);
    for (int d = 0; d < moe->shape.ranks; d++)
        *weft_moe_manifest_for(lane, d) = (weft_moe_manifest){.entries = (int32_t)out->tokens};
    weft_moe_post_counts(lane, false);
    return WEFT_OK;
}

static void add_row(weft_moe_lane *lane, int source, int64_t token, int k, int expert)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    int64_t at = token * moe->config.topk + k, i = in->rows++;

    in->row[i] = (char *)weft_moe_at(lane, lane->stage, source) + token * moe->stage_stride;
    in->source[i] = source;
    in->token[i] = (int32_t)token;
    in->entry_base[i] = (int32_t)in->entries;
    in->entry[in->entries++] =
        (weft_moe_wire_entry){.expert = expert,
                              .slot = (int32_t)at,
                              .weight = ((float *)weft_moe_at(lane, lane->weight_copy, source))[at]};
    in->entry_base[i + 1] = (int32_t)in->entries;
}

static weft_status reference_dispatch_recv(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;

    lane->in.rows = lane->in.entries = 0;
    lane->in.grouped = false;
    lane->in.entry_base[0] = 0;
    for (int j = 0; j < moe->experts_here; j++)
        for (int source = 0; source < moe->shape.ranks; source++) {
            const int32_t *expert = weft_moe_at(lane, lane->index_copy, source);

            for (int64_t t = 0; lane->counts[source] && t < weft_moe_manifest_of(lane, source)->entries; t++)
                for (int k = 0; k < moe->config.topk; k++)
                    if (expert[t * moe->config.topk + k] == moe->local[j])
                        add_row(lane, source, t, k, moe->local[j]);
        }
    weft_moe_group_by_expert(lane);
    return WEFT_OK;
}

static weft_status reference_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    weft_moe_return_from(lane, 0, lane->in.rows, results, start);
    for (int s = 0; s < lane->moe->shape.ranks; s++)
        weft_moe_post_done(lane, s, lane->counts[s]);
    return WEFT_OK;
}

static weft_status reference_combine_recv(weft_moe_lane *lane, void *y)
{
    const weft_moe *moe = lane->moe;
    int topk = moe->config.topk;

    for (int d = 0; d < moe->shape.ranks; d++) {
        weft_status status = weft_moe_await_done(lane, d, lane->out.row_base[d + 1] - lane->out.row_base[d]);

        if (status)
            return status;
    }
    for (int64_t t = 0; t < lane->out.tokens; t++) {
        int found = 0;

        for (int e = 0; e < moe->config.experts; e++)
            for (int64_t at = t * topk; at < (t + 1) * topk; at++)
                if (lane->index_copy[at] == e) {
                    lane->block_in[found] = lane->slot + at * moe->slot_stride;
                    lane->block_weight[found++] = lane->weight_copy[at];
                }
        weft_moe_sum(moe->config.dtype, (char *)y + t * moe->result_bytes, lane->block_in, lane->block_weight,
                     found, moe->config.hidden);
    }
    return WEFT_OK;
}

const weft_moe_rung weft_moe_reference = {
    .name = "reference",
    .stage_once = true,
    .input_copy = true,
    .dispatch_send = reference_dispatch_send,
    .dispatch_recv = reference_dispatch_recv,
    .combine_send = reference_combine_send,
    .combine_recv = reference_combine_recv,
};
