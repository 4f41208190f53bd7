/* Handing file descriptors around a group: memory of a GPU can be shared between processes only so. */
#ifndef WEFT_GROUP_PASS_H
#define WEFT_GROUP_PASS_H

#include "group/sync.h"

/*
 * Collective: every rank gives a descriptor and receives one of every rank, its own included, in fds[rank].
 * The received ones are the caller's to close; the given one stays the caller's too. A failure poisons the
 * group, for a rank that cannot pass on its descriptor leaves its peers without it.
 */
weft_status weft_group_pass(weft_group *group, weft_sync_kind kind, int fd, int *fds);

#endif
