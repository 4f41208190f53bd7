#include "run/cpu/executor.h"

#include "core/dtype.h"
#include "run/cpu/program.h"
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
    weft_program_drop_cached(x);
    if (!x->group || !x->group->world->foreign) /* a child of fork has no such threads */
        weft_pool_destroy(x->pool);
    free(x->delta);
    free(x->base);
    free(x->private_memory);
    free(x->places);
    free((void *)x->bound);
    free((void *)x->binding);
    free(x->lanes);
    free(x);
}

weft_status weft_executor_of(weft_group *group, weft_executor **executor)
{
    weft_executor *x = group->executor;
    weft_status status;
    size_t world = (size_t)group->size;
    void *control;

    if (x) {
        *executor = x;
        return WEFT_OK;
    }
    status = weft_symm_alloc(group, sizeof(weft_run_control), WEFT_RUN_ALIGNMENT, &control);
    if (status != WEFT_OK)
        return status;
    x = calloc(1, sizeof(*x));
    if (x) {
        x->delta = calloc(world, sizeof(*x->delta));
        x->bound = calloc(world, sizeof(*x->bound));
        x->binding = calloc(world, sizeof(*x->binding));
    }
    if (!x || !x->delta || !x->bound || !x->binding) {
        executor_free(x);
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its executor",
                                 group->rank);
    }
    x->group = group;
    x->rank = group->rank;
    x->world = group->size;
    x->control = control;
    for (int rank = 0; rank < group->size; rank++)
        x->delta[rank] = (char *)weft_symm_peer(group, control, rank) - (char *)control;
    group->executor = x;
    *executor = x;
    return WEFT_OK;
}

void weft_executor_detach(weft_group *group)
{
    executor_free(group->executor);
    group->executor = NULL;
}

weft_record *weft_executor_begin(weft_executor *x, weft_call_kind kind, uint64_t hash,
                                 const weft_problem *problem)
{
    weft_record *record;

    x->sequence++;
    record = weft_executor_record(x, x->rank);
    record->hash = hash ^ (uint64_t)kind << 56;
    record->kind = kind;
    record->status = WEFT_OK;
    record->op = (uint8_t)problem->op;
    record->dtype = (uint8_t)problem->dtype;
    record->m = problem->op >= WEFT_OP_ALL_REDUCE ? problem->count : problem->m;
    record->n = problem->n;
    record->k = problem->k;
    atomic_store_explicit(&x->fault, 0, memory_order_relaxed);
    return record;
}

void weft_executor_publish(weft_executor *x)
{
    /* Partner: weft_executor_seen on the peers. */
    weft_signal_store(&weft_executor_record(x, x->rank)->sequence, x->sequence);
}

