/*
 * Mixture of experts in the memory of a backend: state and arguments are checked here, then a kernel goes on
 * the group's stream. Whether a routing can be right is found out by the kernels. A group whose calls return
 * when they are done hears of it at once; one whose calls are ordered on a stream in weft_group_wait, and
 * until then the kernels of a rejected round do nothing.
 */
#include "api/moe_device.h"

#include "api/least.h"
#include "core/sized.h"
#include "run/backend.h"
#include "run/experts.h"

_Static_assert((int)WEFT_DEVICE_MOE_BLOCK == (int)WEFT_MOE_WIRE_BLOCK, "all backends have one format");

static const weft_device_moe_ops *ops_of(const weft_moe *moe)
{
    return weft_backend_of(moe->group)->moe;
}

static weft_status launch(const weft_moe_lane *lane, weft_device_moe_kernel kernel, weft_device_moe_args call)
{
    return ops_of(lane->moe)->launch(lane->moe->device, lane->index, kernel, &call);
}

/* Launches, and waits unless the group's calls are ordered on a stream. */
static weft_status run(const weft_moe_lane *lane, weft_device_moe_kernel kernel, weft_device_moe_args call)
{
    weft_status status = launch(lane, kernel, call);

    if (status != WEFT_OK || ops_of(lane->moe)->ordered(lane->moe->group))
        return status;
    return ops_of(lane->moe)->wait(lane->moe->device);
}

/* ---- what the kernels find wrong ------------------------------------------------------------------------
 */

/* A round that was rejected is over; if it has only been sent, the peers' part of it is read. */
static void end_round(weft_moe_lane *lane)
{
    if (lane->state == WEFT_MOE_SENT)
        launch(lane, WEFT_DEVICE_MOE_DISPATCH_RECV, (weft_device_moe_args){0});
    lane->state = WEFT_MOE_IDLE;
}

static weft_status refuse(void *context, const weft_device_moe_fault *f, weft_error_text *error)
{
    weft_moe *moe = context;

    if (f->last && f->kind != WEFT_DEVICE_MOE_OVERFLOW)
        end_round(&moe->lanes[f->lane]);
    switch (f->kind) {
    case WEFT_DEVICE_MOE_OUT_OF_RANGE:
        return weft_moe_refuse_range(&moe->shape, f->token, f->expert, f->first, error);
    case WEFT_DEVICE_MOE_NAMED_TWICE:
        return weft_moe_refuse_twice(f->token, f->expert, f->first, f->second, error);
    case WEFT_DEVICE_MOE_NOT_REPEATED:
        return weft_moe_refuse_repeat(f->expert, f->first, error);
    case WEFT_DEVICE_MOE_PEER_REJECTED:
        return weft_moe_refuse_peer(f->rank, f->round, f->lane, error);
    case WEFT_DEVICE_MOE_OVERFLOW:
        break;
    }
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "weft_moe_layout: expert %d received %lld rows, but is padded to %lld",
                          moe->local[f->expert], (long long)f->count, (long long)f->padded);
}

/* ---- making and freeing ---------------------------------------------------------------------------------
 */

static weft_device_moe_shape shape_of(weft_moe *moe)
{
    return (weft_device_moe_shape){
        .experts = moe->shape.experts,
        .topk = moe->shape.topk,
        .terms_per_token = moe->shape.terms_per_token,
        .lanes = moe->config.lanes,
        .capacity = moe->shape.capacity,
        .hidden = moe->config.hidden,
        .row_bytes = moe->row_bytes,
        .wire_bytes = moe->wire_bytes,
        .scales_at = moe->config.wire == WEFT_MOE_WIRE_FP8 ? weft_moe_scales_at(moe->config.hidden) : 0,
        .dtype = moe->config.dtype,
        .reduced = moe->shape.one_result_per_row,
        .owner = moe->owner,
        .local_index = moe->local_index,
        .experts_here = moe->experts_here,
        .experts_most = moe->experts_most,
        .refuse = refuse,
        .context = moe};
}

weft_status weft_moe_device_measure(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                                    size_t *private_bytes)
{
    weft_device_moe_shape shape;
    weft_moe moe;
    weft_status status = weft_moe_imagine(config, group->size, group->rank, &moe, &group->error);

    if (status)
        return status;
    shape = shape_of(&moe);
    weft_backend_of(group)->moe->measure(group, &shape, symmetric_bytes, private_bytes);
    weft_moe_forget(&moe);
    return WEFT_OK;
}

