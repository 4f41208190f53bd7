#include "run/cpu/executor.h"

#include "choose/choose.h"
#include "core/round.h"
#include "core/topo.h"
#include "symm/symm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { AMPLE_BYTES = 64 << 20 };

void (*weft_run_before_task)(int rank, uint32_t task);

bool weft_lanes_sending(const weft_executor *x)
{
    for (uint32_t lane = 0; x->lanes && x->departed && lane < x->lane_capacity; lane++)
        if (!weft_signal_reached(&x->departed[lane],
                                 atomic_load_explicit(&x->lanes[lane].sent, memory_order_relaxed)))
            return true;
    return false;
}

static void executor_free(weft_executor *x)
{
    if (!x)
        return;
    if (!x->group || !x->group->world->foreign) /* a child of fork has no such threads */
        weft_pool_destroy(x->pool);
    if (x->basis)
        weft_basis_drop(x->basis);
    free(x->basis);
    free(x->base);
    free(x->private_memory);
    free(x->places);
    free((void *)x->bound);
    free((void *)x->binding);
    free((void *)x->early_bytes);
    free(x->summands);
    if (!weft_lanes_sending(x))
        free(x->departed);
    free(x->lanes);
    free(x);
}

static void rebase(weft_group *group)
{
    weft_executor *x = group->device;

    for (uint32_t signal = 0; signal < x->signal_count && signal < x->base_count; signal++)
        x->base[signal] = weft_signal_load(&x->signals[signal]);
    x->small_count = 0;
}

weft_status weft_executor_make(weft_group *group, weft_executor **executor)
{
    size_t world = (size_t)group->size;
    weft_session *session;
    weft_executor *x;
    weft_status status = weft_session_of(group, &session);

    if (status != WEFT_OK)
        return status;
    x = calloc(1, sizeof(*x));
    if (x) {
        x->bound = calloc(world, sizeof(*x->bound));
        x->binding = calloc(world, sizeof(*x->binding));
        x->early_bytes = calloc(world, sizeof(*x->early_bytes));
        x->summands = calloc(world, sizeof(*x->summands));
    }
    if (!x || !x->bound || !x->binding || !x->early_bytes || !x->summands) {
        executor_free(x);
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its executor",
                                 group->rank);
    }
    x->group = group;
    /* The window of the group and, since windows are used again, the how manieth time by its first rank. */
    x->early.call.channel = (uint64_t)group->window | (uint64_t)group->seats[0].world_rank << 16 |
                            (uint64_t)group->seats[0].left << 32;
    x->rank = group->rank;
    x->world = group->size;
    x->session = session;
    x->delta = session->delta;
    session->rebase = rebase;
    group->device = x;
    *executor = x;
    return WEFT_OK;
}

void weft_executor_detach(weft_group *group)
{
    if (group->device && group->spread && !group->world->foreign)
        weft_net_drop_early(group->world->net, ((weft_executor *)group->device)->early.call.channel);
    executor_free(group->device);
    group->device = NULL;
}

/* Larger memory in the place of what is there, which stays where none can be had. */
static bool replace(void **memory, size_t alignment, size_t bytes)
{
    void *more = aligned_alloc(alignment, weft_round_up_bytes(bytes, alignment));

    if (!more)
        return false;
    free(*memory);
    *memory = more;
    return true;
}

static bool grow_private(weft_executor *x, size_t bytes)
{
    size_t unit = 2u << 20;
    void *memory = x->private_memory;

    if (bytes <= x->private_bytes)
        return true;
    bytes = weft_round_up_bytes(bytes, unit); /* a page of which a part is wished for large stays small */
    /* Where the system promises more than it has, it would end the process when the memory is used. */
    if (bytes > (size_t)weft_topo_memory_bytes() || !replace(&memory, unit, bytes))
        return false;
    madvise(memory, bytes, MADV_HUGEPAGE);
    x->private_memory = memory;
    x->private_bytes = bytes;
    return true;
}

static bool grow_base(weft_executor *x, uint32_t signals)
{
    uint64_t *more;

    if (signals <= x->base_count)
        return true;
    more = realloc(x->base, signals * sizeof(*more));
    if (!more)
        return false;
    memset(more + x->base_count, 0, (signals - x->base_count) * sizeof(*more));
    x->base = more;
    x->base_count = signals;
    return true;
}

