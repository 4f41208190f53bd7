/*
 * Places for symmetric objects. Every rank keeps the same heaps, because all make the same allocations in the
 * same order; freeing is each rank's own affair.
 *
 * An object has a lease: a word in the window of the group's rank 0 that counts the ranks which have let go
 * of it. Whoever makes the count complete may clear the memory and then adds one more, which settles it. Rank
 * 0 decides when a settled place is free again: it names such places when the ranks meet for an allocation,
 * so that all heaps change in the same step. Who finds no room meets once more, for by then every rank has
 * come and what they freed before is there to see. A far rank counts by a message, and does not learn what it
 * makes the count: there nobody clears, and all having let go settles it.
 */
#include "symm/symm.h"

#include <stdlib.h>
#include <string.h>

#include "group/far.h"
#include "symm/room.h"

enum {
    PLACES = 128, /* named in one meeting; the others in the next */
    LEASES_BEGIN = WEFT_CONTROL_BYTES,
    LEASES_A_PAGE = 1024, /* of the smallest pages there are */
    LEASES_MAX = (WEFT_MAILBOX_BEGIN - LEASES_BEGIN) / 4,
};

#define LET_GO 0x80000000u /* in the tag of a block, whose rest is the number of its lease */

typedef struct place {
    uint32_t zone;
    uint64_t offset;
} place;

typedef struct weft_symm {
    weft_heap *heaps[WEFT_ZONES];
    const char *where; /* the lent one's memory is */
    uint64_t opened[WEFT_ZONES], own_bytes;
    unsigned char *met;
    uint32_t *leases; /* numbers to use again; room for all that were made */
    uint32_t lease_count, leases_made;
    place *gone; /* places this rank has let go of and that are not free yet; rank 0 only */
    uint32_t gone_count, gone_room;
} weft_symm;

/* What each rank puts on the board when it asks for memory. */
typedef struct request {
    uint64_t bytes, alignment;
    uint64_t left;
    uint32_t entry; /* weft_entry: memory may be for a call's own use */
    uint32_t place_count;
    place places[PLACES]; /* rank 0: that are free from here on */
} request;

_Static_assert(sizeof(request) <= WEFT_BOARD_BYTES, "a request fits on the board");

static _Atomic uint32_t *lease_word(const weft_group *group, uint32_t lease)
{
    return (_Atomic uint32_t *)((char *)group->seats[0].control + LEASES_BEGIN) + lease;
}

static weft_symm *symm_of(weft_group *group)
{
    if (!group->symm)
        group->symm = calloc(1, sizeof(*group->symm));
    return group->symm;
}

weft_heap *weft_symm_heap(const weft_group *group, int zone)
{
    return group->symm ? group->symm->heaps[zone] : NULL;
}

bool weft_symm_lend_zone(weft_group *group, weft_heap *heap, const char *where)
{
    if (heap ? !symm_of(group) : !group->symm)
        return false;
    group->symm->heaps[WEFT_ZONE_LENT] = heap;
    group->symm->where = where;
    return true;
}

bool weft_symm_make_heap(weft_group *group, int zone, uint64_t bytes)
{
    weft_symm *symm = symm_of(group);

    if (symm && !symm->heaps[zone])
        symm->heaps[zone] = weft_heap_create(bytes);
    return symm && symm->heaps[zone];
}

uint64_t *weft_symm_opened(weft_group *group, int zone)
{
    return &group->symm->opened[zone];
}

uint64_t *weft_symm_own_bytes(weft_group *group)
{
    weft_symm *symm = symm_of(group);

    return symm ? &symm->own_bytes : NULL;
}

unsigned char *weft_symm_met(weft_group *group)
{
    weft_symm *symm = symm_of(group);

    if (symm && !symm->met)
        symm->met = calloc((size_t)group->size, 1);
    return symm ? symm->met : NULL;
}

void weft_symm_detach(weft_group *group)
{
    weft_symm *symm = group->symm;

    if (!symm)
        return;
    for (int zone = 0; zone < WEFT_ZONE_LENT; zone++) {
        if (!symm->heaps[zone])
            continue;
        weft_group_member(group)->heap_used -= weft_heap_used(symm->heaps[zone]);
        weft_heap_destroy(symm->heaps[zone]);
    }
    weft_group_member(group)->heap_used -= symm->own_bytes;
    free(symm->met);
    free(symm->leases);
    free(symm->gone);
    free(symm);
    group->symm = NULL;
}

/* ---- leases --------------------------------------------------------------------------------------- */

/* A number that no object has: the same on every rank. False when there is no memory or none is left. */
static bool take_lease(weft_group *group, uint32_t *lease)
{
    weft_symm *symm = group->symm;

    if (symm->lease_count) {
        *lease = symm->leases[--symm->lease_count];
        return true;
    }
    if (symm->leases_made == LEASES_MAX)
        return false;
    if ((symm->leases_made & (symm->leases_made - 1)) == 0) { /* a power of two: twice as many */
        uint32_t *more =
            realloc(symm->leases, sizeof(*more) * (symm->leases_made ? symm->leases_made * 2 : 1));

        if (!more)
            return false;
        symm->leases = more;
    }
    if (group->rank == 0 && symm->leases_made % LEASES_A_PAGE == 0 &&
        !weft_segment_populate(&group->world->segment, (void *)lease_word(group, symm->leases_made), 4096))
        return false;
    *lease = symm->leases_made++;
    return true;
}