weft_status weft_moe_device_close(weft_moe *moe)
{
    weft_status status = moe->device ? ops_of(moe)->destroy(moe->device) : WEFT_OK,
                closed = weft_moe_close(moe);

    return status ? status : closed;
}

/* The backend's part of a layer that weft_moe_open has made. */
static weft_status open_there(weft_moe *moe)
{
    weft_device_moe_shape shape = shape_of(moe);

    if (moe->config.impl != WEFT_MOE_FUSED)
        return weft_error_set(&moe->group->error, WEFT_ERR_UNSUPPORTED,
                              "moe: on %s there is fused alone, not %s", weft_backend_of(moe->group)->where,
                              moe->rung->name);
    return ops_of(moe)->create(moe->group, &shape, &moe->device);
}

weft_status weft_moe_device_open(weft_group *group, const weft_moe_config *config, weft_moe **moe)
{
    weft_status status = weft_moe_open(group, config, true, moe);

    if (status != WEFT_OK)
        return status;
    status = open_there(*moe);
    if (status != WEFT_OK)
        weft_moe_close(*moe);
    return status;
}

/* ---- a round --------------------------------------------------------------------------------------------
 */

static weft_status check_memory(const weft_moe_lane *lane, const char *what, const void *pointer,
                                int64_t bytes)
{
    return pointer ? ops_of(lane->moe)->check(lane->moe->group, what, pointer, (size_t)bytes) : WEFT_OK;
}

static weft_status check(const weft_moe_lane *lane, const weft_moe_input *input, const char *fault)
{
    const weft_moe *moe = lane->moe;
    weft_status status = weft_moe_check_input(lane, input, fault);
    int64_t pairs;

    if (!status)
        status = weft_moe_check_tokens(&moe->shape, input->tokens, &moe->group->error);
    if (status)
        return status;
    pairs = input->tokens * moe->shape.topk;
    status = check_memory(lane, "moe: x", input->x, input->tokens * moe->row_bytes);
    if (!status)
        status = check_memory(lane, "moe: expert", input->expert, pairs * (int64_t)sizeof(*input->expert));
    if (!status)
        status = check_memory(lane, "moe: weight", input->weight, pairs * (int64_t)sizeof(*input->weight));
    return status;
}

/* `lists`: rows are moved for themselves. */
static weft_status send(weft_moe_lane *lane, const weft_moe_input *input, const char *fault, bool lists)
{
    weft_group *group = lane->moe->group;
    weft_status status, told;
    weft_error_text why;

    if (lane->state != WEFT_MOE_IDLE)
        return weft_moe_out_of_order(lane, "dispatch");
    status = check(lane, input, fault);
    if (status) {
        why = group->error;
        lane->state = WEFT_MOE_SENT;
        told = launch(lane, WEFT_DEVICE_MOE_DISPATCH_SEND, (weft_device_moe_args){.reject = true});
        end_round(lane);
        if (!told)
            group->error = why;
        return told ? told : status;
    }
    lane->state = WEFT_MOE_SENT;
    lane->out.tokens = input->tokens;
    return run(lane, WEFT_DEVICE_MOE_DISPATCH_SEND,
               (weft_device_moe_args){.x = input->x,
                                      .expert = input->expert,
                                      .weight = input->weight,
                                      .tokens = input->tokens,
                                      .lists = lists});
}

weft_status weft_moe_device_dispatch_send(weft_moe_lane *lane, const weft_moe_input *input, const char *fault)
{
    return send(lane, input, fault, false);
}

weft_status weft_moe_device_dispatch_arriving(weft_moe_lane *lane, const weft_moe_input *input, void *packed)
{
    weft_status status = send(lane, input, NULL, true);

    if (status)
        return status;
    lane->state = WEFT_MOE_RECEIVED;
    status = run(lane, WEFT_DEVICE_MOE_DISPATCH_RECV, (weft_device_moe_args){.lists = true});
    return status ? status
                  : run(lane, WEFT_DEVICE_MOE_MOVE, (weft_device_moe_args){.x = input->x, .out = packed});
}

