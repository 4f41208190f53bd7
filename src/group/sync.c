/*
 * The collective calls of the group layer, all made of one thing: the sync.
 *
 * A sync is a dissemination barrier of radix 4 (up to eight ranks: one round in which everybody watches
 * everybody). A rank has one word, on a line of its own that only it writes; in round i it writes the round
 * it has reached and waits for the words of the ranks at distances j * radix^i before it. A barrier of two
 * ranks is therefore one store and one load that misses.
 *
 * Ranks of several nodes meet in one round: what a rank shows reaches each of the others by itself, and only
 * its own word says that it is there.
 *
 * The word also names the call. Of two ranks in the same sync, at least one finds the other still in it
 * (the first to leave has seen the other there), so different calls are always noticed.
 */
#include "group/sync.h"

#include <string.h>

#include "core/round.h"
#include "group/far.h"

static weft_status fail_call(weft_group *group, int peer, unsigned entry)
{
    const char *mine = weft_entry_name(group->entry), *theirs = weft_entry_name(entry);
    bool first = group->rank < peer;

    return weft_group_poison(
        group, WEFT_ERR_MISMATCH,
        "the ranks made different calls: rank %d %s, rank %d %s (collective call %llu of the group)",
        first ? group->rank : peer, first ? mine : theirs, first ? peer : group->rank, first ? theirs : mine,
        (unsigned long long)group->sync);
}

/* The sync, `board_bytes` of the rank's board being shown in it; SIZE_MAX: nothing. */
static weft_status meet(weft_group *group, weft_sync_kind kind, size_t board_bytes)
{
    weft_control *own = group->seats[group->rank].control;
    weft_wait_note note = {.op = weft_entry_name(group->entry), .task = -1, .kind = WEFT_WAIT_ENTER};
    uint64_t word, distance = 1;
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    word = ++group->sync << 16 | (uint64_t)group->entry << 4 | kind;
    note.epoch = group->sync;
    for (; distance < (uint64_t)group->size; distance *= (uint64_t)group->radix, word += 1 << 12) {
        weft_signal_store(&own->arrived, word);
        if (group->spread)
            weft_far_show(group, &own->shown[group->sync & 1],
                          board_bytes == SIZE_MAX ? 0 : offsetof(struct weft_shown, board) + board_bytes,
                          &own->arrived);
        for (int step = 1; step < group->radix && step * distance < (uint64_t)group->size; step++) {
            int peer = (int)((uint64_t)group->rank + (uint64_t)group->size - step * distance) % group->size;
            weft_signal *arrived = &group->seats[peer].control->arrived;
            uint64_t theirs;

            note.peer = peer;
            /* Only sync and round are waited for; the kind in the low bits is compared below. */
            status = weft_signal_wait(group, arrived, word & ~(uint64_t)0xfff, &note);
            if (status != WEFT_OK)
                return status;
            theirs = weft_signal_load(arrived);
            if (theirs >> 16 == group->sync && (theirs & 0xf) != kind)
                return fail_call(group, peer, theirs >> 4 & 0xff);
        }
    }
    return WEFT_OK;
}

weft_status weft_group_sync(weft_group *group, weft_sync_kind kind)
{
    return meet(group, kind, SIZE_MAX);
}

weft_status weft_group_barrier(weft_group *group)
{
    group->entry = WEFT_ENTRY_BARRIER;
    return weft_group_sync(group, WEFT_SYNC_BARRIER);
}

static weft_status show(weft_group *group, weft_sync_kind kind, const void *mine, size_t bytes, bool rejected)
{
    weft_control *own = group->seats[group->rank].control;
    unsigned parity = (group->sync + 1) & 1;
    /* Not before the check: a poisoned rank may be a sync behind, its peers reading this board. */
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    memcpy(own->shown[parity].board, mine, bytes);
    own->shown[parity].rejected = rejected;
    return meet(group, kind, bytes);
}

weft_status weft_group_exchange(weft_group *group, weft_sync_kind kind, const void *mine, size_t bytes)
{
    weft_status status = show(group, kind, mine, bytes, false);

    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++)
        if (group->seats[rank].control->shown[group->sync & 1].rejected)
            status = weft_error_set(&group->error, WEFT_ERR_PEER, "rank %d rejected its arguments: %.450s",
                                    rank, (const char *)weft_group_board(group, rank));
    return status;
}

weft_status weft_group_reject(weft_group *group, weft_sync_kind kind)
{
    weft_error_text own = group->error;
    weft_status status = show(group, kind, own.text, sizeof(own.text), true);

    return status == WEFT_OK ? own.status : status;
}

const void *weft_group_board(const weft_group *group, int rank)
{
    return group->seats[rank].control->shown[group->sync & 1].board;
}

typedef struct broadcast_piece {
    uint64_t root;
    uint64_t bytes;
    unsigned char data[WEFT_BOARD_BYTES - 16];
} broadcast_piece;

weft_status weft_group_broadcast(weft_group *group, int root, void *data, size_t bytes)
{
    broadcast_piece piece = {.root = (uint64_t)root, .bytes = bytes};
    unsigned char *cursor = data;
    size_t left = bytes;

    do {
        size_t part = weft_min_bytes(left, sizeof(piece.data));
        const broadcast_piece *sent;
        weft_status status;

        if (group->rank == root)
            memcpy(piece.data, cursor, part);
        status = weft_group_exchange(group, WEFT_SYNC_BROADCAST, &piece,
                                     offsetof(broadcast_piece, data) + (group->rank == root ? part : 0));
        if (status != WEFT_OK)
            return status;
        for (int peer = 0; peer < group->size; peer++) {
            const broadcast_piece *first = weft_group_board(group, 0), *other = weft_group_board(group, peer);

            if (first->root != other->root || first->bytes != other->bytes)
                return weft_error_set(&group->error, WEFT_ERR_MISMATCH,
                                      "broadcast: rank 0 expects %llu bytes from rank %llu, rank %d expects "
                                      "%llu bytes from rank %llu",
                                      (unsigned long long)first->bytes, (unsigned long long)first->root, peer,
                                      (unsigned long long)other->bytes, (unsigned long long)other->root);
        }
        sent = weft_group_board(group, root);
        if (group->rank != root)
            memcpy(cursor, sent->data, part);
        cursor += part;
        left -= part;
    } while (left > 0);
    return WEFT_OK;
}

typedef struct agreement {
    uint64_t hash;
    char what[64];
    char described[160];
} agreement;

static void copy_text(char *to, size_t bytes, const char *from)
{
    size_t length = strnlen(from, bytes - 1);

    memcpy(to, from, length);
    to[length] = 0;
}

weft_status weft_group_agree(weft_group *group, const char *what, uint64_t hash, const char *described)
{
    agreement mine = {.hash = weft_hash(hash, what, strlen(what))};
    const agreement *first;
    weft_status status;

    copy_text(mine.what, sizeof(mine.what), what);
    copy_text(mine.described, sizeof(mine.described), described);
    status = weft_group_exchange(group, WEFT_SYNC_AGREE, &mine, sizeof(mine));
    if (status != WEFT_OK)
        return status;
    first = weft_group_board(group, 0);
    for (int peer = 1; peer < group->size; peer++) {
        const agreement *other = weft_group_board(group, peer);

        if (other->hash != first->hash)
            return weft_error_set(&group->error, WEFT_ERR_MISMATCH,
                                  "the ranks ask for different things: rank 0 %s (%s), rank %d %s (%s)",
                                  first->what, first->described, peer, other->what, other->described);
    }
    return WEFT_OK;
}
