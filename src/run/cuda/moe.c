/* Mixture-of-experts layers of groups on GPUs. See moe.h; the protocol stands in moe_device.h. */
#include "run/cuda/moe.h"

#include "core/clock.h"
#include "core/round.h"
#include "run/cuda/group.h"
#include "run/cuda/grouped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weft_device_moe {
    struct weft_device_moe *next; /* of the group */
    weft_group *group;
    weft_device_moe_shape shape;
    bool early;    /* its kernels come in early: nobody else is on the GPU */
    bool issued;   /* since its outcome was last looked at */
    bool captured; /* a graph may run it at any time */
    void *symmetric;
    CUdeviceptr memory; /* private: tables, then lanes */
    CUevent last;       /* behind the last kernel */
    weft_cuda_moe lanes[];
};

/* ---- making and freeing ---------------------------------------------------------------------------------
 */

static size_t table_bytes(const weft_device_moe_shape *shape)
{
    return weft_round_up_bytes((size_t)shape->experts * sizeof(int32_t), 256);
}

static weft_status check_limits(const weft_group *group, const weft_device_moe_shape *shape,
                                weft_error_text *error)
{
    if (group->size > WEFT_CUDA_MOE_RANKS || shape->topk > WEFT_CUDA_MOE_TOPK)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "mixture of experts on GPUs is for at most %d ranks and topk %d, not %d and %d",
                              WEFT_CUDA_MOE_RANKS, WEFT_CUDA_MOE_TOPK, group->size, shape->topk);
    return WEFT_OK;
}

/* What needs no peer. */
static weft_status make_private(weft_device_moe *moe, size_t bytes)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &moe->group->error;
    const weft_device_moe_shape *s = &moe->shape;
    weft_status status = check_limits(moe->group, s, error);

    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuEventCreate(&moe->last, CU_EVENT_DISABLE_TIMING));
    WEFT_CUDA_TRY(cuMemAllocAsync(&moe->memory, bytes, g->device->uploads));
    WEFT_CUDA_TRY(
        cuMemcpyHtoDAsync(moe->memory, s->owner, (size_t)s->experts * sizeof(int32_t), g->device->uploads));
    WEFT_CUDA_TRY(cuMemcpyHtoDAsync(moe->memory + table_bytes(s), s->local_index,
                                    (size_t)s->experts * sizeof(int32_t), g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

static weft_status lay_out(weft_device_moe *moe, weft_cuda_moe_room room, size_t symmetric, size_t own)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    char *base = (char *)(uintptr_t)moe->memory, *lanes = base + 2 * table_bytes(&moe->shape);
    weft_status status = WEFT_OK;

    for (int i = 0; i < moe->shape.lanes && status == WEFT_OK; i++) {
        char *memory = lanes + (size_t)i * own;

        moe->lanes[i] = weft_cuda_moe_lay_out(&moe->shape, moe->group->size, moe->group->rank, room,
                                              (char *)moe->symmetric + (size_t)i * symmetric,
                                              (int64_t)g->heap.stride, memory, (const int32_t *)base,
                                              (const int32_t *)(base + table_bytes(&moe->shape)));
        moe->lanes[i].stop = g->stop;
        status = weft_cuda_moe_clear(g->device, &moe->lanes[i], memory, own, g->device->uploads,
                                     &moe->group->error);
    }
    return status;
}

/* Ranks wait for as many posts as their peers have CTAs. */
static weft_status agree_on_grid(weft_group *group, weft_cuda_moe_room room)
{
    char text[64];

    snprintf(text, sizeof(text), "%d CTAs of the GPU, %d that move rows", room.ctas, room.movers);
    return weft_group_agree(group, "the kernels of the mixture-of-experts layer",
                            (uint64_t)room.ctas << 32 | (uint64_t)room.movers, text);
}

static void discard(weft_device_moe *moe)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    const weft_cuda_driver *cu = g->device->cu;

    if (moe->memory)
        cu->cuMemFreeAsync(moe->memory, g->device->uploads);
    if (moe->last)
        cu->cuEventDestroy(moe->last);
    free(moe);
}

static bool is_alone(const weft_cuda_group *g)
{
    return g->crews >= g->device->crews;
}

