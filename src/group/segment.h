/*
 * The shared memory of a world: one memfd that every rank maps once.
 *
 *     header | slot of rank 0 | slot of rank 1 | …            slot = window 0 | window 1 | …
 *
 * Slots have the same size (`stride`), so an object at the same offset in every slot is reached on another
 * rank by adding a multiple of the stride. Window 0 of every slot belongs to the world group; a sub-group
 * has one window index in the slots of all its members. A window begins with the group's control block
 * (group/group.h); the rest is that group's part of the symmetric heap. The file is sparse: windows are
 * address space, and only pages that were touched are memory. It has no name, so nothing stays behind, and is
 * sealed against resizing, so a peer cannot make an access fault.
 *
 * Liveness: a rank that others cannot see die holds a lock on byte `rank` of the file for as long as its
 * process lives (weft_life). The lock belongs to an open file of its own, which only one page of address
 * space keeps open: the kernel drops it when the process ends in any way, also by SIGKILL or exec, and not
 * when the process closes descriptors, whichever they are. A child of fork does not get the page. Anybody
 * who has the memory can ask for the lock; no thread, descriptor per peer or pid (which may be reused) is
 * involved.
 */
#ifndef WEFT_GROUP_SEGMENT_H
#define WEFT_GROUP_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cores.h"
#include "core/signal.h"
#include "core/status.h"

enum {
    WEFT_RANKS_MAX = 1024,
    WEFT_WINDOWS_MAX = 16,
    WEFT_VERSION_BYTES = 24,
    WEFT_HUGE_BYTES = 2 << 20, /* slots and windows are aligned to this, in the file and in memory */
};

typedef enum weft_rank_state {
    WEFT_RANK_ABSENT = 0,
    WEFT_RANK_CLAIMED, /* a process took the rank and writes its entry */
    WEFT_RANK_IN,
    WEFT_RANK_LEFT, /* finalized, or ended normally */
} weft_rank_state;

typedef struct weft_rank_entry {
    _Alignas(WEFT_LINE_BYTES) _Atomic uint32_t state; /* partner: every reader of the entry, acquire */
    _Atomic int32_t pid;
    _Atomic uint64_t proof; /* nonce + 1 + rank: that its writer maps the same memory */
    /* How many groups the rank has left in each window. It only grows; partners: weft_group_absent and
     * the split that wants the window again. */
    _Atomic uint32_t left[WEFT_WINDOWS_MAX];
    weft_cores cores; /* when it came; written before `state` says so */
} weft_rank_entry;

typedef struct weft_segment_header {
    uint64_t magic;
    char version[WEFT_VERSION_BYTES]; /* of the library that made it; the others must have the same */
    uint64_t nonce;
    uint64_t total_bytes;
    uint64_t header_bytes;
    uint64_t stride;
    uint64_t window_stride;
    uint64_t heap_bytes; /* budget of one rank, over all its windows */
    int32_t size;
    int32_t windows;
    weft_rank_entry ranks[];
} weft_segment_header;

typedef struct weft_segment {
    weft_segment_header *header;
    char *slots;      /* slot of rank 0 */
    int fd;           /* -1: memory of this process alone */
    uint64_t file[2]; /* device and inode behind `fd`, should the process have closed that */
} weft_segment;

/* What keeps a rank's lock: gone with the process. */
typedef struct weft_life {
    void *page; /* NULL: none is held, or (without /proc) a record lock of the process */
} weft_life;

/* Makes the segment of a new world, sized by WEFT_HEAP or the machine's memory. For ranks that are threads it
 * is memory of this process where the system allows: that gets huge pages on more machines than shared
 * memory. */
weft_status weft_segment_create(int size, bool threads, weft_segment *segment, weft_error_text *error);

/* Maps the segment behind `fd`, which it takes over on success. The nonce must be the expected one. */
weft_status weft_segment_attach(int fd, uint64_t nonce, weft_segment *segment, weft_error_text *error);

void weft_segment_release(weft_segment *segment);

/* Takes the liveness lock of `rank`; false when it is held already. */
bool weft_segment_lock(const weft_segment *segment, int rank, weft_life *life);
void weft_segment_unlock(weft_life *life);

/* Whether the lock of `rank` is held by anybody. True when that cannot be found out. */
bool weft_segment_locked(const weft_segment *segment, int rank);

/* Says that the rank is gone for good, of its own will. */
static inline void weft_segment_set_left(const weft_segment *segment, int rank)
{
    /* Partner: weft_segment_left. */
    atomic_store_explicit(&segment->header->ranks[rank].state, WEFT_RANK_LEFT, memory_order_release);
}

/* Whether the rank has finalized or ended normally. What it wrote before is visible to whoever sees it. */
static inline bool weft_segment_left(const weft_segment *segment, int rank)
{
    /* Partner: weft_segment_set_left. */
    return atomic_load_explicit(&segment->header->ranks[rank].state, memory_order_acquire) == WEFT_RANK_LEFT;
}

/* Whether a process has taken the rank, be it gone again. */
static inline bool weft_segment_came(const weft_segment *segment, int rank)
{
    /* Partner: the compare-and-swap that claims the rank. */
    return atomic_load_explicit(&segment->header->ranks[rank].state, memory_order_acquire) !=
           WEFT_RANK_ABSENT;
}

/* Gives whole pages back to the system; they read as zero afterwards, also where memory is locked. False
 * where that cannot be had: they are then what they were. */
bool weft_segment_discard(const weft_segment *segment, void *memory, uint64_t bytes);

static inline char *weft_segment_window(const weft_segment *segment, int rank, int window)
{
    return segment->slots + (uint64_t)rank * segment->header->stride +
           (uint64_t)window * segment->header->window_stride;
}

#endif
