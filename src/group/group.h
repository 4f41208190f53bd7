/*
 * A group: ranks that work together, as processes of one machine or as threads of one process.
 *
 * Each rank holds a handle, which one thread uses at a time. What ranks tell each other stands in their
 * control blocks, one per rank and group (group/segment.h). A rank writes only its own block, except the
 * poison of the group's rank 0, which the first rank that fails claims by compare-and-swap.
 *
 * Every collective call of this layer and of src/symm is one or more `syncs`, numbered alike on every
 * rank. A rank says in one word which sync it has reached and for which call, so ranks that make different
 * calls find out instead of waiting for each other.
 */
#ifndef WEFT_GROUP_GROUP_H
#define WEFT_GROUP_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/signal.h"
#include "core/status.h"
#include "group/world.h"

enum { WEFT_BOARD_BYTES = 4096 };

typedef struct weft_poison {
    _Alignas(
        WEFT_LINE_BYTES) _Atomic uint32_t state; /* 0 none, 1 being written, 2 written (release/acquire) */
    int32_t status;
    char text[WEFT_ERROR_TEXT_BYTES];
} weft_poison;

typedef struct weft_control {
    /* Sync << 16 | round << 12 | weft_entry << 4 | weft_sync_kind. Only its owner writes. */
    weft_signal arrived;
    /* Looks << 24 | weft_entry << 16 | 1 + the rank that is waited for, to enter a call; grows with every
     * look around in such a wait. Only its owner writes; partner: awaits_us in wait.c. */
    _Alignas(WEFT_LINE_BYTES) _Atomic uint64_t awaits;
    /* Tasks that the rank has finished, in any call; grows. Partner: the progress deadline of its peers. */
    _Alignas(WEFT_LINE_BYTES) _Atomic uint64_t progress;
    weft_poison poison;        /* used in the block of the group's rank 0, as the next */
    _Atomic uint32_t departed; /* ranks that have freed the group */
    /* What the rank shows the others in a sync, doubled by parity: sync s + 2 may overwrite it because
     * whoever takes part in s + 1 has read what was shown in s. */
    struct weft_shown {
        _Alignas(WEFT_LINE_BYTES) uint64_t rejected; /* not 0: its arguments, and `board` is the sentence */
        unsigned char board[WEFT_BOARD_BYTES];
    } shown[2];
} weft_control;

_Static_assert(sizeof(weft_control) <= WEFT_CONTROL_BYTES, "a control block is there as a whole");

/* A group that another was split from. */
typedef struct weft_ancestor {
    int window;
    uint32_t left; /* weft_seat.left of the rank in it */
} weft_ancestor;

struct weft_group {
    int rank;
    int size;
    int window;
    int radix;    /* how many ranks meet in one round of a sync */
    bool spread;  /* some members are on other nodes */
    bool alone;   /* every rank has a core, so spinning takes nobody's time */
    int cores;    /* that each rank may count on, at least 1 */
    double share; /* of a core that each rank has, at least */
    bool freed;   /* by the user; only what `holders` count keeps the handle */
    int64_t enter_ns;
    int64_t progress_ns;
    uint64_t sync;       /* how many syncs this rank has begun */
    unsigned char entry; /* weft_entry: the call that this rank is in, or was last */
    /* Where the group's state stands: in the control block of its rank 0, or, when it is spread, in every
     * rank's own, to which it is told. Of a dead handle: why it is dead. */
    weft_poison *poison;
    uint64_t progress_shown; /* to far members */
    weft_world *world;
    weft_guest guest;
    weft_seat *seats;         /* by group rank */
    weft_ancestor *ancestors; /* whose memory may be used here too; the nearest first */
    int ancestor_count;
    int holders;                        /* plans and layers of this handle */
    _Atomic int next_watched;           /* the rank whose liveness is looked at next */
    struct weft_symm *symm;             /* owned by src/symm */
    struct weft_session *session;       /* owned by src/run, as the two below */
    const struct weft_backend *backend; /* what plans run on; NULL: the CPU */
    void *device;                       /* what the backend keeps */
    void *beside;                       /* and what it keeps beside that, where it runs plans on the CPU */
    atomic_flag writing;                /* the poison into `error` */
    weft_error_text error;
};

/* Handle of the rank `members[rank]` of the world, on a window that is this group's on all its members. */
weft_status weft_group_open(weft_world *world, int window, int rank, int size, const int *members,
                            weft_group **group, weft_error_text *error);

/* Counts the cores each rank of the group may count on; ranks of the world that are not here yet are taken to
 * be placed like this one. */
void weft_group_count_cores(weft_group *group);

/* Says that this rank will not come again. Never waits. From here on calls with the handle fail. */
void weft_group_leave(weft_group *group);

/* Drops a handle that has left. */
void weft_group_close(weft_group *group);

/* The rank's own record in its world. */
static inline weft_member *weft_group_member(const weft_group *group)
{
    return &group->world->members[group->seats[group->rank].world_rank];
}

/* First writer wins: every blocked or later call of any rank returns the status that stands in the group,
 * which this returns, with the sentence in group->error. */
weft_status weft_group_poison(weft_group *group, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes it into one rank's block, if nothing stands there. False: something does. */
bool weft_poison_write(weft_poison *poison, weft_status status, const char *text);

/* The same from any thread: group->error stays as it is. */
void weft_group_end(weft_group *group, weft_status status, const char *why);

/* Whether the group has failed: one load, for loops that compute. */
static inline bool weft_group_failed(const weft_group *group)
{
    /* Partner: the compare-and-swap in weft_group_poison. */
    return atomic_load_explicit(&group->poison->state, memory_order_relaxed) != 0;
}

/* WEFT_OK, or the status of the poison with its sentence in group->error. */
weft_status weft_group_check(weft_group *group);

/* Tells the peers that this rank is at work, by one of its threads or, where there are no others, by the one.
 */
static inline void weft_group_progress(const weft_group *group, bool one)
{
    _Atomic uint64_t *progress = &group->seats[group->rank].control->progress;

    /* Partner: idle_since in wait.c. */
    if (one)
        atomic_store_explicit(progress, atomic_load_explicit(progress, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
}

/* Whether the member of a group in `window` has left that group, or the world. */
bool weft_seat_empty(const weft_world *world, int window, const weft_seat *seat);

/* Whether `rank` has left the group or its process has ended normally. */
bool weft_group_absent(const weft_group *group, int rank);

/* Whether the process of `rank` has died. A system call: not for fast paths. */
bool weft_group_dead(const weft_group *group, int rank);

/* A rank of the group that has died, or -1: `rank` (-1: none in particular) is looked at, and one of the
 * others, another each time, so that the cost does not grow with the group. */
int weft_group_find_dead(weft_group *group, int rank);

/* Process id of a rank, or 0 for a thread. */
int weft_group_pid(const weft_group *group, int rank);

#endif
