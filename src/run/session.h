/*
 * What one group handle keeps between calls, whatever its plans run on: how the ranks agree on a call, and
 * the plans of the one-call functions.
 *
 * Every collective call of this layer (making a plan, a run, a small collective) has a sequence
 * number, equal on all ranks. At the start of a call a rank publishes a record in its own control memory: the
 * number, a hash of what was asked, whether it rejected its arguments, and where its operands lie. A peer
 * that touches the rank's memory waits for that record first, and no call succeeds on any rank before all
 * records of the call have been seen and found alike. Hence
 * - a mismatch or a rejected argument is an error on every rank, in this very call, never a hang;
 * - ranks are at most one call apart, so two records (by parity of the number) suffice;
 * - a rank that has left a run has seen its peers' done posts, so one scratch arena serves all plans.
 *
 * After a failed call the ranks meet (resync), and the group stays usable. Death and deadlines poison the
 * group instead.
 */
#ifndef WEFT_RUN_SESSION_H
#define WEFT_RUN_SESSION_H

#include "core/pool.h"
#include "core/signal.h"
#include "group/sync.h"
#include "net/net.h"
#include "plan/plan.h"
#include "symm/symm.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Where the operands lie that peers touch, as all ranks know from the last run of an operation. */
typedef enum weft_reach { WEFT_REACH_UNKNOWN, WEFT_REACH_ALL, WEFT_REACH_BEYOND } weft_reach;

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
        weft_signal sequence; /* stored last (release); partner: weft_session_seen */
        struct {
            uint64_t signal_words[2];
            uint64_t hash;
            int32_t status;     /* not WEFT_OK: this rank rejected its arguments */
            uint16_t kind;      /* weft_call_kind */
            uint16_t beyond;    /* not 0: an operand that peers would touch is beyond their reach */
            uint64_t own_bytes; /* of the rank's own zone, where operands may lie */
            /* Where its operands lie: RECV first, A last (see weft_record_index). */
            weft_symm_place place[WEFT_RUN_ROLES];
        };
    };
    int64_t ld[WEFT_ROLE_D + 1]; /* by role; collectives have none */
    int64_t stride[WEFT_ROLE_D + 1];
    int64_t m, n, k; /* for the sentence of a mismatch only, as the two below */
    uint8_t op, dtype;
} weft_record;

static inline int weft_record_index(weft_operand_role role)
{
    return WEFT_ROLE_RECV - (int)role;
}

enum { WEFT_SMALL_BYTES = 64 << 10 };

/* A small collective's payload behind its flag, in the same line, or from the next one on (run/cpu/small.c).
 */
typedef struct weft_small {
    union {
        weft_signal sequence; /* stored last (release); partner: is_there in small.c */
        struct {
            uint32_t signal_words[3];
            int16_t cpu;     /* on which the rank was when it came */
            uint16_t beyond; /* as of its record, which it publishes later; of calls that tell it */
            uint64_t hash;
            char payload[WEFT_SMALL_BYTES + WEFT_LINE_BYTES];
        };
    };
} weft_small;

_Static_assert(offsetof(weft_small, cpu) >= offsetof(weft_signal, sleepers) + sizeof(uint32_t),
               "what a rank shows begins behind its signal");

/* A small collective and what follows from it on this rank, so that calls which repeat it need not ask. */
typedef struct weft_small_call {
    weft_problem problem; /* none yet: a product */
    weft_reach reach;     /* of its operation, for which it is small */
    size_t element_bytes;
    size_t bytes;   /* of a share */
    size_t shown;   /* bytes of all that this rank gives */
    size_t payload; /* from a slot on: where that begins, and what peers give */
    uint64_t hash;
    bool sums;
    bool told; /* small because peers cannot reach what it is of, which each call therefore tells */
    bool hub;  /* nodes send to the hub */
} weft_small_call;

/* Where every rank of a group sits: on which of its nodes, as which one there. */
typedef struct weft_seating {
    int node_count;
    int node[WEFT_RANKS_MAX], place[WEFT_RANKS_MAX]; /* by rank */
    int first[WEFT_RANKS_MAX], size[WEFT_RANKS_MAX]; /* by node, in the order of their first ranks */
    int before[WEFT_RANKS_MAX];                      /* by node: ranks of the nodes before it */
} weft_seating;

/* What the ranks of a far node show in a small collective, as one message brings it. */
typedef union weft_bundle {
    weft_signal sequence; /* stored last; partner: is_there in small.c */
    struct {
        uint64_t signal_words[2];
        uint64_t hash;
    };
} weft_bundle;

enum { WEFT_BUNDLE_BYTES = 256 << 10 };

enum { WEFT_JOURNAL_ENTRIES = 256 };