static weft_cuda_moe_room room_of(const weft_cuda_group *g, const weft_device_moe_shape *shape, int world)
{
    int sms = weft_cuda_ctas(g->device, g->crews);
    weft_cuda_moe_room room = weft_cuda_moe_room_of(sms, is_alone(g));

    if (g->device->hopper && g->whole && weft_cuda_moe_moves(shape, world)) /* the same on all ranks */
        room.movers = weft_cuda_moe_movers(sms);
    return room;
}

void weft_cuda_moe_bytes(weft_group *group, const weft_device_moe_shape *shape, size_t *symmetric,
                         size_t *private_bytes)
{
    size_t shared, own;

    weft_cuda_moe_measure(shape, group->size, room_of(weft_cuda_of(group), shape, group->size), &shared,
                          &own);
    *symmetric = (size_t)shape->lanes * shared;
    *private_bytes = 2 * table_bytes(shape) + (size_t)shape->lanes * own;
}

weft_status weft_cuda_moe_create(weft_group *group, const weft_device_moe_shape *shape, weft_device_moe **out)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_moe_room room = room_of(g, shape, group->size);
    weft_device_moe *moe = calloc(1, sizeof(*moe) + (size_t)shape->lanes * sizeof(moe->lanes[0]));
    size_t symmetric, own;
    weft_status status;

    if (!moe)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a layer", group->rank);
    moe->group = group;
    moe->shape = *shape;
    moe->early = g->device->hopper && is_alone(g);
    weft_cuda_moe_measure(shape, group->size, room, &symmetric, &own);
    weft_cuda_push(g);
    status = make_private(moe, 2 * table_bytes(shape) + (size_t)shape->lanes * own);
    status = weft_cuda_agree(group, WEFT_SYNC_AGREE, status);
    if (status == WEFT_OK)
        status = agree_on_grid(group, room);
    if (status == WEFT_OK)
        status = weft_cuda_alloc(group, (size_t)shape->lanes * symmetric, 256, &moe->symmetric);
    if (status == WEFT_OK) {
        status = weft_cuda_agree(group, WEFT_SYNC_AGREE, lay_out(moe, room, symmetric, own));
        if (status != WEFT_OK)
            weft_cuda_give(group, moe->symmetric);
    }
    if (status != WEFT_OK)
        discard(moe);
    weft_cuda_pop(g);
    if (status != WEFT_OK)
        return status;
    moe->next = g->layers;
    g->layers = moe;
    *out = moe;
    return WEFT_OK;
}

weft_status weft_cuda_moe_destroy(weft_device_moe *moe)
{
    weft_group *group = moe->group;
    weft_cuda_group *g = weft_cuda_of(group);
    weft_device_moe **at = &g->layers;
    int64_t begun = weft_clock_ns();
    weft_status status;

    while (*at != moe)
        at = &(*at)->next;
    *at = moe->next;
    if (group->world->foreign) { /* a driver does not work in a child of fork */
        free(moe);
        return WEFT_OK;
    }
    weft_cuda_push(g);
    while (g->device->cu->cuEventQuery(moe->last) == CUDA_ERROR_NOT_READY)
        if (weft_clock_ns() - begun > group->progress_ns) {
            moe->memory = 0; /* better lost than freed under a kernel */
            break;
        }
    status = weft_cuda_release(group, moe->symmetric);
    discard(moe);
    weft_cuda_pop(g);
    return status;
}

/* ---- rounds ---------------------------------------------------------------------------------------------
 */

static weft_status launch(weft_device_moe *moe, int lane, weft_device_moe_kernel kernel,
                          const weft_device_moe_args *call)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &moe->group->error;
    CUstream stream = weft_cuda_stream(g, g->issue_stream);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    weft_cuda_moe *l = &moe->lanes[lane];
    weft_status status;

    l->deadline_ns = (uint64_t)moe->group->enter_ns;
    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &capture));
    status = weft_cuda_moe_launch(g->device, l, kernel, call, moe->early, stream, error);
    if (status != WEFT_OK)
        return status;
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        moe->captured = true;
        return WEFT_OK;
    }
    moe->issued = true;
    WEFT_CUDA_TRY(cuEventRecord(moe->last, stream));
    return WEFT_OK;
}

