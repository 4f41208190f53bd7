/*
 * A group: ranks that work together, as processes of one machine or as threads of one process.
 *
 * Each rank holds a handle, which one thread uses at a time. What ranks tell each other stands in their
 * control blocks, one per rank and group, at the beginning of the group's window in the rank's slot
 * (group/segment.h). A rank writes only its own block, except the poison of the group's rank 0, which
 * the first rank that fails claims by compare-and-swap.
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

#include "core/signal.h"
#include "core/status.h"
#include "group/segment.h"
#include "group/wait.h"

enum { WEFT_BOARD_BYTES = 4096 };

/* The collective calls a rank can be in, for agreement and for error sentences. */
typedef enum weft_call {
    WEFT_CALL_BARRIER = 1,
    WEFT_CALL_AGREE,
    WEFT_CALL_BROADCAST,
    WEFT_CALL_SPLIT,
    WEFT_CALL_ALLOC,
    WEFT_CALL_FREE,
    WEFT_CALL_GPU,
} weft_call;

const char *weft_call_name(unsigned call);

typedef struct weft_poison {
    _Alignas(
        WEFT_LINE_BYTES) _Atomic uint32_t state; /* 0 none, 1 being written, 2 written (release/acquire) */
    int32_t status;
    char text[WEFT_ERROR_TEXT_BYTES];
} weft_poison;

typedef struct weft_control {
    weft_signal arrived; /* sync << 16 | round << 8 | weft_call; only its owner writes */
    /* Looks << 16 | 1 + the rank that is waited for, to enter a call; grows with every look around in such a
     * wait. Only its owner writes; partner: awaits_us in wait.c. */
    _Alignas(WEFT_LINE_BYTES) _Atomic uint64_t awaits;
    weft_poison poison; /* used in the block of the group's rank 0 */
    /* What the rank shows the others in a sync, doubled by parity: sync s + 2 may overwrite it because
     * whoever takes part in s + 1 has read what was shown in s. */
    _Alignas(WEFT_LINE_BYTES) unsigned char board[2][WEFT_BOARD_BYTES];
    uint32_t rejected[2]; /* not 0: the rank rejected its arguments, and its board is the sentence */
} weft_control;

_Static_assert(sizeof(weft_control) <= WEFT_HUGE_BYTES,
               "the control block fits before the heap of its window");

/* One member of a group. */
typedef struct weft_seat {
    int world_rank;
    uint32_t left; /* what its count of groups left in the window becomes when it leaves this one */
    weft_control *control;
} weft_seat;

/* A window that a freed sub-group of this rank may still occupy, until all members have freed it. */
typedef struct weft_vacated {
    struct weft_vacated *next;
    int window, size, rank;
    weft_seat seats[];
} weft_vacated;

/* What one rank of a world keeps for all its groups; only that rank's thread touches it. */
typedef struct weft_member {
    uint32_t windows; /* bit w: window w of this rank's slot is taken */
    uint64_t heap_used;
    weft_vacated *vacated;
} weft_member;

typedef struct weft_world {
    weft_segment segment;
    bool processes; /* ranks are processes: liveness must be watched */
    int32_t pid;    /* of the process that entered; a fork of it is not a rank */
    int rank;       /* of this process */
    _Atomic int references;
    weft_member *members; /* by world rank; of process ranks only the own entry is used */
} weft_world;

struct weft_group {
    int rank;
    int size;
    int window;
    int radix;  /* how many ranks meet in one round of a sync */
    bool alone; /* every rank has a core, so spinning takes nobody's time */
    int cores;  /* that each rank may count on, at least 1 */
    int64_t enter_ns;
    int64_t progress_ns;
    uint64_t sync; /* how many syncs this rank has begun */
    weft_world *world;
    weft_seat *seats;               /* by group rank */
    struct weft_heap *heaps[2];     /* owned by src/symm */
    struct weft_executor *executor; /* owned by src/run */
    struct weft_gpu *gpu;           /* NULL, or where the group's memory and plans are; owned by src/run */
    atomic_flag writing;            /* the poison into `error` */
    weft_error_text error;
};

/* Makes `size` handles of one new world whose ranks are threads of this process. */
weft_status weft_world_create_threads(int size, weft_group **groups, weft_error_text *error);

/* Enters the world this process was started for (group/launcher.h) and waits until every rank has. */
weft_status weft_world_enter(weft_group **group, weft_error_text *error);

/* Drops one reference; the last one unmaps the segment. */
void weft_world_drop(weft_world *world);

/* Handle of the rank `members[rank]` of the world, on a window that is this group's on all its members. */
weft_status weft_group_open(weft_world *world, int window, int rank, int size, const int *members,
                            weft_group **group, weft_error_text *error);

/* Counts the cores each rank of the group may count on; ranks of the world that are not here yet are taken to
 * be placed like this one. */
void weft_group_count_cores(weft_group *group);

/* Says that this rank will not come again and drops the handle. Never waits. */
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

/* WEFT_OK, or the status of the poison with its sentence in group->error. */
weft_status weft_group_check(weft_group *group);

static inline weft_rank_entry *weft_seat_entry(const weft_world *world, const weft_seat *seat)
{
    return &world->segment.header->ranks[seat->world_rank];
}

/* Whether the member of a group in `window` has left that group, or the world. */
bool weft_seat_empty(const weft_world *world, int window, const weft_seat *seat);

/* Whether `rank` has left the group or its process has ended normally. */
bool weft_group_absent(const weft_group *group, int rank);

/* The first rank of the group whose process died, or -1. System calls: not for fast paths. */
int weft_group_find_dead(const weft_group *group);

/* Process id of a rank, or 0 for a thread. */
int weft_group_pid(const weft_group *group, int rank);

/* ---- collective calls: every rank of the group makes the same ones in the same order -------------- */

/* Waits until every rank has come to the same call; what ranks wrote before it is visible after it. */
weft_status weft_group_sync(weft_group *group, weft_call call);

/* Shows `bytes` (at most WEFT_BOARD_BYTES) of `mine` to the others. After it weft_group_board gives what
 * each rank showed, until this rank begins its next collective call. */
weft_status weft_group_exchange(weft_group *group, weft_call call, const void *mine, size_t bytes);
const void *weft_group_board(const weft_group *group, int rank);

/* Comes to the exchange that begins the others' call only to say that this rank rejected its arguments:
 * group->error holds the sentence, and that error is returned. The exchange of those who did not reject
 * theirs returns WEFT_ERR_PEER, with that sentence in theirs. The group stays usable. */
weft_status weft_group_reject(weft_group *group, weft_call call);

weft_status weft_group_barrier(weft_group *group);

/* Ranks of equal colour become a group, ranked by key; a negative colour gets NULL. */
weft_status weft_group_divide(weft_group *parent, int colour, int key, weft_group **sub);

/* Copies `bytes` from rank `root` to every rank. For small things; any size works. */
weft_status weft_group_broadcast(weft_group *group, int root, void *data, size_t bytes);

/* WEFT_OK when every rank gave the same hash; otherwise WEFT_ERR_MISMATCH on every rank, with a sentence
 * that shows two of the differing descriptions. The group stays usable. */
weft_status weft_group_agree(weft_group *group, const char *what, uint64_t hash, const char *described);

/* FNV-1a, for hashing what was asked. Start from WEFT_HASH_START. */
#define WEFT_HASH_START 0xcbf29ce484222325u
uint64_t weft_hash(uint64_t hash, const void *data, size_t bytes);

#endif
