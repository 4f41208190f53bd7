/* What symm.c needs of room.c besides symm.h. */
#ifndef WEFT_SYMM_ROOM_H
#define WEFT_SYMM_ROOM_H

#include "symm/heap.h"
#include "symm/symm.h"

/* Makes the heap of a zone if it is not there; false without memory. */
bool weft_symm_make_heap(weft_group *group, int zone, uint64_t bytes);

/* NULL: it has not been made. */
weft_heap *weft_symm_heap(const weft_group *group, int zone);

#endif
