#include "symm/symm.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/env.h"
#include "symm/room.h"

/* Blocks from this size are given back to the system when freed and come back as fresh pages; smaller ones
 * are kept and cleared. */
enum {
    FRESH_BYTES = 4 << 20,
    FRESH_UNIT = 64 << 10, /* whole pages of every system */
    HUGE_FROM_BYTES = 256 << 10,
    STAGGER_FROM_BYTES = 64 << 10,
};

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* A block of one of the two heaps of a group. */
typedef struct block {
    int zone; /* 1: staggered */
    uint64_t offset, bytes;
} block;

static uint64_t zone_bytes(const weft_segment *segment, int zone)
{
    const weft_segment_header *header = segment->header;

    return zone ? header->window_stride - WEFT_HUGE_BYTES - header->heap_bytes : header->heap_bytes;
}

/* Nine and sixteen have no common divisor: sixteen ranks in a row have sixteen different places. */
static uint64_t stagger(const weft_group *group, int rank)
{
    return (uint64_t)group->seats[rank].world_rank * 9 % (WEFT_STAGGER_BYTES / WEFT_STAGGER_UNIT) *
           WEFT_STAGGER_UNIT;
}

static char *zone_base(const weft_group *group, int zone)
{
    return (char *)group->seats[group->rank].control + WEFT_HUGE_BYTES +
           (zone ? zone_bytes(&group->world->segment, 0) : 0);
}

static char *block_begin(const weft_group *group, const block *b)
{
    return zone_base(group, b->zone) + b->offset;
}

static char *block_pointer(const weft_group *group, const block *b)
{
    return block_begin(group, b) + (b->zone ? stagger(group, group->rank) : 0);
}

/* The block that a pointer is the beginning of; without one there, or let go of, of 0 bytes. */
static block block_of(const weft_group *group, const char *pointer)
{
    block b = {.zone = pointer >= zone_base(group, 1)};

    b.offset = (uint64_t)(pointer - block_pointer(group, &b));
    b.bytes = weft_symm_held(group, b.zone, b.offset);
    return b;
}

void weft_symm_usage(const weft_group *group, uint64_t *budget, uint64_t *used)
{
    *budget = group->world->segment.header->heap_bytes;
    *used = weft_group_member(group)->heap_used;
}

bool weft_symm_contains(const weft_group *group, const void *pointer, size_t bytes)
{
    uint64_t stride = group->world->segment.header->stride;
    const char *slot = weft_segment_window(&group->world->segment, group->seats[group->rank].world_rank, 0);
    uint64_t offset = (uint64_t)((const char *)pointer - slot);

    return (const char *)pointer >= slot && offset < stride && bytes <= stride - offset;
}

/* Touches every page as its owner, so that memory lies on the owner's node and is there when needed. */
static bool touch(char *memory, uint64_t bytes)
{
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* EINVAL: a kernel before 5.14, which takes the loop */
        return false;
    for (uint64_t at = 0, page = (uint64_t)sysconf(_SC_PAGESIZE); at < bytes; at += page)
        *(volatile char *)(memory + at) = 0;
    return true;
}

/* Puts present memory on huge pages, those that it shares with its neighbours too (all of them are this
 * rank's), unless it has little of the last one. Shared memory gets none by itself on most systems; made of
 * pages that are there, it does. An unheeded wish is no error. */
static void collapse(char *memory, uint64_t bytes)
{
    uintptr_t first = (uintptr_t)memory / WEFT_HUGE_BYTES * WEFT_HUGE_BYTES;
    uintptr_t end =
        ((uintptr_t)memory + bytes + WEFT_HUGE_BYTES - HUGE_FROM_BYTES) / WEFT_HUGE_BYTES * WEFT_HUGE_BYTES;

    if (end > first)
        madvise((void *)first, end - first, MADV_COLLAPSE);
}

/* Whether the pages of a small block, which its neighbours share, can be had: writing to them would be a
 * signal else. A kernel before 5.14 does not tell. */
static bool is_there(char *memory, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes + page - 1) / page * page;

    return madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

/* Makes the block zero and present. False when the system has no memory for it. */
static bool prepare(weft_group *group, char *memory, uint64_t bytes, bool touched)
{
    bool huge = bytes >= HUGE_FROM_BYTES && strcmp(weft_env_word(WEFT_ENV_HUGE), "off") != 0;

    if (bytes < FRESH_BYTES) {
        if (!is_there(memory, bytes))
            return false;
        memset(memory, 0, bytes);
        touched = true;
    } else {
        /* Small blocks that lay here before left their pages behind, and so did large ones if they are
         * locked.
         */
        if (!weft_segment_discard(&group->world->segment, memory, bytes))
            memset(memory, 0, bytes);
        if (huge)
            madvise(memory, bytes, MADV_HUGEPAGE);
        if (touched && !touch(memory, bytes))
            return false;
    }
    if (huge && touched)
        collapse(memory, bytes);
    return true;
}

