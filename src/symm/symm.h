/*
 * Symmetric memory: objects that every rank of a group has at the same offset, and can address on its peers.
 *
 * A rank's slot of the group's window lies `stride` bytes after that of the rank before it, so the same
 * object on another rank is a fixed distance away, in every kind of group.
 *
 * A slot has three zones. Objects lie in the first or, large ones of the user, in the second, which is
 * staggered: it begins some lines later on each rank than on the one before. A kernel that writes the same
 * rows on two ranks would else fill the same few sets of its cache twice over, since rows often lie a power
 * of two apart. The third is the rank's own: it grows as that rank needs it, without asking the others, who
 * can reach what is there when they are told where.
 */
#ifndef WEFT_SYMM_SYMM_H
#define WEFT_SYMM_SYMM_H

#include <stddef.h>

#include "group/sync.h"
#include "symm/heap.h"

enum {
    WEFT_ALIGNMENT_MAX = WEFT_HUGE_BYTES,
    WEFT_STAGGER_UNIT = 128, /* what staggered memory can be aligned to */
    WEFT_STAGGER_BYTES = 2048,
    /* A control block: what every group has, then leases (room.c), from here on messages (message.c). */
    WEFT_MAILBOX_BEGIN = 1 << 20,
};

/* Where objects lie: in the slot, in its staggered part, in memory that a backend brings, which has a budget
 * of its own; the last is no heap. */
enum { WEFT_ZONE_PLAIN, WEFT_ZONE_STAGGERED, WEFT_ZONE_LENT, WEFT_ZONES, WEFT_ZONE_OWN = WEFT_ZONES };

/* Collective. The same offset on every rank, zeroed, its pages touched first by their owner. Exhaustion and
 * different sizes are the same error on every rank, and leave the heap and the group as they were. */
weft_status weft_symm_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* The same for large objects of the user, which are staggered if their alignment allows. weft_symm_reach
 * finds them on peers, weft_symm_peer does not. */
weft_status weft_symm_alloc_staggered(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* Not collective: the rank's own zone, of at least `bytes`. It stays where it is, with what is in it. NULL
 * when the rank may not have as much or the system has none: the sentence is in group->error. */
char *weft_symm_own(weft_group *group, size_t bytes);

/* How much of it there is. */
uint64_t weft_symm_own_size(const weft_group *group);

/* Gives this process access to as much of a peer's. False when the system refuses. */
bool weft_symm_open_own(const weft_group *group, int rank, uint64_t bytes);

/* Where memory of a rank lies that weft_symm_contains, in a word that its peers in the group understand.
 * False, with `place` as it was: it does not contain it. */
typedef int64_t weft_symm_place;
bool weft_symm_find(const weft_group *group, const void *pointer, size_t bytes, weft_symm_place *place);
void *weft_symm_at(const weft_group *group, int rank, weft_symm_place place);

/* Collective: room for an object at the same place on every rank, in the first of `zones` zones that has
 * some, each with the bytes and the alignment it takes there. */
typedef struct weft_symm_ask {
    uint64_t bytes, alignment; /* as asked for: compared between the ranks */
    uint64_t left;             /* of the rank's budget; differs between ranks */
    int zones;
    struct {
        int zone;
        uint64_t bytes, alignment;
    } in[2];
    /* The outcome: the zone, the place and the bytes taken there. `taken` is false on a rank that has no
     * memory for the bookkeeping; the others have taken theirs. */
    bool taken;
    int zone;
    uint64_t offset, zone_bytes;
} weft_symm_ask;

/* Errors are the same on every rank and change nothing. Finds what others have let go of, too. */
weft_status weft_symm_find_room(weft_group *group, weft_symm_ask *ask);

/* Undoes it, at the same point of every rank's calls. */
void weft_symm_give(weft_group *group, int zone, uint64_t offset);

/* Not collective: this rank lets go of the object. True for the one who does so last: it may clear the
 * memory, and then says that it can be taken again. */
bool weft_symm_let_go(weft_group *group, int zone, uint64_t offset);
void weft_symm_settle(weft_group *group, int zone, uint64_t offset);

/* The bytes of an object of this group that the rank has not let go of; 0: there is none. */
uint64_t weft_symm_held(const weft_group *group, int zone, uint64_t offset);

/* A heap of a backend's, as zone WEFT_ZONE_LENT; NULL takes it away. False without memory for it. `where` its
 * memory is, in sentences, lives as long: "on each GPU". */
bool weft_symm_lend_zone(weft_group *group, weft_heap *heap, const char *where);

/* Not collective: the memory may be taken again when every rank has done so. */
weft_status weft_symm_free(weft_group *group, void *pointer);

/* Whether [pointer, pointer + bytes) is symmetric memory of this rank, in this group or in one that it
 * was split from. */
bool weft_symm_contains(const weft_group *group, const void *pointer, size_t bytes);

/* Bytes to add to a pointer to this rank's symmetric memory, not staggered, to reach the same object on
 * `rank`. */
static inline ptrdiff_t weft_symm_distance(const weft_group *group, int rank)
{
    return (ptrdiff_t)(group->seats[rank].world_rank - group->seats[group->rank].world_rank) *
           (ptrdiff_t)group->world->segment.header->stride;
}

/* The same object on another rank. The pointer must be to this rank's symmetric memory, not staggered. */
static inline void *weft_symm_peer(const weft_group *group, const void *pointer, int rank)
{
    return (char *)pointer + weft_symm_distance(group, rank);
}

/* The same for any symmetric memory of this rank. */
void *weft_symm_reach(const weft_group *group, const void *pointer, int rank);

/* Bytes this rank may have in symmetric memory, and has. */
void weft_symm_usage(const weft_group *group, uint64_t *budget, uint64_t *used);

/* Drops the heap's bookkeeping; called before the group is closed. */
void weft_symm_detach(weft_group *group);

#endif
