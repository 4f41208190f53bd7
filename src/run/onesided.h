/*
 * Programs' own use of symmetric memory (weft_put and its kin): what a backend does of it. Ranks have been
 * checked above (src/api/onesided.c), and that the memory is symmetric; what lies on another rank is given by
 * its address there, as `peer` of the backend says. All return when it is done.
 */
#ifndef WEFT_RUN_ONESIDED_H
#define WEFT_RUN_ONESIDED_H

#include "group/group.h"

typedef struct weft_onesided_ops {
    /* Whether [pointer, pointer + bytes) is symmetric memory of this rank. */
    bool (*holds)(const weft_group *group, const void *pointer, size_t bytes);
    /* Either end may be on another rank, or any memory of weft_memcpy. */
    weft_status (*move)(weft_group *group, void *to, const void *from, size_t bytes);
    /* Comes after everything that the caller did before. */
    weft_status (*post)(weft_group *group, void *signal, uint64_t add);
    /* For this rank's own signal; what the caller does next comes after what the posters did before. */
    weft_status (*wait)(weft_group *group, void *signal, uint64_t value, int from);
    weft_status (*add)(weft_group *group, int64_t *word, int64_t add, int64_t *before);
} weft_onesided_ops;

#endif
