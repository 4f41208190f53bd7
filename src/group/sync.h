/*
 * The collective calls of the group layer, all made of one thing: the sync (sync.c). Every rank of the group
 * makes the same ones in the same order.
 */
#ifndef WEFT_GROUP_SYNC_H
#define WEFT_GROUP_SYNC_H

#include "group/sync_kind.h"
#include "group/group.h"
#include "group/wait.h"

/* Waits until every rank has come to the same call; what ranks wrote before it is visible after it. */
weft_status weft_group_sync(weft_group *group, weft_sync_kind kind);

/* Shows `bytes` (at most WEFT_BOARD_BYTES) of `mine` to the others. After it weft_group_board gives what
 * each rank showed, until this rank begins its next collective call. */
weft_status weft_group_exchange(weft_group *group, weft_sync_kind kind, const void *mine, size_t bytes);
const void *weft_group_board(const weft_group *group, int rank);

/* Comes to the exchange that begins the others' call only to say that this rank rejected its arguments:
 * group->error holds the sentence, and that error is returned. The exchange of those who did not reject
 * theirs returns WEFT_ERR_PEER, with that sentence in theirs. The group stays usable. */
weft_status weft_group_reject(weft_group *group, weft_sync_kind kind);

weft_status weft_group_barrier(weft_group *group);

/* Copies `bytes` from rank `root` to every rank. For small things; any size works. */
weft_status weft_group_broadcast(weft_group *group, int root, void *data, size_t bytes);

/* WEFT_OK when every rank gave the same hash; otherwise WEFT_ERR_MISMATCH on every rank, with a sentence
 * that shows two of the differing descriptions. The group stays usable. */
weft_status weft_group_agree(weft_group *group, const char *what, uint64_t hash, const char *described);

#endif
