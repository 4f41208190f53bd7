/*
 * What a rank's lanes run on: signals, scratch memory, workers. Plans share all of it, and it only grows.
 *
 * Signals. Plans share one table of signals per group. A rank keeps, for each signal of its own, how many
 * posts all earlier runs made (`base`); a wait for count c of this run is a wait for base + c. Posts only
 * add, so a poster needs to know nothing. After a failed call every rank takes the values its signals then
 * have as the new base.
 */
#ifndef WEFT_RUN_CPU_EXECUTOR_H
#define WEFT_RUN_CPU_EXECUTOR_H

#include "core/pool.h"
#include "gemm/gemm.h"
#include "net/net.h"
#include "run/cpu/reduce.h"
#include "run/session.h"
#include "trace/trace.h"

/* Where an operand of the running plan lies on one rank, as seen from here. */
typedef struct weft_place {
    char *base;
    int64_t ld;           /* elements */
    int64_t stride_bytes; /* between batch elements */
} weft_place;

typedef struct weft_lane_state {
    _Alignas(64) _Atomic uint32_t taken; /* a try-lock; acquire and release pair with each other */
    _Atomic uint32_t next;               /* written under the lock; relaxed peeks outside it */
    _Atomic uint64_t sent;               /* messages to other nodes in all runs; written like `next` */
    _Atomic int sent_to;                 /* the rank that those still under way go to; -1: several */
    _Atomic bool sent_inputs;            /* all of them are read from inputs, which nobody overwrites */
} weft_lane_state;

/* What of an epilogue belongs to the run rather than to the plan. */
typedef struct weft_run_values {
    float alpha, beta;
    const float *row_scale, *col_scale; /* of this rank's D; NULL = 1 */
    const float *a_scale, *b_scale;     /* of blocks of what it multiplies (run/scales.h); NULL = 1 */
} weft_run_values;

typedef struct weft_executor {
    weft_group *group;
    int rank, world;
    weft_session *session;
    ptrdiff_t *delta;     /* the session's */
    uint64_t small_count; /* small collectives since the last resync: their slots alternate */
    weft_view *summands;  /* per rank: room for what a small sum is of */

    weft_signal *signals; /* symmetric; NULL until a plan needs some */
    uint32_t signal_count, base_count;
    uint64_t *base;

    struct weft_basis *basis;     /* what plans are chosen by; NULL: not looked for */
    uint64_t agreed;              /* its hash, the same on all ranks; or 0 … */
    uint64_t agreed_failures;     /* … since the session had so many */
    struct weft_counted *counted; /* symmetric; NULL until a collective has counts (run/cpu/counted.c) */

    char *scratch; /* symmetric arena: staging operands of the running plan */
    size_t scratch_bytes;
    char *private_memory; /* the rank's own: private operands, then workspaces of the workers */
    size_t private_bytes;

    /* The current run. */
    struct weft_plan *plan;
    struct weft_program *program; /* what the CPU has made of it (program.h) */
    weft_run_values values;
    weft_place *places;        /* [operand * world + rank]; peers' user operands are bound at their ENTER */
    _Atomic uint64_t *bound;   /* per rank: sequence whose record is in `places` (release/acquire) */
    _Atomic uint32_t *binding; /* per rank: a try-lock around filling it */
    size_t place_count;
    weft_lane_state *lanes;
    weft_net_run early;           /* what of it may come before it begins; see lanes.c */
    _Atomic int64_t *early_bytes; /* per rank: how much more may go there before it has entered */
    weft_signal *departed; /* by lane: how many of its messages have left their source; not symmetric */
    uint32_t lane_capacity;

    weft_pool *pool;    /* worker threads besides the caller's; NULL when no plan wants any */
    weft_trace *traces; /* one per worker, or NULL: not tracing */
    int trace_count;
} weft_executor;

/* The group's executor, made by the first call that needs it (collective, where the session is new). */
weft_status weft_executor_make(weft_group *group, weft_executor **executor);

static inline weft_status weft_executor_of(weft_group *group, weft_executor **executor)
{
    if (!group->device)
        return weft_executor_make(group, executor);
    *executor = group->device;
    return WEFT_OK;
}

/* Frees it, without waiting for anybody; before the group goes. */
void weft_executor_detach(weft_group *group);

/* What a plan needs of this rank alone, at least. A refusal leaves what was there. */
weft_status weft_executor_grow_local(weft_executor *executor, uint32_t signals, size_t private_bytes,
                                     uint32_t lanes, size_t places);

/* Makes the symmetric arenas large enough (collective; every rank gives the same sizes), after the local part
 * of every rank was. */
weft_status weft_executor_grow(weft_executor *executor, size_t scratch_bytes, uint32_t signals);

/* Whether messages to other nodes are still read from their source. */
bool weft_lanes_sending(const weft_executor *executor);

/* From now on tasks and waits of this rank are recorded, worker w in traces[w]; NULL ends it. */
void weft_executor_trace(weft_executor *executor, weft_trace *traces, int count);

/* Called before every task when set: tests inject delays with it. */
extern void (*weft_run_before_task)(int rank, uint32_t task);

#endif
