/* A peer's memory is an address, so that a put is a copy; all memory order is that of core/signal.h. */
#include "run/cpu/onesided.h"

#include "symm/symm.h"

#include <string.h>

static weft_status move(weft_group *group, void *to, const void *from, size_t bytes)
{
    (void)group;
    memmove(to, from, bytes);
    return WEFT_OK;
}

static weft_status post(weft_group *group, void *signal, uint64_t add)
{
    (void)group;
    weft_signal_post(signal, add);
    return WEFT_OK;
}

static weft_status wait(weft_group *group, void *signal, uint64_t value, int from)
{
    weft_wait_note note = {.op = "weft_wait_signal", .peer = from, .task = -1, .epoch = value};

    return weft_signal_wait(group, signal, value, &note);
}

static weft_status add_to(weft_group *group, int64_t *word, int64_t add, int64_t *before)
{
    (void)group;
    /* Partner: the same call on any rank. */
    *before = atomic_fetch_add_explicit((_Atomic int64_t *)word, add, memory_order_acq_rel);
    return WEFT_OK;
}

const weft_onesided_ops weft_cpu_onesided = {
    .holds = weft_symm_contains, .move = move, .post = post, .wait = wait, .add = add_to};
