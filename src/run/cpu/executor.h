/*
 * The executor of plans on CPU ranks: what one group handle keeps between runs.
 *
 * Calls. Every collective call of this layer (making a plan, a run, a small collective) has a sequence
 * number, equal on all ranks. At the start of a call a rank publishes a record in its own control memory: the
 * number, a hash of what was asked, whether it rejected its arguments, and where its operands lie. A peer
 * that touches the rank's memory waits for that record first, and no call succeeds on any rank before all
 * records of the call have been seen and found alike. Hence
 * - a mismatch or a rejected argument is an error on every rank, in this very call, never a hang;
 * - ranks are at most one call apart, so two records (by parity of the number) suffice;
 * - a rank that has left a run has seen its peers' done posts, so one scratch arena serves all plans.
 *
 * Signals. Plans share one table of signals per group. A rank keeps, for each signal of its own, how many
 * posts all earlier runs made (`base`); a wait for count c of this run is a wait for base + c. Posts only
 * add, so a poster needs to know nothing.
 *
 * After a failed call (resync) the ranks meet, and every rank takes the values its signals then have as the
 * new base: the group stays usable. Death and deadlines poison the group instead.
 */
#ifndef WEFT_RUN_CPU_EXECUTOR_H
#define WEFT_RUN_CPU_EXECUTOR_H

#include "core/signal.h"
#include "gemm/gemm.h"
#include "group/sync.h"
#include "plan/plan.h"
#include "core/pool.h"
#include "trace/trace.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
    WEFT_RUN_ROLES = WEFT_ROLE_COUNT - 1, /* without NONE */
    WEFT_RUN_ALIGNMENT = 128,
};

typedef enum weft_call_kind {
    WEFT_CALLED_UNREAD, /* rejected before it could be read */
    WEFT_CALLED_CREATE,
    WEFT_CALLED_RUN,
    WEFT_CALLED_SMALL,
} weft_call_kind;

/* What a rank shows its peers at the start of a call. The first 64 bytes are all that a collective reads. */
typedef struct weft_record {
    union {
        weft_signal sequence; /* stored last (release); partner: weft_executor_seen */
        struct {
            uint64_t signal_words[2];
            uint64_t hash;
            int32_t status; /* not WEFT_OK: this rank rejected its arguments */
            uint32_t kind;  /* weft_call_kind */
            /* From the rank's control memory to its operand: RECV first, A last (see weft_record_slot). */
            int64_t offset[WEFT_RUN_ROLES];
        };
    };
    int64_t ld[WEFT_ROLE_D + 1]; /* by role; collectives have none */
    int64_t stride[WEFT_ROLE_D + 1];
    int64_t m, n, k; /* for the sentence of a mismatch only, as the two below */
    uint8_t op, dtype;
} weft_record;

static inline int weft_record_slot(weft_operand_role role)
{
    return WEFT_ROLE_RECV - (int)role;
}

enum { WEFT_SMALL_BYTES = 4096 };

/* A small collective's payload behind its flag, in the same line (run/cpu/small.c). */
typedef struct weft_small {
    union {
        weft_signal sequence; /* stored last (release); partner: arrived in small.c */
        struct {
            uint64_t signal_words[2];
            uint64_t hash;
            char payload[WEFT_SMALL_BYTES];
        };
    };
} weft_small;

/* Symmetric, one per rank; each rank writes only its own. */
typedef struct weft_run_control {
    weft_record records[2];
    weft_small small[2];
} weft_run_control;

/* Where an operand of the running plan lies on one rank, as seen from here. */
typedef struct weft_place {
    char *base;
    int64_t ld;           /* elements */
    int64_t stride_bytes; /* between batch elements */
} weft_place;

typedef struct weft_lane_state {
    _Alignas(64) _Atomic uint32_t taken; /* a try-lock; acquire and release pair with each other */
    _Atomic uint32_t next;               /* written under the lock; relaxed peeks outside it */
} weft_lane_state;