/* Large blocks begin with a huge page and cover whole pages, so that they can be given back without touching
 * a neighbour. */
static void shape(uint64_t *bytes, uint64_t *alignment)
{
    uint64_t unit = *bytes >= FRESH_BYTES ? FRESH_UNIT : WEFT_HEAP_UNIT;
    uint64_t least = *bytes >= FRESH_BYTES ? WEFT_HUGE_BYTES : WEFT_HEAP_UNIT;

    *bytes = *bytes ? (*bytes + unit - 1) / unit * unit : unit;
    if (*alignment < least)
        *alignment = least;
}

/* Second half of an allocation: every rank says whether its part is ready. */
static weft_status confirm(weft_group *group, uint64_t bytes, bool ready)
{
    uint32_t mine = ready;
    weft_status status = weft_group_exchange(group, WEFT_CALL_ALLOC, &mine, sizeof(mine));

    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++)
        if (!*(const uint32_t *)weft_group_board(group, rank))
            status = weft_error_set(&group->error, WEFT_ERR_MEMORY,
                                    "weft_alloc of %llu bytes: the system has no memory for them on rank %d",
                                    (unsigned long long)bytes, rank);
    return status;
}

/* A block that the staggered heap has no room for goes to the other. */
static void ask_for(weft_symm_ask *ask, bool staggered)
{
    for (int zone = staggered; zone >= 0; zone--, ask->zones++) {
        ask->in[ask->zones].zone = zone;
        ask->in[ask->zones].bytes = ask->bytes;
        ask->in[ask->zones].alignment = ask->alignment;
        if (ask->bytes > UINT64_MAX / 2) /* is found too large as it is */
            continue;
        ask->in[ask->zones].bytes += zone ? WEFT_STAGGER_BYTES : 0;
        shape(&ask->in[ask->zones].bytes, &ask->in[ask->zones].alignment);
    }
}

static weft_status allocate(weft_group *group, size_t bytes, size_t alignment, bool touched, bool staggered,
                            void **pointer)
{
    weft_member *member = weft_group_member(group);
    weft_symm_ask ask = {.bytes = bytes, .alignment = alignment};
    bool ready = true;
    weft_status status;
    block b;

    for (int zone = 0; zone < 2; zone++)
        ready = ready && weft_symm_make_heap(group, zone, zone_bytes(&group->world->segment, zone));
    if (!ready)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for symmetric objects",
                                 group->rank);
    ask.left = group->world->segment.header->heap_bytes - member->heap_used;
    ask_for(&ask, staggered);
    status = weft_symm_find_room(group, &ask);
    if (status != WEFT_OK)
        return status;
    b = (block){ask.zone, ask.offset, ask.zone_bytes};
    ready = ask.taken && prepare(group, block_begin(group, &b), b.bytes, touched);
    status = confirm(group, bytes, ready);
    if (status != WEFT_OK) {
        if (ask.taken)
            weft_symm_give(group, b.zone, b.offset);
        return status;
    }
    member->heap_used += b.bytes;
    *pointer = block_pointer(group, &b);
    return WEFT_OK;
}

weft_status weft_symm_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    return allocate(group, bytes, alignment, true, false, pointer);
}

weft_status weft_symm_alloc_staggered(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    return allocate(group, bytes, alignment, true,
                    bytes >= STAGGER_FROM_BYTES && alignment <= WEFT_STAGGER_UNIT, pointer);
}

weft_status weft_symm_reserve(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    return allocate(group, bytes, alignment, false, false, pointer);
}

void *weft_symm_reach(const weft_group *group, const void *pointer, int rank)
{
    const weft_segment *segment = &group->world->segment;
    const char *slot = weft_segment_window(segment, group->seats[group->rank].world_rank, 0);
    uint64_t at = (uint64_t)((const char *)pointer - slot) % segment->header->window_stride;
    char *there = weft_symm_peer(group, pointer, rank);

    if (at >= WEFT_HUGE_BYTES + zone_bytes(segment, 0))
        there += (ptrdiff_t)stagger(group, rank) - (ptrdiff_t)stagger(group, group->rank);
    return there;
}

weft_status weft_symm_free(weft_group *group, void *pointer)
{
    block b;

    if (!pointer || group->world->foreign)
        return WEFT_OK;
    b = block_of(group, pointer);
    if (b.bytes == 0)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_free: %p is not the beginning of an object of this group, or was freed",
                              pointer);
    if (!weft_symm_let_go(group, b.zone, b.offset))
        return WEFT_OK;
    for (int rank = 0; b.bytes >= FRESH_BYTES && rank < group->size; rank++)
        weft_segment_discard(&group->world->segment, weft_symm_peer(group, block_begin(group, &b), rank),
                             b.bytes);
    weft_symm_settle(group, b.zone, b.offset);
    return WEFT_OK;
}