/* What a rank has begun to run without a record of it: run/cuda/journal.h. */
typedef struct weft_journal {
    _Atomic uint64_t count;
    _Atomic uint64_t entries[WEFT_JOURNAL_ENTRIES]; /* the last of them, by their number */
    _Atomic uint64_t sums[WEFT_JOURNAL_ENTRIES];    /* of each and all before it */
} weft_journal;

/* Symmetric; each rank writes only its own. Behind it a rank has the records of the far ranks that it listens
 * to, for all of its node to see: a rank shows its record to one rank of every other node. Over several nodes
 * there is, by parity, a weft_bundle a node and WEFT_BUNDLE_BYTES of what they show, which is used in the
 * first rank of every node. Records of small collectives are shown to far ranks only when they fail. */
typedef struct weft_run_control {
    weft_record records[2];
    weft_small small[2];
    weft_journal journal;
} weft_run_control;

typedef struct weft_listener {
    int rank;
    weft_record *there; /* as this rank's records are called in its memory */
    uint64_t shown;     /* the last call whose record went there */
} weft_listener;

typedef struct weft_session {
    weft_group *group;
    int rank, world;
    ptrdiff_t *delta;         /* from this rank's slot to a peer's, in bytes */
    weft_record **of;         /* per rank: where its two records are seen from here */
    _Atomic uint64_t *opened; /* per rank: of its own zone, what this process has access to */
    weft_run_control *control;
    uint64_t sequence;        /* of the current or last call */
    int listener_count;       /* far ranks that listen to this one, a rank of every other node */
    weft_listener *listeners; /* first those of the nodes behind this one */
    weft_seating *seating;    /* NULL: there is one node */
    size_t bundles;           /* from the control on: those of far nodes */
    char *load;               /* room for what a message carries; NULL: as well */
    _Atomic int fault;        /* 0, or 1 + the rank whose record does not agree; or W + 1: stop */

    void (*rebase)(
        weft_group *group); /* the backend's, while all ranks stand still after a failed call, or NULL */
    uint64_t failures;      /* calls after which cached plans of the ranks may differ */

    weft_reach reach[WEFT_OP_BROADCAST + 1]; /* by operation; see run/reach.h */

    weft_small_call small;    /* the last that was asked for */
    struct weft_plan *cached; /* plans of the one-call functions, most recently used first (program.h) */
    uint64_t cached_age;      /* weft_session_age when the list was last alike on all ranks */
    struct weft_plan *aside;  /* those of them that a graph may run, from before a call that failed */
} weft_session;

/* The group's session, made by the first call that needs it (collective). */
weft_status weft_session_of(weft_group *group, weft_session **session);

/* Frees it, without waiting for anybody; before the group goes. Its plans are gone by then. */
void weft_session_free(weft_group *group);

/* Begins a call: the record to fill for it, with hash, kind and sizes set and status WEFT_OK. */
weft_record *weft_session_begin(weft_session *session, weft_call_kind kind, uint64_t hash,
                                const weft_problem *problem);
void weft_session_publish(weft_session *session);

/* The two halves of it: for the ranks of this node, and for those of others that have not got it already. */
void weft_session_publish_near(weft_session *session);
void weft_session_publish_far(weft_session *session);

/* What shows the record to a far rank, for a message that takes it along; false: it has been shown, or is
 * shown to another rank of that node. */
bool weft_session_take_along(weft_session *session, int rank, weft_net_put *put);

static inline weft_record *weft_session_record(const weft_session *session, int rank)
{
    return &session->of[rank][session->sequence & 1];
}

/* Grows where plans that the ranks keep may differ, or those they would make now from those they made. */
static inline uint64_t weft_session_age(const weft_session *session)
{
    return session->failures + weft_pool_uses();
}

/* Has `rank` published its record of this call? Notes a fault when the record does not agree with ours. */
bool weft_session_seen(weft_session *session, int rank);

/* Whether an operand lay beyond the peers' reach on some rank, at the end of a call in which all ranks'
 * records were seen; and what a call ends with that was told so or otherwise. */
bool weft_session_beyond(const weft_session *session);
void weft_session_learn(weft_session *session, weft_op op, bool beyond);

/* Looks at every peer's record that is already there; true when one of them does not agree. */
bool weft_session_faulted(weft_session *session);

/* Waits until every peer's record has been seen. WEFT_ERR_PEER without a sentence when one disagrees: the
 * caller then calls weft_session_resync. */
weft_status weft_session_meet(weft_session *session);

/* Every rank comes here when a call has failed by disagreement. Returns the error of this call: the rank's
 * own rejection as it stands in group->error, or who rejected, or who asked for what. */
weft_status weft_session_resync(weft_session *session, bool rejected);

/* Rejects the arguments of a call that has not begun: `group->error` holds the sentence. `asked` is what the
 * peers are told of it; NULL: nothing. */
weft_status weft_session_reject(weft_group *group, const weft_problem *asked, weft_status status);

#endif