/* What of an epilogue belongs to the run rather than to the plan. */
typedef struct weft_run_values {
    float alpha, beta;
    const float *row_scale, *col_scale; /* of this rank's D; NULL = 1 */
} weft_run_values;

typedef struct weft_executor {
    weft_group *group;
    int rank, world;
    ptrdiff_t *delta; /* from this rank's slot to a peer's, in bytes */

    weft_run_control *control;
    uint64_t sequence;    /* of the current or last call */
    uint64_t small_count; /* small collectives since the last resync: their slots alternate */

    weft_signal *signals; /* symmetric; NULL until a plan needs some */
    uint32_t signal_count;
    uint64_t *base;

    struct weft_counted *counted; /* symmetric; NULL until a collective has counts (run/cpu/counted.c) */

    char *scratch; /* symmetric arena: staging operands and bounce memory of the running plan */
    size_t scratch_bytes;
    char *private_memory; /* the rank's own: private operands, then workspaces of the workers */
    size_t private_bytes;

    /* The current run. */
    struct weft_plan *plan;
    weft_run_values values;
    weft_place *places;        /* [operand * world + rank]; peers' user operands are bound at their ENTER */
    _Atomic uint64_t *bound;   /* per rank: sequence whose record is in `places` (release/acquire) */
    _Atomic uint32_t *binding; /* per rank: a try-lock around filling it */
    _Atomic int fault;         /* 0, or 1 + the rank whose record does not agree; or W + 1: stop */
    size_t place_count;
    weft_lane_state *lanes;
    uint32_t lane_capacity;

    weft_pool *pool;    /* worker threads besides the caller's; NULL when no plan wants any */
    weft_trace *traces; /* one per worker, or NULL: not tracing */
    int trace_count;

    struct weft_plan *cached; /* plans of the one-call functions, most recently used first */
} weft_executor;

/* The group's executor, made by the first call that needs it (collective). */
weft_status weft_executor_of(weft_group *group, weft_executor **executor);

/* Frees it, without waiting for anybody; before the group goes. */
void weft_executor_detach(weft_group *group);

/* Begins a call: the record to fill for it, with hash, kind and sizes set and status WEFT_OK. */
weft_record *weft_executor_begin(weft_executor *executor, weft_call_kind kind, uint64_t hash,
                                 const weft_problem *problem);
void weft_executor_publish(weft_executor *executor);

static inline weft_record *weft_executor_record(const weft_executor *executor, int rank)
{
    return &((weft_run_control *)((char *)executor->control + executor->delta[rank]))
                ->records[executor->sequence & 1];
}

/* Has `rank` published its record of this call? Notes a fault when the record does not agree with ours. */
bool weft_executor_seen(weft_executor *executor, int rank);

/* Looks at every peer's record that is already there; true when one of them does not agree. */
bool weft_executor_faulted(weft_executor *executor);

/* Waits until every peer's record has been seen. WEFT_ERR_PEER without a sentence when one disagrees: the
 * caller then calls weft_executor_resync. */
weft_status weft_executor_meet(weft_executor *executor);

/* Every rank comes here when a call has failed by disagreement. Returns the error of this call: the rank's
 * own rejection as it stands in group->error, or who rejected, or who asked for what. Cached plans are gone
 * afterwards. */
weft_status weft_executor_resync(weft_executor *executor, bool rejected);

/* Rejects the arguments of a call that has not begun: `group->error` holds the sentence. `asked` is what the
 * peers are told of it; NULL: nothing. */
weft_status weft_executor_reject(weft_group *group, const weft_problem *asked, weft_status status);

/* Makes the arenas large enough (collective; every rank gives the same symmetric sizes). */
weft_status weft_executor_grow(weft_executor *executor, size_t scratch_bytes, uint32_t signals,
                               size_t private_bytes, uint32_t lanes, size_t places);

/* From now on tasks and waits of this rank are recorded, worker w in traces[w]; NULL ends it. */
void weft_executor_trace(weft_executor *executor, weft_trace *traces, int count);

/* Called before every task when set: tests inject delays with it. */
extern void (*weft_run_before_task)(int rank, uint32_t task);

#endif
