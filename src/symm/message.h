/* Messages from one rank of a group to another, in which nobody else takes part. */
#ifndef WEFT_SYMM_MESSAGE_H
#define WEFT_SYMM_MESSAGE_H

#include "symm/symm.h"

/* Returns when the receiver has all of it. Of another count or type than it wants to receive, the group is
 * lost. */
weft_status weft_message_send(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to);
weft_status weft_message_recv(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from);

#endif
