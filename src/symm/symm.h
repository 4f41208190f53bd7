/*
 * Symmetric memory: objects that every rank of a group has at the same offset, and can address on its peers.
 *
 * A rank's slot of the world's segment lies `stride` bytes after that of the rank before it, so the same
 * object on another rank is a fixed distance away, in every kind of group.
 *
 * The last part of a window's heap is staggered: it begins some lines later on each rank than on the one
 * before. A kernel that writes the same rows on two ranks would else fill the same few sets of its cache
 * twice over, since rows often lie a power of two apart.
 */
#ifndef WEFT_SYMM_SYMM_H
#define WEFT_SYMM_SYMM_H

#include <stddef.h>

#include "group/group.h"

enum {
    WEFT_ALIGNMENT_MAX = WEFT_HUGE_BYTES,
    WEFT_STAGGER_UNIT = 128, /* what staggered memory can be aligned to */
    WEFT_STAGGER_BYTES = 2048,
};

/* Collective. The same offset on every rank, zeroed, its pages touched first by their owner. Exhaustion and
 * different sizes are the same error on every rank, and leave the heap and the group as they were. */
weft_status weft_symm_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* The same for large objects of the user, which are staggered if their alignment allows. weft_symm_reach
 * finds them on peers, weft_symm_peer does not. */
weft_status weft_symm_alloc_staggered(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* weft_symm_alloc without touching pages: what is never used costs no memory, and a page is where its first
 * toucher put it. */
weft_status weft_symm_reserve(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* What each rank puts on the board when it asks for memory, on the host or on a GPU. */
typedef struct weft_symm_request {
    uint64_t bytes, alignment;
    uint64_t left; /* of the rank's budget; differs between ranks */
} weft_symm_request;

/* Compares what the ranks ask for, and with what each has left. The outcome is the same everywhere. */
weft_status weft_symm_admit(weft_group *group, uint64_t shaped_bytes);

/* Collective: compares what the ranks free. `place` is the object's offset, the same on every rank, and
 * `known` says whether there is one; NULL is fine when every rank passes it. On a poisoned group WEFT_OK at
 * once: no call of the group can use the object any more, so the rank may free its own. */
weft_status weft_symm_dismiss(weft_group *group, const void *pointer, uint64_t place, bool known);

/* Collective: the memory may be reused as soon as every rank has come. On a poisoned group it frees at
 * once, without waiting for anybody, and succeeds. */
weft_status weft_symm_free(weft_group *group, void *pointer);

/* Whether [pointer, pointer + bytes) is symmetric memory of this rank. */
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

/*
 * The one verb that moves bytes and says so: copies `bytes` from `source` (any memory of this rank) to where
 * `rank` has `destination`, then adds to the signal there, which the receiver waits for. `destination`
 * and `signal` are given as this rank's own addresses of the symmetric objects.
 */
weft_status weft_put_signal(weft_group *group, int rank, void *destination, const void *source, size_t bytes,
                            weft_signal *signal, uint64_t add);

/* Bytes this rank may have in symmetric memory, and has. */
void weft_symm_usage(const weft_group *group, uint64_t *budget, uint64_t *used);

/* Drops the heap's bookkeeping; called before the group is closed. */
void weft_symm_detach(weft_group *group);

#endif
