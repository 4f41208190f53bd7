#include "symm/symm.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/env.h"
#include "core/round.h"
#include "group/far.h"
#include "symm/room.h"

/* Blocks from this size are given back to the system when freed and come back as fresh pages; smaller ones
 * are kept and cleared. */
enum {
    FRESH_BYTES = 4 << 20,
    FRESH_UNIT = 64 << 10, /* whole pages of every system */
    HUGE_FROM_BYTES = 256 << 10,
    STAGGER_FROM_BYTES = 64 << 10,
    /* Access is given in steps of this, and of a part of what there is, so that it is rarely asked for. */
    GRANT_BYTES = WEFT_HUGE_BYTES,
    GRANT_PARTS = 8,
};

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* A block of one of the two heaps of a group. */
typedef struct block {
    int zone; /* 1: staggered */
    uint64_t offset, bytes;
} block;

/* A slot: the plain zone, the staggered one, the rank's own. */
static uint64_t zone_begin(const weft_segment *segment, int zone)
{
    const weft_segment_header *header = segment->header;

    return zone == WEFT_ZONE_PLAIN       ? 0
           : zone == WEFT_ZONE_STAGGERED ? header->heap_bytes
                                         : header->stride - header->heap_bytes;
}

static uint64_t zone_bytes(const weft_segment *segment, int zone)
{
    const weft_segment_header *header = segment->header;

    return zone == WEFT_ZONE_STAGGERED ? header->stride - 2 * header->heap_bytes : header->heap_bytes;
}

/* Nine and sixteen have no common divisor: sixteen ranks in a row have sixteen different places. */
static uint64_t stagger(const weft_group *group, int rank)
{
    return (uint64_t)group->seats[rank].world_rank * 9 % (WEFT_STAGGER_BYTES / WEFT_STAGGER_UNIT) *
           WEFT_STAGGER_UNIT;
}

static char *slot_of(const weft_group *group, int rank, int window)
{
    return weft_segment_slot(&group->world->segment, group->seats[rank].world_rank, window);
}

