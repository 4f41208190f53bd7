/* What symm.c needs of room.c besides symm.h. */
#ifndef WEFT_SYMM_ROOM_H
#define WEFT_SYMM_ROOM_H

#include "symm/heap.h"
#include "symm/symm.h"

/* Makes the heap of a zone if it is not there; false without memory. */
bool weft_symm_make_heap(weft_group *group, int zone, uint64_t bytes);

/* Up to where this process has access to a zone: of a group that has heaps. */
uint64_t *weft_symm_opened(weft_group *group, int zone);

/* The bytes of the rank's own zone; NULL without memory for the bookkeeping. */
uint64_t *weft_symm_own_bytes(weft_group *group);

/* By rank, whether messages with it have memory to pass through (message.c); NULL without memory. */
unsigned char *weft_symm_met(weft_group *group);

/* NULL: it has not been made. */
weft_heap *weft_symm_heap(const weft_group *group, int zone);

#endif