uint64_t weft_symm_held(const weft_group *group, int zone, uint64_t offset)
{
    weft_heap *heap = weft_symm_heap(group, zone);
    uint64_t bytes = heap ? weft_heap_size(heap, offset) : 0;

    return bytes && !(*weft_heap_tag(heap, offset) & LET_GO) ? bytes : 0;
}

/* Remembers, on rank 0, what to ask the lease of. Without memory for that the place stays taken. */
static void remember(weft_symm *symm, int zone, uint64_t offset)
{
    if (symm->gone_count == symm->gone_room) {
        uint32_t room = symm->gone_room ? symm->gone_room * 2 : 64;
        place *more = realloc(symm->gone, room * sizeof(*more));

        if (!more)
            return;
        symm->gone = more;
        symm->gone_room = room;
    }
    symm->gone[symm->gone_count++] = (place){(uint32_t)zone, offset};
}

static bool let_go_far(weft_group *group, int zone, uint64_t offset)
{
    uint32_t *tag = weft_heap_tag(group->symm->heaps[zone], offset);
    weft_net_put put = {
        .effect = WEFT_NET_COUNT, .post_count = 1, .posts = {{(void *)lease_word(group, *tag), 1}}};

    if (weft_group_far(group, 0))
        weft_net_send(group->world->net, group->seats[0].world_rank, &put, NULL);
    else
        /* Partner: name_settled. */
        atomic_fetch_add_explicit(lease_word(group, *tag), 1, memory_order_acq_rel);
    *tag |= LET_GO;
    if (group->rank == 0)
        remember(group->symm, zone, offset);
    return false;
}

bool weft_symm_let_go(weft_group *group, int zone, uint64_t offset)
{
    uint32_t *tag = weft_heap_tag(group->symm->heaps[zone], offset), before;

    if (group->spread)
        return let_go_far(group, zone, offset);
    /* Partners: the same on the other ranks. What each did with the memory is before its count. */
    before = atomic_fetch_add_explicit(lease_word(group, *tag), 1, memory_order_acq_rel);
    *tag |= LET_GO;
    if (group->rank == 0)
        remember(group->symm, zone, offset);
    return before + 1 == (uint32_t)group->size;
}

void weft_symm_settle(weft_group *group, int zone, uint64_t offset)
{
    uint32_t lease = *weft_heap_tag(group->symm->heaps[zone], offset) & ~LET_GO;

    /* Partner: name_settled. */
    atomic_fetch_add_explicit(lease_word(group, lease), 1, memory_order_release);
}

void weft_symm_give(weft_group *group, int zone, uint64_t offset)
{
    weft_symm *symm = group->symm;
    weft_heap *heap = symm->heaps[zone];

    symm->leases[symm->lease_count++] = *weft_heap_tag(heap, offset) & ~LET_GO;
    weft_heap_give(heap, offset);
}

/* Rank 0: which places are free from now on. Their leases begin anew. */
static void name_settled(weft_group *group, request *mine)
{
    weft_symm *symm = group->symm;
    uint32_t kept = 0;

    for (uint32_t i = 0; symm && i < symm->gone_count; i++) {
        place at = symm->gone[i];
        _Atomic uint32_t *word = lease_word(group, *weft_heap_tag(symm->heaps[at.zone], at.offset) & ~LET_GO);

        /* Partner: weft_symm_settle. */
        if (mine->place_count < PLACES &&
            atomic_load_explicit(word, memory_order_acquire) == (uint32_t)group->size + !group->spread) {
            atomic_store_explicit(word, 0, memory_order_relaxed); /* told to the others by the exchange */
            mine->places[mine->place_count++] = at;
        } else
            symm->gone[kept++] = at;
    }
    if (symm)
        symm->gone_count = kept;
}

/* Gives the places that rank 0 named; returns the bytes of the budget that came back. */
static uint64_t give_named(weft_group *group, const request *first)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < first->place_count; i++) {
        place at = first->places[i];

        if (at.zone != WEFT_ZONE_LENT)
            bytes += weft_heap_size(group->symm->heaps[at.zone], at.offset);
        weft_symm_give(group, (int)at.zone, at.offset);
    }
    weft_group_member(group)->heap_used -= bytes;
    return bytes;
}

/* ---- finding room --------------------------------------------------------------------------------- */