static bool grow_lists(weft_executor *x, uint32_t lanes, size_t places)
{
    void *memory = x->places;

    if (places > x->place_count) {
        if (!replace(&memory, 64, places * sizeof(*x->places)))
            return false;
        x->places = memset(memory, 0, places * sizeof(*x->places));
        x->place_count = places;
    }
    memory = x->lanes;
    if (lanes > x->lane_capacity) {
        void *departed = weft_lanes_sending(x) ? NULL : x->departed; /* what messages will post to stays */

        if (!replace(&departed, WEFT_LINE_BYTES, lanes * sizeof(*x->departed)))
            return false;
        x->departed = memset(departed, 0, lanes * sizeof(*x->departed));
        if (!replace(&memory, 64, lanes * sizeof(*x->lanes))) {
            x->lane_capacity = 0;
            return false;
        }
        x->lanes = memset(memory, 0, lanes * sizeof(*x->lanes));
        x->lane_capacity = lanes;
    }
    return true;
}

weft_status weft_executor_grow_local(weft_executor *x, uint32_t signals, size_t private_bytes, uint32_t lanes,
                                     size_t places)
{
    if (grow_base(x, signals) && grow_lists(x, lanes, places) && grow_private(x, private_bytes))
        return WEFT_OK;
    return weft_error_set(&x->group->error, WEFT_ERR_MEMORY,
                          "rank %d has no memory for a plan: it needs %zu bytes of scratch", x->rank,
                          private_bytes);
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
        status = weft_symm_alloc(x->group, bytes, WEFT_RUN_ALIGNMENT, memory);
    if (status == WEFT_OK) {
        *held = bytes;
        return WEFT_OK;
    }
    why = x->group->error;
    if (!before || weft_group_check(x->group) != WEFT_OK)
        return status;
    if (weft_symm_alloc(x->group, before, WEFT_RUN_ALIGNMENT, memory) != WEFT_OK)
        return weft_group_poison(x->group, WEFT_ERR_MEMORY, "rank %d lost the memory of its plans: %s",
                                 x->rank, why.text);
    *held = before;
    x->group->error = why;
    return status;
}

/* More than is wanted where there is room, so that sizes which rise step by step seldom make the ranks meet.
 */
static weft_status grow_amply(weft_executor *x, void **memory, size_t *held, size_t bytes)
{
    size_t twice = *held < AMPLE_BYTES ? 2 * *held : *held + AMPLE_BYTES;
    weft_status status;

    if (twice <= bytes)
        return grow_symmetric(x, memory, held, bytes);
    status = grow_symmetric(x, memory, held, twice);
    return status == WEFT_ERR_MEMORY && weft_group_check(x->group) == WEFT_OK
               ? grow_symmetric(x, memory, held, bytes)
               : status;
}

static weft_status grow_scratch(weft_executor *x, size_t bytes)
{
    void *memory = x->scratch;
    weft_status status = grow_amply(x, &memory, &x->scratch_bytes, bytes);

    x->scratch = memory;
    return status;
}

static weft_status grow_signals(weft_executor *x, uint32_t signals)
{
    size_t bytes = x->signal_count * sizeof(weft_signal);
    void *memory = x->signals;
    weft_status status = grow_amply(x, &memory, &bytes, (size_t)signals * sizeof(weft_signal));

    x->signals = memory;
    x->signal_count = (uint32_t)(bytes / sizeof(weft_signal));
    memset(x->base, 0, x->base_count * sizeof(*x->base)); /* new signals begin at zero */
    return status;
}

weft_status weft_executor_grow(weft_executor *x, size_t scratch_bytes, uint32_t signals)
{
    weft_status status = WEFT_OK;

    if (scratch_bytes > x->scratch_bytes)
        status = grow_scratch(x, scratch_bytes);
    if (status == WEFT_OK && signals > x->signal_count)
        status = grow_signals(x, signals);
    return status;
}

void weft_executor_trace(weft_executor *x, weft_trace *traces, int count)
{
    x->traces = traces;
    x->trace_count = traces ? count : 0;
}
