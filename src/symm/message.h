/* Messages from one rank of a group to another, in which nobody else takes part. */
#ifndef WEFT_SYMM_MESSAGE_H
#define WEFT_SYMM_MESSAGE_H

#include "symm/symm.h"

/* Returns when the receiver has all of it. */
weft_status weft_message_send(weft_group *group, const void *data, size_t bytes, int to);
weft_status weft_message_recv(weft_group *group, void *data, size_t bytes, int from);

#endif
