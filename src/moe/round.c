/* Leads a round through its phases in order. The phases themselves are the rungs'. */
#include "core/clock.h"
#include "moe/moe.h"

weft_status weft_moe_out_of_order(const weft_moe_lane *lane, const char *call)
{
    static const char *const after[] = {
        [WEFT_MOE_IDLE] = "a dispatch must be sent first",
        [WEFT_MOE_SENT] = "the dispatch that was sent must be received first",
        [WEFT_MOE_RECEIVED] = "the dispatch that was received must be combined first",
        [WEFT_MOE_RETURNED] = "the combine that was sent must be received first",
    };

    return weft_error_set(&lane->moe->group->error, WEFT_ERR_STATE, "moe: %s is out of order on lane %d: %s",
                          call, lane->index, after[lane->state]);
}

weft_status weft_moe_refuse_repeat(int64_t had, int64_t tokens, weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "moe: expert is NULL, which repeats a routing of %lld tokens, but there are %lld",
                          (long long)had, (long long)tokens);
}

weft_status weft_moe_check_input(const weft_moe_lane *lane, const weft_moe_input *input, const char *fault)
{
    weft_error_text *error = &lane->moe->group->error;

    if (!input || fault)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %s", input ? fault : "input is NULL");
    if (input->tokens > 0 && !input->x)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %lld tokens, but x is NULL",
                              (long long)input->tokens);
    return WEFT_OK;
}

/* The routing of this input, or the error that rejects it. */
static weft_status prepare(weft_moe_lane *lane, const weft_moe_input *input, const char *fault)
{
    weft_moe *moe = lane->moe;
    weft_error_text *error = &moe->group->error;
    weft_status status = weft_moe_check_input(lane, input, fault);

    if (status)
        return status;
    if (!input->expert && input->tokens != 0) {
        if (!lane->routing || lane->out.tokens != input->tokens)
            return weft_moe_refuse_repeat(lane->routing ? lane->out.tokens : 0, input->tokens, error);
        if (input->weight) {
            weft_moe_reweigh(&moe->shape, input->weight, &lane->out);
            lane->generation++;
        }
    } else {
        status = weft_moe_route(&moe->shape, input->tokens, input->expert, input->weight, &lane->out, error);
        if (status)
            return status;
        lane->routing++;
        lane->generation++;
    }
    for (int64_t i = 0; moe->rung->input_copy && i < input->tokens * moe->shape.topk; i++) {
        if (input->expert)
            lane->index_copy[i] = input->expert[i];
        if (input->expert || input->weight)
            lane->weight_copy[i] = input->weight ? input->weight[i] : 1.0f;
    }
    return WEFT_OK;
}

weft_status weft_moe_lane_dispatch_send(weft_moe_lane *lane, const weft_moe_input *input, const char *fault)
{
    weft_status status;

    if (lane->state != WEFT_MOE_IDLE)
        return weft_moe_out_of_order(lane, "dispatch");
    if (lane->undrained) {
        status = weft_moe_await_counts(lane);
        if (status && status != WEFT_ERR_PEER)
            return status;
        lane->undrained = false;
    }
    if (lane->spoiled) {
        status = weft_moe_far_settle(lane);
        if (status)
            return status;
        lane->spoiled = false;
    }
    lane->begin_ns = weft_clock_ns();
    lane->epoch++;
    status = prepare(lane, input, fault);
    if (status) {
        weft_moe_post_counts(lane, true);
        lane->undrained = true;
        lane->spoiled = lane->moe->nodes.count > 0;
        return status;
    }
    lane->state = WEFT_MOE_SENT;
    return lane->moe->rung->dispatch_send(lane, input->x);
}

/* The counts are in: the epoch takes place, or, if a rank rejected its input, is over. */
static weft_status settle_counts(weft_moe_lane *lane)
{
    weft_status status = weft_moe_await_counts(lane);

    if (status) {
        lane->state = WEFT_MOE_IDLE;
        lane->spoiled = lane->moe->nodes.count > 0;
    }
    return status;
}

void weft_moe_note_received(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;
    int64_t results = moe->shape.one_result_per_row ? lane->in.rows : lane->in.entries;

    lane->stats = (weft_moe_stats){.tokens = lane->out.tokens,
                                   .rows_sent = lane->out.rows,
                                   .results_sent = results,
                                   .rows_received = lane->in.rows,
                                   .entries = lane->in.entries,
                                   .dispatch_bytes = lane->out.rows * moe->wire_bytes,
                                   .combine_bytes = results * moe->result_bytes,
                                   .dispatch_us = (double)(weft_clock_ns() - lane->begin_ns) * 1e-3};
    lane->begin_ns = weft_clock_ns();
}

