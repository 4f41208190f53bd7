/*
 * Sub-groups. A split is two exchanges over the parent. In the first every rank shows its colour, its key and
 * which windows of its slot are taken: ranks of one colour take the lowest window that is free on all of
 * them; ranks of different colours may take the same index, since their slots differ. In the second
 * every rank says that its control block is ready, or that it failed.
 */
#include "group/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct split_request {
    int32_t colour, key;
    uint64_t windows;
} split_request;

typedef struct outcome {
    int32_t status;
    uint32_t left;  /* weft_seat.left of the rank in its sub-group */
    char text[256]; /* of the error */
} outcome;

typedef struct place {
    int key, parent_rank;
} place;

/* Windows of freed sub-groups whose members have all left are free again, and their memory the system's. */
static void reclaim(weft_group *group)
{
    weft_member *member = weft_group_member(group);
    weft_vacated **link = &member->vacated;

    while (*link) {
        weft_vacated *it = *link;
        bool empty = true;

        for (int i = 0; i < it->size && empty; i++)
            empty = weft_seat_empty(group->world, it->window, &it->seats[i]);
        if (!empty) {
            link = &it->next;
            continue;
        }
        if (!weft_segment_discard(&group->world->segment, it->seats[it->rank].control, WEFT_HUGE_BYTES))
            memset(it->seats[it->rank].control, 0, WEFT_HUGE_BYTES);
        member->windows &= ~((uint64_t)1 << it->window);
        *link = it->next;
        free(it);
    }
}

static int by_key(const void *a, const void *b)
{
    const place *one = a, *two = b;

    if (one->key != two->key)
        return one->key < two->key ? -1 : 1;
    return one->parent_rank - two->parent_rank;
}

/* Who sits where in the sub-group of `colour`, and which windows its members have taken. */
static int place_members(const weft_group *parent, int colour, place *places, uint64_t *windows)
{
    int size = 0;

    *windows = 0;
    for (int rank = 0; rank < parent->size; rank++) {
        const split_request *theirs = weft_group_board(parent, rank);

        if (theirs->colour != colour)
            continue;
        places[size++] = (place){theirs->key, rank};
        *windows |= theirs->windows;
    }
    qsort(places, (size_t)size, sizeof(*places), by_key);
    return size;
}

/* Memory of the parent and of those it was split from may be used in the sub-group: all its members have it.
 */
static bool remember_ancestors(const weft_group *parent, weft_group *sub)
{
    sub->ancestors = malloc(sizeof(*sub->ancestors) * (size_t)(parent->ancestor_count + 1));
    if (!sub->ancestors)
        return false;
    sub->ancestors[0] = (weft_ancestor){parent->window, parent->seats[parent->rank].left};
    if (parent->ancestor_count)
        memcpy(sub->ancestors + 1, parent->ancestors,
               sizeof(*sub->ancestors) * (size_t)parent->ancestor_count);
    sub->ancestor_count = parent->ancestor_count + 1;
    return true;
}

static weft_status open_sub(weft_group *parent, const place *places, int size, uint64_t windows,
                            weft_group **sub)
{
    int members[WEFT_RANKS_MAX], self = 0;
    int window = ~windows ? __builtin_ctzll(~windows) : WEFT_WINDOWS_MAX;
    weft_seat *seat;
    weft_status status;

    if (window >= parent->world->segment.header->windows)
        return weft_error_set(&parent->error, WEFT_ERR_MEMORY,
                              "it or one that it goes with is in %d groups already; free some first",
                              (int)parent->world->segment.header->windows);
    for (int i = 0; i < size; i++) {
        members[i] = parent->seats[places[i].parent_rank].world_rank;
        if (places[i].parent_rank == parent->rank)
            self = i;
    }
    status = weft_group_open(parent->world, window, self, size, members, sub, &parent->error);
    if (status != WEFT_OK)
        return status;
    seat = &(*sub)->seats[self];
    seat->left =
        atomic_load_explicit(&weft_seat_entry(parent->world, seat)->left[window], memory_order_relaxed) + 1;
    /* All who could still read the block of a former group here have left that group. */
    memset((void *)seat->control, 0, sizeof(*seat->control));
    for (int i = 0; i < size; i++) /* nobody shows anything in the new one before all have come to `settle` */
        if ((*sub)->seats[i].far)
            memset((void *)(*sub)->seats[i].control, 0, sizeof(*seat->control));
    (*sub)->enter_ns = parent->enter_ns;
    (*sub)->progress_ns = parent->progress_ns;
    if (!remember_ancestors(parent, *sub))
        return weft_error_set(&parent->error, WEFT_ERR_MEMORY, "out of memory for a group handle");
    return WEFT_OK;
}

/* Either every rank gets what it asked for, or all get the same error. */
static weft_status settle(weft_group *parent, const place *places, weft_group *sub, weft_status own)
{
    outcome mine = {.status = (int32_t)own, .left = sub ? sub->seats[sub->rank].left : 0};
    weft_status status;

    if (own != WEFT_OK)
        snprintf(mine.text, sizeof(mine.text), "%.255s", parent->error.text);
    status = weft_group_exchange(parent, WEFT_SYNC_SPLIT, &mine, sizeof(mine));
    if (status != WEFT_OK)
        return status;
    for (int rank = 0; rank < parent->size; rank++) {
        const outcome *theirs = weft_group_board(parent, rank);

        if (theirs->status != WEFT_OK)
            return weft_error_set(&parent->error, (weft_status)theirs->status,
                                  "weft_group_split failed on rank %d: %.255s", rank, theirs->text);
    }
    for (int i = 0; sub && i < sub->size; i++)
        sub->seats[i].left = ((const outcome *)weft_group_board(parent, places[i].parent_rank))->left;
    return WEFT_OK;
}

weft_status weft_group_divide(weft_group *parent, int colour, int key, weft_group **sub)
{
    split_request mine = {.colour = colour < 0 ? -1 : colour, .key = key};
    place places[WEFT_RANKS_MAX];
    weft_group *made = NULL;
    weft_status own = WEFT_OK, status;
    uint64_t windows;
    int size;

    reclaim(parent);
    mine.windows = weft_group_member(parent)->windows;
    status = weft_group_exchange(parent, WEFT_SYNC_SPLIT, &mine, sizeof(mine));
    if (status != WEFT_OK)
        return status;
    if (colour >= 0) {
        size = place_members(parent, colour, places, &windows);
        own = open_sub(parent, places, size, windows, &made);
    }
    status = settle(parent, places, made, own);
    if (status != WEFT_OK) {
        if (made) {
            weft_group_leave(made);
            weft_group_close(made);
        }
        return status;
    }
    *sub = made;
    return WEFT_OK;
}