weft_status weft_cuda_moe_run(weft_device_moe *moe, int lane, weft_device_moe_kernel kernel,
                              const weft_device_moe_args *call)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    weft_status status;

    weft_cuda_push(g);
    status = launch(moe, lane, kernel, call);
    weft_cuda_pop(g);
    return status;
}

bool weft_cuda_moe_takes_arriving(const weft_device_moe *moe, const void *x)
{
    const weft_cuda_group *g = weft_cuda_of(moe->group);

    return moe->lanes[0].movers > 0 && g->issue_ordered && (uintptr_t)x % 16 == 0;
}

weft_status weft_cuda_moe_multiply(weft_device_moe *moe, int lane, const weft_grouped_args *args)
{
    weft_cuda_arriving_rows arriving = weft_cuda_moe_arriving(&moe->lanes[lane]);

    return weft_cuda_grouped_run_arriving(moe->group, args, &arriving);
}

/* ---- how they went --------------------------------------------------------------------------------------
 */

static weft_status read_back(const weft_device_moe *moe, void *to, const void *from, size_t bytes)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &moe->group->error;

    WEFT_CUDA_TRY(cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

static weft_status forget(const weft_device_moe *moe, void *word)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &moe->group->error;

    WEFT_CUDA_TRY(cuMemsetD8Async((CUdeviceptr)(uintptr_t)word, 0xff, sizeof(uint64_t), g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

/* A wait that expired, here or at a peer: the group is lost. */
static weft_status find_lost(const weft_device_moe *moe, int lane, const weft_cuda_control *control)
{
    const weft_cuda_record *r = &control->record;
    weft_error_text why = {0};

    if (r->set)
        weft_error_set(
            &why, WEFT_ERR_TIMEOUT,
            "rank %d waited %.3g s for rank %u to %s round %llu of lane %d of a mixture of experts, "
            "and it did not come",
            moe->group->rank, (double)moe->lanes[lane].deadline_ns * 1e-9, r->signal,
            r->plan_task == WEFT_CUDA_MOE_DISPATCH_RECV ? "enter"
            : r->plan_task == WEFT_CUDA_MOE_MOVE        ? "send the rows of"
                                                        : "combine",
            (unsigned long long)r->run, lane);
    else if (control->abort)
        weft_error_set(&why, WEFT_ERR_PEER, "rank %d gave up its round because a peer did", moe->group->rank);
    else
        return WEFT_OK;
    return weft_cuda_lost(moe->group, r->set ? WEFT_ERR_TIMEOUT : WEFT_ERR_PEER, why.text);
}

/* The earliest of what is told; this rank's own input before its peers'. */
static weft_status find_fault(const weft_device_moe *moe, int lane)
{
    const weft_cuda_moe *l = &moe->lanes[lane];
    weft_cuda_moe_state state;
    weft_device_moe_fault fault = {.lane = lane};
    weft_error_text *error = &moe->group->error;
    weft_status status = read_back(moe, &state, l->state, sizeof(state));

    if (status != WEFT_OK)
        return status;
    if (state.fault != UINT64_MAX && state.fault >> 24 <= state.peer_fault >> 24) {
        weft_cuda_moe_fault found;

        fault.token = (int64_t)(state.fault & 0xffffff);
        status = read_back(moe, &found, &l->fault[fault.token], sizeof(found));
        fault.kind = (weft_device_moe_wrong)found.kind;
        fault.expert = found.expert;
        fault.first = found.first;
        fault.second = found.second;
        fault.round = state.fault >> 24;
    } else if (state.peer_fault != UINT64_MAX) {
        fault.kind = WEFT_DEVICE_MOE_PEER_REJECTED;
        fault.rank = (int)(state.peer_fault & 0xffffff);
        fault.round = state.peer_fault >> 24;
    } else if (state.overflow != UINT64_MAX) {
        fault.kind = WEFT_DEVICE_MOE_OVERFLOW;
        fault.expert = (int)(state.overflow >> 32);
        fault.count = (int64_t)(state.overflow & UINT32_MAX);
        fault.padded = state.overflow_padded;
    } else {
        return WEFT_OK;
    }
    fault.last = fault.round == state.sent;
    if (status == WEFT_OK)
        status = forget(moe, &l->state->fault);
    if (status == WEFT_OK)
        status = forget(moe, &l->state->peer_fault);
    if (status == WEFT_OK)
        status = forget(moe, &l->state->overflow);
    return status == WEFT_OK ? moe->shape.refuse(moe->shape.context, &fault, error) : status;
}

static weft_status look(weft_device_moe *moe)
{
    weft_status status = WEFT_OK;

    if (!moe->issued && !moe->captured)
        return WEFT_OK;
    moe->issued = false;
    for (int i = 0; i < moe->shape.lanes && status == WEFT_OK; i++) {
        weft_cuda_control control;

        status = read_back(moe, &control, moe->lanes[i].control, sizeof(control));
        if (status == WEFT_OK)
            status = find_lost(moe, i, &control);
    }
    for (int i = 0; i < moe->shape.lanes && status == WEFT_OK; i++)
        status = find_fault(moe, i);
    return status;
}

weft_status weft_cuda_moe_wait(weft_device_moe *moe)
{
    weft_cuda_group *g = weft_cuda_of(moe->group);
    weft_status status;

    weft_cuda_push(g);
    status = weft_cuda_pass(moe->group, weft_cuda_stream(g, g->issue_stream));
    if (status == WEFT_OK)
        status = look(moe);
    weft_cuda_pop(g);
    return status;
}

weft_status weft_cuda_moe_settle(weft_group *group)
{
    weft_status status = WEFT_OK;

    for (weft_device_moe *moe = weft_cuda_of(group)->layers; moe && status == WEFT_OK; moe = moe->next)
        status = look(moe);
    return status;
}

/* From the beginning of a phase to the end of the one after it. */
static double phase_us(const weft_cuda_moe_state *state, int phase)
{
    uint64_t began = state->began_ns[phase], ended = state->ended_ns[phase + 1];

    return ended > began ? (double)(ended - began) * 1e-3 : 0;
}

weft_status weft_cuda_moe_view(weft_device_moe *moe, int lane, bool counts, weft_device_moe_view *view)
{
    const weft_cuda_moe *l = &moe->lanes[lane];
    weft_cuda_moe_state state = {.rows = -1, .entries = -1, .rows_sent = -1, .tokens = -1};
    weft_status status = WEFT_OK;

    if (counts) {
        weft_cuda_push(weft_cuda_of(moe->group));
        status = read_back(moe, &state, l->state, sizeof(state));
        weft_cuda_pop(weft_cuda_of(moe->group));
    }
    *view = (weft_device_moe_view){.row = (const void *const *)l->view_row,
                                   .source = l->source,
                                   .token = l->token,
                                   .offset = l->offset,
                                   .entry_row = l->entry_row,
                                   .entry_weight = l->entry_weight,
                                   .tokens = state.tokens,
                                   .rows = state.rows,
                                   .entries = state.entries,
                                   .rows_sent = state.rows_sent,
                                   .dispatch_us = phase_us(&state, WEFT_CUDA_MOE_DISPATCH_SEND),
                                   .combine_us = phase_us(&state, WEFT_CUDA_MOE_COMBINE_SEND)};
    return status;
}

/* ---- memory of experts ----------------------------------------------------------------------------------
 */

weft_status weft_cuda_moe_memory(weft_group *group, size_t bytes, void **memory)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    CUdeviceptr at = 0;
    weft_status status;

    weft_cuda_push(g);
    status = weft_cuda_check(cu, cu->cuMemAllocAsync(&at, bytes ? bytes : 1, g->device->uploads),
                             "cuMemAllocAsync", &group->error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(g->device->uploads), "cuStreamSynchronize",
                                 &group->error);
    weft_cuda_pop(g);
    if (status == WEFT_OK)
        *memory = (void *)(uintptr_t)at;
    return status;
}

void weft_cuda_moe_discard(weft_group *group, void *memory)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_error_text why;

    if (!memory || group->world->foreign) /* a driver does not work in a child of fork */
        return;
    weft_cuda_push(g);
    /* better lost than freed under a kernel */
    if (weft_cuda_drain(g, weft_cuda_stream(g, g->issue_stream), group->progress_ns, &why) == WEFT_OK)
        g->device->cu->cuMemFreeAsync((CUdeviceptr)(uintptr_t)memory, g->device->uploads);
    weft_cuda_pop(g);
}