static char *zone_base(const weft_group *group, int zone)
{
    return slot_of(group, group->rank, group->window) + zone_begin(&group->world->segment, zone);
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

/* The window that has memory of this rank and that all members of the group have mapped: the group's or that
 * of a group that it was split from and the rank still has; -1: none. */
static int window_of(const weft_group *group, const void *pointer, size_t bytes)
{
    const weft_seat *own = &group->seats[group->rank];
    uint64_t stride = group->world->segment.header->stride;
    uint64_t offset = (uint64_t)((const char *)pointer - slot_of(group, group->rank, group->window));

    if (offset < stride && bytes <= stride - offset)
        return group->window;
    for (int i = 0; i < group->ancestor_count; i++) {
        int window = group->ancestors[i].window;
        weft_seat seat = {.world_rank = own->world_rank, .left = group->ancestors[i].left};

        offset = (uint64_t)((const char *)pointer - slot_of(group, group->rank, window));
        if (offset < stride && bytes <= stride - offset && !weft_seat_empty(group->world, window, &seat))
            return window;
    }
    return -1;
}

bool weft_symm_contains(const weft_group *group, const void *pointer, size_t bytes)
{
    return window_of(group, pointer, bytes) >= 0;
}

bool weft_symm_find(const weft_group *group, const void *pointer, size_t bytes, weft_symm_place *place)
{
    int window = window_of(group, pointer, bytes);

    if (window < 0)
        return false;
    *place =
        (int64_t)((const char *)pointer - slot_of(group, group->rank, window)) * WEFT_WINDOWS_MAX + window;
    return true;
}

/* Whoever has a mapping of its own needs access to every member's memory, threads each give theirs. */
static bool grant(const weft_group *group, int zone, uint64_t from, uint64_t to)
{
    bool granted = true;

    for (int rank = 0; granted && rank < group->size; rank++)
        if (group->world->processes || rank == group->rank)
            granted = weft_segment_grant(slot_of(group, rank, group->window) +
                                             zone_begin(&group->world->segment, zone) + from,
                                         to - from);
    return granted;
}

/* Access to a zone up to `end`. */
static bool open_zone(weft_group *group, int zone, uint64_t end)
{
    uint64_t *opened = weft_symm_opened(group, zone), room = zone_bytes(&group->world->segment, zone);
    uint64_t more = *opened + *opened / GRANT_PARTS;

    if (end <= *opened)
        return true;
    end = weft_max_bytes(end, more);
    end = weft_round_up_bytes(end, GRANT_BYTES);
    end = weft_min_bytes(end, room);
    if (!grant(group, zone, *opened, end))
        return false;
    *opened = end;
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

/* Makes memory present, as its owner. False when the system has none. */
static bool present(const weft_group *group, char *memory, uint64_t bytes)
{
    bool huge = bytes >= HUGE_FROM_BYTES && strcmp(weft_env_word(WEFT_ENV_HUGE), "off") != 0;

    if (huge && bytes >= FRESH_BYTES)
        madvise(memory, bytes, MADV_HUGEPAGE);
    if (!weft_segment_populate(&group->world->segment, memory, bytes))
        return false;
    if (huge)
        collapse(memory, bytes);
    return true;
}

/* Makes the block zero and present. Small blocks that lay here before left their pages behind, and so did
 * large ones if they are locked. */
static bool prepare(const weft_group *group, char *memory, uint64_t bytes)
{
    bool fresh = bytes >= FRESH_BYTES && weft_segment_discard(&group->world->segment, memory, bytes);

    if (!present(group, memory, bytes))
        return false;
    if (!fresh)
        memset(memory, 0, bytes);
    return true;
}

/* Large blocks begin with a huge page and cover whole pages, so that they can be given back without touching
 * a neighbour. */
static void shape(uint64_t *bytes, uint64_t *alignment)
{
    uint64_t unit = *bytes >= FRESH_BYTES ? FRESH_UNIT : WEFT_HEAP_UNIT;
    uint64_t least = *bytes >= FRESH_BYTES ? WEFT_HUGE_BYTES : WEFT_HEAP_UNIT;

    *bytes = *bytes ? weft_round_up_bytes(*bytes, unit) : unit;
    if (*alignment < least)
        *alignment = least;
}

/* Nothing of an object that lay here before is seen in the new one: what a far rank shows of it comes after
 * its own part is ready, and that after this. Pages that were never shown are not touched. */
static void clear_shadow(char *memory, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory, end = begin + bytes;
    uintptr_t first = weft_round_up_bytes(begin, page), last = end / page * page;

    if (first >= last) {
        memset(memory, 0, bytes);
        return;
    }
    memset(memory, 0, first - begin);
    madvise((void *)first, last - first, MADV_DONTNEED);
    memset((void *)last, 0, end - last);
}

/* Second half of an allocation: every rank says whether its part is ready. */
static weft_status confirm(weft_group *group, uint64_t bytes, bool ready)
{
    uint32_t mine = ready;
    weft_status status = weft_group_exchange(group, WEFT_SYNC_ALLOC, &mine, sizeof(mine));

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

static weft_status allocate(weft_group *group, size_t bytes, size_t alignment, bool staggered, void **pointer)
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
    ready = ask.taken && open_zone(group, b.zone, b.offset + b.bytes) &&
            prepare(group, block_begin(group, &b), b.bytes);
    for (int rank = 0; ready && group->spread && rank < group->size; rank++)
        if (weft_group_far(group, rank))
            clear_shadow(weft_symm_peer(group, block_begin(group, &b), rank), b.bytes);
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
    return allocate(group, bytes, alignment, false, pointer);
}

weft_status weft_symm_alloc_staggered(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    return allocate(group, bytes, alignment, bytes >= STAGGER_FROM_BYTES && alignment <= WEFT_STAGGER_UNIT,
                    pointer);
}

char *weft_symm_own(weft_group *group, size_t bytes)
{
    weft_member *member = weft_group_member(group);
    uint64_t *held = weft_symm_own_bytes(group), wanted = bytes, left;
    char *memory = zone_base(group, WEFT_ZONE_OWN);

    if (!held) {
        weft_error_set(&group->error, WEFT_ERR_MEMORY, "rank %d has no memory for symmetric objects",
                       group->rank);
        return NULL;
    }
    if (wanted <= *held)
        return memory;
    left = group->world->segment.header->heap_bytes - member->heap_used;
    wanted = weft_round_up_bytes(wanted, FRESH_UNIT);
    if (wanted < bytes || wanted - *held > left) {
        weft_error_set(
            &group->error, WEFT_ERR_MEMORY,
            "operands that are not in memory of weft_alloc need %llu bytes of it to pass through; rank "
            "%d has %llu of %llu bytes left (WEFT_HEAP sets how much a rank may have)",
            (unsigned long long)(wanted - *held), group->rank, (unsigned long long)left,
            (unsigned long long)group->world->segment.header->heap_bytes);
        return NULL;
    }
    if (!weft_segment_grant(memory + *held, wanted - *held) ||
        !present(group, memory + *held, wanted - *held)) {
        weft_error_set(
            &group->error, WEFT_ERR_MEMORY,
            "operands that are not in memory of weft_alloc need %llu bytes of it to pass through; the "
            "system has no memory for them on rank %d",
            (unsigned long long)(wanted - *held), group->rank);
        return NULL;
    }
    member->heap_used += wanted - *held;
    *held = wanted;
    return memory;
}

uint64_t weft_symm_own_size(const weft_group *group)
{
    const uint64_t *held = weft_symm_own_bytes((weft_group *)group);

    return held ? *held : 0;
}

bool weft_symm_open_own(const weft_group *group, int rank, uint64_t bytes)
{
    return !group->world->processes ||
           weft_segment_grant(slot_of(group, rank, group->window) +
                                  zone_begin(&group->world->segment, WEFT_ZONE_OWN),
                              bytes);
}

void *weft_symm_at(const weft_group *group, int rank, weft_symm_place place)
{
    return slot_of(group, rank, (int)(place % WEFT_WINDOWS_MAX)) + place / WEFT_WINDOWS_MAX;
}

void *weft_symm_reach(const weft_group *group, const void *pointer, int rank)
{
    const weft_segment *segment = &group->world->segment;
    int window = window_of(group, pointer, 0);
    char *there = weft_symm_peer(group, pointer, rank);
    uint64_t at = window < 0 ? 0
                             : (uint64_t)((const char *)pointer - slot_of(group, group->rank, window)) -
                                   zone_begin(segment, WEFT_ZONE_STAGGERED);

    if (window >= 0 && at < zone_bytes(segment, WEFT_ZONE_STAGGERED))
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
