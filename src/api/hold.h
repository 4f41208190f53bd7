/*
 * How long a handle lives. A garbage collector may free a group before the plans and layers that were made in
 * it: each of them holds the group, which its rank leaves when the user frees it, and which goes with the
 * last of them.
 */
#ifndef WEFT_API_HOLD_H
#define WEFT_API_HOLD_H

#include "group/group.h"

/* Something was made in the group, or freed. */
void weft_hold(weft_group *group);
void weft_hold_drop(weft_group *group);

/* The user frees the group. */
void weft_hold_end(weft_group *group);

#endif
