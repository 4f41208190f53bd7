/*
 * Members of a group on other nodes: what a rank writes into its own slot for all to see is shown to them,
 * since they cannot look. In a group without such members every function here does nothing.
 */
#ifndef WEFT_GROUP_FAR_H
#define WEFT_GROUP_FAR_H

#include "group/group.h"
#include "net/net.h"

static inline bool weft_group_far(const weft_group *group, int rank)
{
    return group->seats[rank].far;
}

/* What the world's net calls. */
weft_net_hooks weft_far_hooks(weft_world *world);

/* Shows `bytes` of the rank's own slot to a far member, or to all of them, and then the value that a signal
 * in that slot, which only this rank writes, has now. */
void weft_far_show_to(weft_group *group, int rank, const void *memory, size_t bytes, weft_signal *signal);
void weft_far_show(weft_group *group, const void *memory, size_t bytes, weft_signal *signal);

/* Tells far members why the group has failed. */
void weft_far_poison(weft_group *group);

/* Tells all far ranks of the world that this one has left the group in a window. */
void weft_far_leave(weft_group *group);

#endif