weft_status weft_moe_lane_dispatch_recv(weft_moe_lane *lane)
{
    weft_status status;

    if (lane->state != WEFT_MOE_SENT)
        return weft_moe_out_of_order(lane, "receiving a dispatch");
    status = settle_counts(lane);
    if (!status)
        status = lane->moe->rung->dispatch_recv(lane);
    if (status)
        return status;
    lane->state = WEFT_MOE_RECEIVED;
    weft_moe_note_received(lane);
    return WEFT_OK;
}

weft_status weft_moe_lane_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start)
{
    weft_status status;

    if (lane->state != WEFT_MOE_RECEIVED)
        return weft_moe_out_of_order(lane, "combine");
    if (lane->in.entries && !results)
        return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT,
                              "moe: results is NULL, but there are %lld rows to return",
                              (long long)lane->in.entries);
    lane->begin_ns = weft_clock_ns();
    status = lane->moe->rung->combine_send(lane, results, start);
    if (!status)
        lane->state = WEFT_MOE_RETURNED;
    return status;
}

weft_status weft_moe_check_y(const weft_moe_lane *lane, const void *y)
{
    if (lane->out.tokens && !y)
        return weft_error_set(&lane->moe->group->error, WEFT_ERR_ARGUMENT,
                              "moe: y is NULL, but there are %lld tokens", (long long)lane->out.tokens);
    return WEFT_OK;
}

weft_status weft_moe_lane_combine_recv(weft_moe_lane *lane, void *y)
{
    weft_status status;

    if (lane->state != WEFT_MOE_RETURNED)
        return weft_moe_out_of_order(lane, "receiving a combine");
    status = weft_moe_check_y(lane, y);
    if (!status)
        status = lane->moe->rung->combine_recv(lane, y);
    if (status)
        return status;
    lane->state = WEFT_MOE_IDLE;
    lane->stats.combine_us = (double)(weft_clock_ns() - lane->begin_ns) * 1e-3;
    return WEFT_OK;
}

/* The experts of a rung that has no round of its own: one call per expert, results side by side. */
static weft_status experts_then_combine(weft_moe_lane *lane, const weft_moe_expert *expert, void *y)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    weft_status status = weft_moe_scratch(lane, (size_t)(in->entries * moe->result_bytes) + 1);

    if (status)
        return status;
    for (int64_t i = 0; i < in->entries; i++) {
        lane->block_in[i] = weft_moe_row_of(lane, in->expert_row[i]);
        lane->block_out[i] = lane->scratch + i * moe->result_bytes;
    }
    for (int e = 0; e < moe->experts_here; e++) {
        if (in->offset[e + 1] > in->offset[e])
            expert->block(expert->context, moe->local[e], in->offset[e + 1] - in->offset[e],
                          lane->block_in + in->offset[e], lane->block_out + in->offset[e]);
        weft_group_progress(moe->group, true);
    }
    status = lane->moe->rung->combine_send(lane, lane->scratch, NULL);
    return status ? status : lane->moe->rung->combine_recv(lane, y);
}

weft_status weft_moe_lane_forward(weft_moe_lane *lane, const weft_moe_input *input,
                                  const weft_moe_expert *expert, void *y, const char *fault)
{
    const weft_moe_rung *rung = lane->moe->rung;
    weft_status status;

    if (!fault)
        fault = !expert->block                     ? "the expert has no block callback"
                : input && input->tokens > 0 && !y ? "y is NULL, but there are tokens"
                                                   : NULL;
    status = weft_moe_lane_dispatch_send(lane, input, fault);
    if (!status)
        status = settle_counts(lane);
    if (status)
        return status;
    if (rung->forward) {
        status = rung->forward(lane, expert, y);
    } else {
        status = rung->dispatch_recv(lane);
        if (!status)
            weft_moe_note_received(lane);
        if (!status)
            status = experts_then_combine(lane, expert, y);
    }
    if (status)
        return status;
    lane->state = WEFT_MOE_IDLE;
    lane->stats.combine_us = (double)(weft_clock_ns() - lane->begin_ns) * 1e-3;
    return WEFT_OK;
}
