/* Sub-groups that the ranks of a group make together. */
#ifndef WEFT_GROUP_SPLIT_H
#define WEFT_GROUP_SPLIT_H

#include "group/sync.h"

/* Collective: ranks of equal colour become a group, ranked by key; a negative colour gets NULL. */
weft_status weft_group_divide(weft_group *parent, int colour, int key, weft_group **sub);

#endif
