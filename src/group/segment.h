/*
 * The shared memory of a world: one memfd without a name.
 *
 *     header | window 0 | window 1 | …      window = control blocks of all ranks | slot of rank 0 | slot 1 |
 * …
 *
 * Slots have the same size (`stride`), so an object at the same offset in every slot of a window is reached
 * on another rank by adding a multiple of the stride. Window 0 belongs to the world group; a sub-group has
 * one window, in which it uses the control blocks (group/group.h) and slots of its members. A slot is a
 * rank's part of the group's symmetric memory (symm/symm.h).
 *
 * Address space costs little, but not nothing: a window is mapped when a group of this process first has it,
 * and its slots without access. Access comes with use (weft_segment_grant). The file is sparse: only pages
 * that were touched are memory; what weft touches is there before (weft_segment_populate), since a page that
 * the system cannot give is a signal. The file is sealed against resizing, so a peer cannot make an access
 * fault.
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
    WEFT_WINDOWS_MAX = 64, /* groups of a world that a rank can be in at the same time */
    WEFT_VERSION_BYTES = 24,
    WEFT_HUGE_BYTES = 2 << 20, /* slots and windows are aligned to this, in the file and in memory */
    /* A control block has WEFT_HUGE_BYTES, of which every group uses these (group/group.h). */
    WEFT_CONTROL_BYTES = 12 << 10,
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
    uint64_t stride;       /* of slots */
    uint64_t window_bytes; /* control blocks and slots */
    uint64_t heap_bytes;   /* budget of one rank, over all its windows */
    int32_t size;
    int32_t windows;
    weft_rank_entry ranks[];
} weft_segment_header;

typedef struct weft_segment {
    weft_segment_header *header;
    /* NULL: not mapped. The net's thread looks while another maps one. */
    _Atomic(char *) windows[WEFT_WINDOWS_MAX];
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

/* The same for ranks that are processes, with heaps of a size that the nodes of a world have agreed on; and
 * the size that this machine would take. */
weft_status weft_segment_create_sized(int size, uint64_t heap_bytes, weft_segment *segment,
                                      weft_error_text *error);
weft_status weft_segment_heap(int size, uint64_t *heap_bytes, weft_error_text *error);

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

/* Maps a window unless it is: its control blocks with access, its slots without. Not for two threads at once.
 */
weft_status weft_segment_map(weft_segment *segment, int window, weft_error_text *error);

/* Puts memory of this process alone in the place of a rank's control block and, without access, of its slot:
 * a shadow, of a rank on another node. False when the system refuses. */
bool weft_segment_cast(const weft_segment *segment, int rank, int window);

/* Gives this process access to memory of a slot. Where memory is accounted, that may be refused. */
bool weft_segment_grant(void *memory, uint64_t bytes);

/* Makes the pages of memory present, by its owner: it can then be touched without a signal. False when the
 * system has none. What was written there stays. */
bool weft_segment_populate(const weft_segment *segment, void *memory, uint64_t bytes);

/* Gives whole pages back to the system; they read as zero afterwards, also where memory is locked. False
 * where that cannot be had: they are then what they were. */
bool weft_segment_discard(const weft_segment *segment, void *memory, uint64_t bytes);

/* The same for a whole slot, which nobody uses any more: access to it may be gone. */
void weft_segment_clear(const weft_segment *segment, int rank, int window);

/* All of a window that the caller has mapped, or found mapped. */
static inline char *weft_segment_window(const weft_segment *segment, int window)
{
    /* Partner: the store in weft_segment_map, which was before. */
    return atomic_load_explicit(&((weft_segment *)segment)->windows[window], memory_order_relaxed);
}

static inline void *weft_segment_control(const weft_segment *segment, int rank, int window)
{
    return weft_segment_window(segment, window) + (uint64_t)rank * WEFT_HUGE_BYTES;
}

static inline char *weft_segment_slot(const weft_segment *segment, int rank, int window)
{
    return weft_segment_window(segment, window) + (uint64_t)segment->header->size * WEFT_HUGE_BYTES +
           (uint64_t)rank * segment->header->stride;
}

#endif
