/*
 * Memory between two pages that nobody may touch. It begins right after the first or ends right before the
 * second, in turn, so that a step beyond either end is a fault sooner or later.
 */
#ifndef WEFT_TESTS_SUPPORT_GUARD_H
#define WEFT_TESTS_SUPPORT_GUARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct guarded {
    void *map;
    size_t map_bytes;
    void *data;
} guarded;

static inline guarded guarded_make(size_t bytes)
{
    static _Atomic unsigned turn;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = (bytes + page - 1) / page * page;
    guarded g = {.map_bytes = span + 2 * page};

    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || (span && mprotect((char *)g.map + page, span, PROT_READ | PROT_WRITE)))
        abort();
    g.data = (char *)g.map + page;
    if (atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % 2)
        g.data = (char *)g.data + (span - bytes);
    return g;
}

static inline void guarded_drop(guarded *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    g->map = NULL;
}

#endif
