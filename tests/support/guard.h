/*
 * Memory between two pages that nobody may touch. It begins right after the first or ends right before the
 * second, in turn, so that a step beyond either end is a fault sooner or later. It can be cut out of a block
 * that is there: symmetric memory, whose pages are the same for all ranks that are threads.
 */
#ifndef WEFT_TESTS_SUPPORT_GUARD_H
#define WEFT_TESTS_SUPPORT_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct guarded {
    void *map;
    size_t map_bytes;
    bool lent; /* of a block */
    void *data;
} guarded;

/* Closes all pages but those of the data, and puts it to one of their ends. */
static inline void guarded_close(guarded *g, size_t bytes)
{
    static _Atomic unsigned turn;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = g->map_bytes - 2 * page;

    if (mprotect(g->map, page, PROT_NONE) || mprotect((char *)g->map + page + span, page, PROT_NONE))
        abort();
    g->data = (char *)g->map + page;
    if (atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % 2)
        g->data = (char *)g->data + (span - bytes);
}

static inline size_t guarded_bytes(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page + 2 * page;
}

static inline guarded guarded_make(size_t bytes)
{
    guarded g = {.map_bytes = guarded_bytes(bytes)};

    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED)
        abort();
    guarded_close(&g, bytes);
    return g;
}

/* From the block's next whole pages; `*block` goes on behind them. */
static inline guarded guarded_cut(char **block, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded g = {.map_bytes = guarded_bytes(bytes), .lent = true};

    g.map = *block + (page - (uintptr_t)*block % page) % page;
    *block = (char *)g.map + g.map_bytes;
    guarded_close(&g, bytes);
    return g;
}

static inline void guarded_drop(guarded *g)
{
    if (g->map && g->lent && mprotect(g->map, g->map_bytes, PROT_READ | PROT_WRITE))
        abort();
    if (g->map && !g->lent)
        munmap(g->map, g->map_bytes);
    g->map = NULL;
}

#endif
