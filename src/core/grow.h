/* Lists that grow: a place for one more. */
#ifndef WEFT_CORE_GROW_H
#define WEFT_CORE_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Makes sure that an array of `*room` elements has a place for number `count`. False without memory: it is
 * then as it was. */
static inline bool weft_grow(void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    uint32_t wanted = *room ? 2 * *room : 64;
    void *more;

    if (count < *room)
        return true;
    more = wanted > *room ? realloc(*array, wanted * bytes) : NULL;
    if (!more)
        return false;
    *array = more;
    *room = wanted;
    return true;
}

#endif