weft_status weft_moe_device_dispatch_recv(weft_moe_lane *lane, weft_moe_view *view)
{
    const weft_moe *moe = lane->moe;
    bool ordered = ops_of(moe)->ordered(moe->group);
    weft_device_moe_view there;
    weft_moe_view seen;
    weft_status status;

    if (lane->state != WEFT_MOE_SENT)
        return weft_moe_out_of_order(lane, "receiving a dispatch");
    lane->state = WEFT_MOE_RECEIVED;
    status = run(lane, WEFT_DEVICE_MOE_DISPATCH_RECV, (weft_device_moe_args){0});
    if (!status && view)
        status = ops_of(moe)->view(moe->device, lane->index, !ordered, &there);
    if (status || !view)
        return status;
    seen = (weft_moe_view){.rows = there.rows,
                           .row = there.row,
                           .source = there.source,
                           .token = there.token,
                           .experts = moe->experts_here,
                           .expert = moe->local,
                           .offset = there.offset,
                           .entry_row = there.entry_row,
                           .entry_weight = there.entry_weight};
    weft_sized_write(view, &seen, sizeof(seen), WEFT_MOE_VIEW_LEAST);
    return WEFT_OK;
}

weft_status weft_moe_device_layout(weft_moe_lane *lane, int64_t alignment, int64_t *start, int64_t *rows)
{
    weft_status status = check_memory(lane, "weft_moe_layout: start", start,
                                      lane->moe->experts_here * (int64_t)sizeof(*start));

    if (!status)
        status = check_memory(lane, "weft_moe_layout: rows", rows, sizeof(*rows));
    return status ? status
                  : run(lane, WEFT_DEVICE_MOE_LAYOUT,
                        (weft_device_moe_args){.out = start, .rows = rows, .alignment = alignment});
}

weft_status weft_moe_device_gather(weft_moe_lane *lane, const int64_t *start, void *packed)
{
    weft_status status;

    if (lane->moe->experts_here > 0 && !packed)
        return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT, "weft_moe_gather: packed is NULL");
    status = check_memory(lane, "weft_moe_gather: packed", packed, 1);
    if (!status)
        status = check_memory(lane, "weft_moe_gather: start", start,
                              lane->moe->experts_here * (int64_t)sizeof(*start));
    return status ? status
                  : run(lane, WEFT_DEVICE_MOE_GATHER, (weft_device_moe_args){.start = start, .out = packed});
}

weft_status weft_moe_device_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    weft_status status;

    if (lane->state != WEFT_MOE_RECEIVED)
        return weft_moe_out_of_order(lane, "combine");
    if (!results && lane->moe->experts_here)
        return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT,
                              "moe: results is NULL, but there may be rows to return");
    status = check_memory(lane, "moe: results", results, 1);
    if (!status)
        status = check_memory(lane, "moe: start", start, lane->moe->experts_here * (int64_t)sizeof(*start));
    if (status)
        return status;
    lane->state = WEFT_MOE_RETURNED;
    return run(lane, WEFT_DEVICE_MOE_COMBINE_SEND, (weft_device_moe_args){.x = results, .start = start});
}

weft_status weft_moe_device_check_y(const weft_moe_lane *lane, const void *y)
{
    weft_status status = weft_moe_check_y(lane, y);

    return status ? status : check_memory(lane, "moe: y", y, lane->out.tokens * lane->moe->result_bytes);
}

weft_status weft_moe_device_combine_recv(weft_moe_lane *lane, void *y)
{
    weft_status status;

    if (lane->state != WEFT_MOE_RETURNED)
        return weft_moe_out_of_order(lane, "receiving a combine");
    status = weft_moe_device_check_y(lane, y);
    if (status)
        return status;
    lane->state = WEFT_MOE_IDLE;
    return run(lane, WEFT_DEVICE_MOE_COMBINE_RECV, (weft_device_moe_args){.out = y});
}

weft_status weft_moe_device_stats(weft_moe_lane *lane, weft_moe_stats *stats)
{
    const weft_moe *moe = lane->moe;
    weft_device_moe_view there;
    weft_status status = ops_of(moe)->view(moe->device, lane->index, true, &there);
    int64_t results = moe->shape.one_result_per_row ? there.rows : there.entries;

    if (status)
        return status;
    *stats = (weft_moe_stats){.tokens = there.tokens,
                              .rows_sent = there.rows_sent,
                              .results_sent = results,
                              .rows_received = there.rows,
                              .entries = there.entries,
                              .dispatch_bytes = there.rows_sent * moe->wire_bytes,
                              .combine_bytes = results * moe->result_bytes,
                              .dispatch_us = there.dispatch_us,
                              .combine_us = there.combine_us};
    return WEFT_OK;
}
