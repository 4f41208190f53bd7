/* Mixture of experts on the CPU: what the calls of weft.h show of a lane, and how they use it. */
#include "api/least.h"
#include "api/moe_ops.h"
#include "core/round.h"
#include "core/sized.h"
#include "moe/ffn.h"

static weft_status receive(weft_moe_lane *lane, weft_moe_view *view)
{
    weft_status status = weft_moe_lane_dispatch_recv(lane);

    if (!status && view) {
        weft_moe_view seen = {.rows = lane->in.rows,
                              .row = lane->in.row,
                              .source = lane->in.source,
                              .token = lane->in.token,
                              .experts = lane->moe->experts_here,
                              .expert = lane->moe->local,
                              .offset = lane->in.offset,
                              .entry_row = lane->in.expert_row,
                              .entry_weight = lane->in.expert_weight};

        weft_sized_write(view, &seen, sizeof(seen), WEFT_MOE_VIEW_LEAST);
    }
    return status;
}

static weft_status layout(weft_moe_lane *lane, int64_t alignment, int64_t *start, int64_t *rows)
{
    int64_t next = 0;

    for (int e = 0; e < lane->moe->experts_here; e++) {
        int64_t count = lane->in.offset[e + 1] - lane->in.offset[e];

        if (alignment < 0 && count > -alignment)
            return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT,
                                  "weft_moe_layout: expert %d received %lld rows, but is padded to %lld",
                                  lane->moe->local[e], (long long)count, (long long)-alignment);
        start[e] = next;
        next += alignment < 0 ? -alignment : weft_round_up(count, alignment);
    }
    *rows = next;
    return WEFT_OK;
}

typedef struct packing {
    const weft_moe_lane *lane;
    const int64_t *start;
    char *packed;
} packing;

/* Entries [begin, end) of the view, expert by expert. */
static void pack_entries(void *context, int64_t begin, int64_t end)
{
    const packing *p = context;
    const weft_moe *moe = p->lane->moe;
    const weft_moe_received *in = &p->lane->in;

    for (int e = 0; e < moe->experts_here; e++) {
        int64_t first = weft_max(in->offset[e], begin);
        int64_t last = weft_min(in->offset[e + 1], end);
        int64_t shift = p->start ? p->start[e] - in->offset[e] : 0;

        for (int64_t i = first; i < last; i++)
            weft_moe_take_row(moe, p->packed + (shift + i) * moe->row_bytes, in->row[in->expert_row[i]]);
    }
}

static weft_status gather(weft_moe_lane *lane, const int64_t *start, void *packed)
{
    if (lane->in.entries > 0 && !packed)
        return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT, "weft_moe_gather: packed is NULL");
    weft_moe_share(lane->moe, 0, lane->in.entries, lane->moe->row_bytes, pack_entries,
                   &(packing){lane, start, packed});
    return WEFT_OK;
}

static weft_status forward(weft_moe_lane *lane, const weft_moe_input *input, const weft_moe_expert *expert,
                           void *y, const char *fault)
{
    fault = fault ? fault : weft_moe_ffn_fault(lane->moe, expert);
    return weft_moe_lane_forward(lane, input, expert, y, fault);
}

/* They are kept as the round goes. */
static weft_status stats_of(weft_moe_lane *lane, weft_moe_stats *stats)
{
    (void)lane, (void)stats;
    return WEFT_OK;
}

static weft_status measure(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                           size_t *private_bytes)
{
    return weft_moe_measure(config, group->size, symmetric_bytes, private_bytes, &group->error);
}

static weft_status open_layer(weft_group *group, const weft_moe_config *config, weft_moe **moe)
{
    return weft_moe_open(group, config, false, moe);
}

const weft_moe_ops weft_moe_on_cpu = {
    .measure = measure,
    .open = open_layer,
    .close = weft_moe_close,
    .dispatch_send = weft_moe_lane_dispatch_send,
    .dispatch_recv = receive,
    .layout = layout,
    .gather = gather,
    .combine_send = weft_moe_lane_combine_send,
    .combine_recv = weft_moe_lane_combine_recv,
    .check_y = weft_moe_check_y,
    .forward = forward,
    .stats = stats_of,
    .ffn_create = weft_moe_ffn_open,
};