/* Compares what the ranks ask for. The outcome is the same everywhere. */
static weft_status compare(weft_group *group, int *least)
{
    const request *first = weft_group_board(group, 0);

    *least = 0;
    for (int rank = 1; rank < group->size; rank++) {
        const request *other = weft_group_board(group, rank);

        bool differ = other->bytes != first->bytes || other->alignment != first->alignment;

        /* Memory of a call's own use is not weft_alloc's, even where as much is asked for. */
        if (other->entry != first->entry &&
            (differ || other->entry == WEFT_ENTRY_ALLOC || first->entry == WEFT_ENTRY_ALLOC))
            return weft_group_poison(
                group, WEFT_ERR_MISMATCH,
                "the ranks made different calls: rank 0 %s, rank %d %s; both need memory",
                weft_entry_name(first->entry), rank, weft_entry_name(other->entry));
        if (differ)
            return weft_error_set(&group->error, WEFT_ERR_MISMATCH,
                                  "%s: rank 0 asks for %llu bytes aligned to %llu, rank %d for %llu "
                                  "aligned to %llu; all ranks must ask for the same",
                                  weft_entry_name(first->entry), (unsigned long long)first->bytes,
                                  (unsigned long long)first->alignment, rank,
                                  (unsigned long long)other->bytes, (unsigned long long)other->alignment);
        if (other->left < ((const request *)weft_group_board(group, *least))->left)
            *least = rank;
    }
    /* Checked here rather than by the entry point, so that no rank waits for one that was turned away. */
    if (first->alignment & (first->alignment - 1) || first->alignment > WEFT_ALIGNMENT_MAX)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_alloc: alignment is %llu; it must be 0 or a power of two up to %d",
                              (unsigned long long)first->alignment, WEFT_ALIGNMENT_MAX);
    return WEFT_OK;
}

/* The first zone that has room, or -1: the same on every rank. */
static int choose_zone(const weft_group *group, const weft_symm_ask *ask, uint64_t left)
{
    for (int i = 0; i < ask->zones; i++) {
        const weft_heap *heap = weft_symm_heap(group, ask->in[i].zone);

        if (heap && ask->in[i].bytes <= left && weft_heap_fits(heap, ask->in[i].bytes, ask->in[i].alignment))
            return i;
    }
    return -1;
}

static weft_status fail_room(weft_group *group, const weft_symm_ask *ask, int least, uint64_t left)
{
    const weft_heap *heap = weft_symm_heap(group, ask->in[0].zone);

    if (ask->in[0].zone == WEFT_ZONE_LENT)
        return weft_error_set(
            &group->error, WEFT_ERR_MEMORY,
            "weft_alloc of %llu bytes: the group has no room for them %s; %llu bytes are in use",
            (unsigned long long)ask->bytes, group->symm->where,
            (unsigned long long)(heap ? weft_heap_used(heap) : 0));
    if (ask->in[ask->zones - 1].bytes > left)
        return weft_error_set(&group->error, WEFT_ERR_MEMORY,
                              "weft_alloc of %llu bytes: rank %d has %llu of %llu bytes left; WEFT_HEAP sets "
                              "how much a rank may have",
                              (unsigned long long)ask->bytes, least, (unsigned long long)left,
                              (unsigned long long)group->world->segment.header->heap_bytes);
    return weft_error_set(
        &group->error, WEFT_ERR_MEMORY,
        "weft_alloc of %llu bytes: rank %d has that much left of %llu, but not in one piece",
        (unsigned long long)ask->bytes, least, (unsigned long long)group->world->segment.header->heap_bytes);
}

weft_status weft_symm_find_room(weft_group *group, weft_symm_ask *ask)
{
    for (int meeting = 0;; meeting++) {
        request mine = {
            .bytes = ask->bytes, .alignment = ask->alignment, .left = ask->left, .entry = group->entry};
        const request *first;
        uint64_t left;
        uint32_t lease;
        weft_status status = weft_group_check(group);
        int least, chosen;

        if (status != WEFT_OK)
            return status;
        if (group->rank == 0)
            name_settled(group, &mine);
        status = weft_group_exchange(group, WEFT_SYNC_ALLOC, &mine,
                                     offsetof(request, places) + mine.place_count * sizeof(place));
        if (status != WEFT_OK)
            return status;
        first = weft_group_board(group, 0);
        left = give_named(group, first); /* the same on every rank */
        ask->left = ask->left == UINT64_MAX ? ask->left : ask->left + left;
        status = compare(group, &least);
        if (status != WEFT_OK)
            return status;
        left += ((const request *)weft_group_board(group, least))->left;
        if (ask->in[0].zone == WEFT_ZONE_LENT)
            left = UINT64_MAX; /* who lends it says when there is no more */
        chosen = choose_zone(group, ask, left);
        if (chosen < 0 && (meeting == 0 || first->place_count))
            continue;
        if (chosen < 0)
            return fail_room(group, ask, least, left);
        ask->zone = ask->in[chosen].zone;
        ask->taken = take_lease(group, &lease);
        if (ask->taken) {
            weft_heap *heap = group->symm->heaps[ask->zone];

            ask->taken = weft_heap_take(heap, ask->in[chosen].bytes, ask->in[chosen].alignment, &ask->offset);
            if (ask->taken) {
                *weft_heap_tag(heap, ask->offset) = lease;
                ask->zone_bytes = weft_heap_size(heap, ask->offset);
            } else
                group->symm->leases[group->symm->lease_count++] = lease;
        }
        return WEFT_OK;
    }
}
