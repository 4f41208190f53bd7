/*
 * Sub-groups. A split is one exchange over the parent: every rank shows its colour, its key and which windows
 * of its slot are taken, and then knows all it needs. Ranks of one colour take the lowest window that is
 * free on all of them; ranks of different colours may take the same index, since their slots differ.
 */
#include <stdlib.h>
#include <string.h>

#include "group/group.h"

typedef struct ticket {
    int32_t colour, key;
    uint32_t windows;
} ticket;

/* Windows of freed sub-groups whose members have all left are free again. */
static void reclaim(weft_group *group)
{
    weft_member *member = weft_group_member(group);
    weft_vacated **link = &member->vacated;

    while (*link) {
        weft_vacated *it = *link;
        bool empty = true;

        for (int i = 0; i < it->size && empty; i++) {
            const weft_control *control =
                (weft_control *)weft_segment_window(&group->world->segment, it->members[i], it->window);

            /* Partner: weft_group_close. */
            empty = atomic_load_explicit(&control->left, memory_order_acquire) != 0 ||
                    weft_segment_left(&group->world->segment, it->members[i]);
        }
        if (!empty) {
            link = &it->next;
            continue;
        }
        weft_segment_discard(&group->world->segment, group->members[group->rank], it->window);
        member->windows &= ~(1u << it->window);
        *link = it->next;
        free(it);
    }
}

typedef struct seat {
    int key, parent_rank, world_rank;
} seat;

static int by_key(const void *a, const void *b)
{
    const seat *one = a, *two = b;

    if (one->key != two->key)
        return one->key < two->key ? -1 : 1;
    return one->parent_rank - two->parent_rank;
}

/* Who sits where in the sub-group of `colour`, and which windows its members have taken. */
static int seat_members(const weft_group *parent, int colour, seat *seats, uint32_t *windows)
{
    int size = 0;

    *windows = 0;
    for (int rank = 0; rank < parent->size; rank++) {
        const ticket *theirs = weft_group_board(parent, rank);

        if (theirs->colour != colour)
            continue;
        seats[size++] = (seat){theirs->key, rank, parent->members[rank]};
        *windows |= theirs->windows;
    }
    qsort(seats, (size_t)size, sizeof(*seats), by_key);
    return size;
}

static weft_status open_sub(weft_group *parent, int colour, weft_group **sub)
{
    seat seats[WEFT_RANKS_MAX];
    int members[WEFT_RANKS_MAX], self = 0, window;
    uint32_t taken;
    int size = seat_members(parent, colour, seats, &taken);
    weft_status status;

    for (int i = 0; i < size; i++) {
        members[i] = seats[i].world_rank;
        if (seats[i].parent_rank == parent->rank)
            self = i;
    }
    window = taken == UINT32_MAX ? 32 : __builtin_ctz(~taken);
    if (window >= parent->world->segment.header->windows)
        return weft_error_set(&parent->error, WEFT_ERR_MEMORY,
                              "weft_group_split: a rank is in %d groups already; free some first",
                              (int)parent->world->segment.header->windows);
    status = weft_group_open(parent->world, window, self, size, members, sub, &parent->error);
    if (status != WEFT_OK)
        return status;
    /* All who could still read the former group's block have left it. */
    memset((void *)(*sub)->control[self], 0, sizeof(weft_control));
    (*sub)->enter_ns = parent->enter_ns;
    (*sub)->progress_ns = parent->progress_ns;
    return WEFT_OK;
}

weft_status weft_group_divide(weft_group *parent, int colour, int key, weft_group **sub)
{
    ticket mine = {.colour = colour < 0 ? -1 : colour, .key = key};
    weft_group *made = NULL;
    weft_status own = WEFT_OK, status;
    int32_t shown;

    reclaim(parent);
    mine.windows = weft_group_member(parent)->windows;
    status = weft_group_exchange(parent, WEFT_CALL_SPLIT, &mine, sizeof(mine));
    if (status != WEFT_OK)
        return status;
    if (colour >= 0)
        own = open_sub(parent, colour, &made);

    /* Nobody uses a sub-group before all its blocks are clear, and either every rank has one or none has. */
    shown = (int32_t)own;
    status = weft_group_exchange(parent, WEFT_CALL_SPLIT, &shown, sizeof(shown));
    for (int rank = 0; status == WEFT_OK && rank < parent->size; rank++) {
        int32_t theirs = *(const int32_t *)weft_group_board(parent, rank);

        if (theirs != WEFT_OK)
            status =
                weft_error_set(&parent->error, (weft_status)theirs,
                               "weft_group_split failed on rank %d: it is in %d groups already, or out of "
                               "memory; free some groups first",
                               rank, (int)parent->world->segment.header->windows);
    }
    if (status != WEFT_OK) {
        if (made)
            weft_group_close(made);
        return status;
    }
    *sub = made;
    return WEFT_OK;
}