bool weft_executor_seen(weft_executor *x, int rank)
{
    const weft_record *theirs = weft_executor_record(x, rank), *mine = weft_executor_record(x, x->rank);

    /* Partner: weft_executor_publish. */
    if (!weft_signal_reached(&theirs->sequence, x->sequence))
        return false;
    if (__builtin_expect(theirs->hash != mine->hash || theirs->status != WEFT_OK, 0)) {
        int none = 0;

        atomic_compare_exchange_strong_explicit(&x->fault, &none, 1 + rank, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    return true;
}

bool weft_executor_faulted(weft_executor *x)
{
    for (int rank = 0; rank < x->world; rank++)
        if (rank != x->rank)
            weft_executor_seen(x, rank);
    return atomic_load_explicit(&x->fault, memory_order_relaxed) != 0;
}

typedef struct meeting {
    weft_executor *executor;
    int peer;
} meeting;

static bool met(void *argument)
{
    meeting *m = argument;

    return weft_executor_seen(m->executor, m->peer) || weft_executor_faulted(m->executor);
}

weft_status weft_executor_meet(weft_executor *x)
{
    for (int peer = 0; peer < x->world; peer++) {
        meeting m = {x, peer};
        weft_wait_note note = {.peer = peer, .task = -1, .epoch = x->sequence, .kind = WEFT_WAIT_ENTER};
        weft_status status;

        if (peer == x->rank || weft_executor_seen(x, peer))
            continue;
        note.op = weft_op_name((weft_op)weft_executor_record(x, x->rank)->op);
        status = weft_wait_beside(x->group, &weft_executor_record(x, peer)->sequence, met, &m, &note);
        if (status != WEFT_OK)
            return status;
        if (atomic_load_explicit(&x->fault, memory_order_relaxed))
            break;
    }
    return atomic_load_explicit(&x->fault, memory_order_relaxed) ? WEFT_ERR_PEER : WEFT_OK;
}

/* "a run of ag_gemm m=512 n=64 k=128 float32" */
static void describe(const weft_record *record, char *text, size_t bytes)
{
    const char *op = weft_op_name((weft_op)record->op), *dtype = weft_dtype_name((weft_dtype)record->dtype);
    const char *what = record->kind == WEFT_CALLED_CREATE ? "a plan for" : "a run of";

    if (record->kind == WEFT_CALLED_UNREAD)
        snprintf(text, bytes, "a plan or a product");
    else if (record->op >= WEFT_OP_ALL_REDUCE)
        snprintf(text, bytes, "%s %s, %lld elements of %s", what, op, (long long)record->m, dtype);
    else
        snprintf(text, bytes, "%s %s, m=%lld n=%lld k=%lld, %s", what, op, (long long)record->m,
                 (long long)record->n, (long long)record->k, dtype);
}

/* The same sentence on every rank: all records of the call are there. */
static weft_status explain(weft_executor *x)
{
    const weft_record *first = weft_executor_record(x, 0);
    char one[160], other[160];

    for (int rank = 0; rank < x->world; rank++) {
        const weft_record *record = weft_executor_record(x, rank);

        if (record->status != WEFT_OK) {
            describe(record, one, sizeof(one));
            return weft_error_set(&x->group->error, WEFT_ERR_PEER,
                                  "rank %d rejected its arguments for %s: %s", rank, one,
                                  weft_status_text((weft_status)record->status));
        }
    }
    for (int rank = 1; rank < x->world; rank++) {
        const weft_record *record = weft_executor_record(x, rank);

        if (record->hash != first->hash) {
            describe(first, one, sizeof(one));
            describe(record, other, sizeof(other));
            return weft_error_set(
                &x->group->error, WEFT_ERR_MISMATCH,
                "the ranks asked for different things: rank 0 for %s; rank %d for %s%s", one, rank, other,
                strcmp(one, other) ? "" : " (with other layout, schedule, tiles or epilogue)");
        }
    }
    return weft_error_set(&x->group->error, WEFT_ERR_STATE, "call %llu failed on some rank only",
                          (unsigned long long)x->sequence);
}

weft_status weft_executor_resync(weft_executor *x, bool rejected)
{
    weft_error_text own = x->group->error;
    weft_status status = weft_group_barrier(x->group), error;

    if (status != WEFT_OK)
        return status;
    error = explain(x);
    for (uint32_t signal = 0; signal < x->signal_count; signal++)
        x->base[signal] = weft_signal_load(&x->signals[signal]);
    x->small_count = 0;
    weft_program_drop_cached(x); /* the ranks' lists may differ by now */
    if (rejected) {
        x->group->error = own;
        error = own.status;
    }
    own = x->group->error;
    status = weft_group_barrier(x->group);
    if (status != WEFT_OK)
        return status;
    x->group->error = own;
    return error;
}

weft_status weft_executor_reject(weft_group *group, const weft_problem *asked, weft_status rejection)
{
    weft_error_text own = group->error;
    weft_call_kind kind = asked ? WEFT_CALLED_RUN : WEFT_CALLED_UNREAD;
    weft_problem nothing = {0};
    weft_executor *x;
    weft_status status = weft_group_check(group);

    if (status == WEFT_OK)
        status = weft_executor_of(group, &x);
    if (status != WEFT_OK)
        return status;
    group->error = own;
    weft_executor_begin(x, kind, 0, asked ? asked : &nothing)->status = (int32_t)rejection;
    weft_executor_publish(x);
    return weft_executor_resync(x, true);
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
