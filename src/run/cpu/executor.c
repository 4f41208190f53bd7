#include "run/cpu/executor.h"

#include "symm/symm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void (*weft_run_before_task)(int rank, uint32_t task);

static void executor_free(weft_executor *x)
{
    if (!x)
        return;
    if (!x->group || !x->group->world->foreign) /* a child of fork has no such threads */
        weft_pool_destroy(x->pool);
    free(x->base);
    free(x->private_memory);
    free(x->places);
    free((void *)x->bound);
    free((void *)x->binding);
    free(x->lanes);
    free(x);
}

static void rebase(weft_group *group)
{
    weft_executor *x = group->device;

    for (uint32_t signal = 0; signal < x->signal_count; signal++)
        x->base[signal] = weft_signal_load(&x->signals[signal]);
    x->small_count = 0;
}

weft_status weft_executor_of(weft_group *group, weft_executor **executor)
{
    weft_executor *x = group->device;
    weft_session *session;
    weft_status status;
    size_t world = (size_t)group->size;

    if (x) {
        *executor = x;
        return WEFT_OK;
    }
    status = weft_session_of(group, &session);
    if (status != WEFT_OK)
        return status;
    x = calloc(1, sizeof(*x));
    if (x) {
        x->bound = calloc(world, sizeof(*x->bound));
        x->binding = calloc(world, sizeof(*x->binding));
    }
    if (!x || !x->bound || !x->binding) {
        executor_free(x);
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its executor",
                                 group->rank);
    }
    x->group = group;
    x->rank = group->rank;
    x->world = group->size;
    x->session = session;
    x->delta = session->delta;
    x->control = session->control;
    session->rebase = rebase;
    group->device = x;
    *executor = x;
    return WEFT_OK;
}

void weft_executor_detach(weft_group *group)
{
    executor_free(group->device);
    group->device = NULL;
}

static weft_status grow_private(weft_executor *x, size_t bytes)
{
    size_t unit = 2u << 20;

    if (bytes <= x->private_bytes)
        return WEFT_OK;
    free(x->private_memory);
    x->private_bytes = 0;
    bytes = (bytes + unit - 1) / unit * unit;
    x->private_memory = aligned_alloc(unit, bytes);
    if (!x->private_memory)
        return WEFT_ERR_MEMORY;
    madvise(x->private_memory, bytes, MADV_HUGEPAGE);
    x->private_bytes = bytes;
    return WEFT_OK;
}

/* Only what belongs to this rank; a failure is told to the peers by the poison. */
static weft_status grow_local(weft_executor *x, size_t private_bytes, uint32_t lanes, size_t places)
{
    if (places > x->place_count) {
        free(x->places);
        x->place_count = 0;
        x->places = calloc(places, sizeof(*x->places));
        if (!x->places)
            return WEFT_ERR_MEMORY;
        x->place_count = places;
    }
    if (lanes > x->lane_capacity) {
        free(x->lanes);
        x->lane_capacity = 0;
        x->lanes = aligned_alloc(64, lanes * sizeof(*x->lanes));
        if (!x->lanes)
            return WEFT_ERR_MEMORY;
        x->lane_capacity = lanes;
    }
    return grow_private(x, private_bytes);
}

/* Replaces an arena of `*held` bytes by a larger one. Where there is no room for it, the arena that was there
 * is made again: plans that ran before still run. */
static weft_status grow_symmetric(weft_executor *x, void **memory, size_t *held, size_t bytes)
{
    size_t before = *held;
    weft_error_text why;
    weft_status status = WEFT_OK;

    if (*memory)
        status = weft_symm_free(x->group, *memory);
    *memory = NULL;
    *held = 0;
    if (status == WEFT_OK)
        status = weft_symm_reserve(x->group, bytes, WEFT_RUN_ALIGNMENT, memory);
    if (status == WEFT_OK) {
        *held = bytes;
        return WEFT_OK;
    }
    why = x->group->error;
    if (!before || weft_group_check(x->group) != WEFT_OK)
        return status;
    if (weft_symm_reserve(x->group, before, WEFT_RUN_ALIGNMENT, memory) != WEFT_OK)
        return weft_group_poison(x->group, WEFT_ERR_MEMORY, "rank %d lost the memory of its plans: %s",
                                 x->rank, why.text);
    *held = before;
    x->group->error = why;
    return status;
}

static weft_status grow_scratch(weft_executor *x, size_t bytes)
{
    void *memory = x->scratch;
    weft_status status = grow_symmetric(x, &memory, &x->scratch_bytes, bytes);

    x->scratch = memory;
    return status;
}

static weft_status grow_signals(weft_executor *x, uint32_t signals)
{
    size_t bytes = x->signal_count * sizeof(weft_signal);
    void *memory = x->signals;
    uint64_t *base;
    weft_status status = grow_symmetric(x, &memory, &bytes, (size_t)signals * sizeof(weft_signal));

    x->signals = memory;
    x->signal_count = (uint32_t)(bytes / sizeof(weft_signal));
    base = calloc((size_t)x->signal_count + 1, sizeof(*base)); /* new signals begin at zero */
    free(x->base);
    x->base = base;
    if (!base)
        return weft_group_poison(x->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", x->rank);
    return status;
}

weft_status weft_executor_grow(weft_executor *x, size_t scratch_bytes, uint32_t signals, size_t private_bytes,
                               uint32_t lanes, size_t places)
{
    weft_status status = WEFT_OK;

    if (scratch_bytes > x->scratch_bytes)
        status = grow_scratch(x, scratch_bytes);
    if (status == WEFT_OK && signals > x->signal_count)
        status = grow_signals(x, signals);
    if (status != WEFT_OK)
        return status;
    status = grow_local(x, private_bytes, lanes, places);
    if (status != WEFT_OK)
        return weft_group_poison(x->group, status, "rank %d has no memory for a plan: %zu bytes of scratch",
                                 x->rank, private_bytes);
    return WEFT_OK;
}

void weft_executor_trace(weft_executor *x, weft_trace *traces, int count)
{
    x->traces = traces;
    x->trace_count = traces ? count : 0;
}
