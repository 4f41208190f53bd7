/*
 * Symmetric memory for plans that every rank makes by itself (unmet.h). All ranks take and give at the same
 * points of their calls, so that each finds the same places without asking. A plan begins in memory that is
 * zero on all ranks: its signals only grow, and its inboxes are empty. What was given is not, until it is
 * swept.
 */
#ifndef WEFT_RUN_CUDA_ARENA_H
#define WEFT_RUN_CUDA_ARENA_H

#include "group/group.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum weft_cuda_region_state {
    WEFT_CUDA_REGION_CLEAN, /* zero, and nobody's */
    WEFT_CUDA_REGION_TAKEN,
    WEFT_CUDA_REGION_GIVEN, /* nobody's, as it was left */
} weft_cuda_region_state;

typedef struct weft_cuda_region {
    char *at;
    size_t bytes;
    weft_cuda_region_state state;
    bool first; /* of a piece that was added: nothing before it belongs to the arena */
} weft_cuda_region;

typedef struct weft_cuda_arena {
    weft_cuda_region *regions; /* those of a piece one after another, in the order of their addresses */
    int count, room;
    size_t bytes; /* in all */
} weft_cuda_arena;

/* Clean memory; NULL where there is none of that size. */
char *weft_cuda_arena_take(weft_cuda_arena *arena, size_t bytes);
void weft_cuda_arena_give(weft_cuda_arena *arena, const char *at);

/* Whether there would be, were everything clean that is nobody's. */
bool weft_cuda_arena_could(const weft_cuda_arena *arena, size_t bytes);

/* What was given is clean from here on: the caller has seen to that. */
void weft_cuda_arena_swept(weft_cuda_arena *arena);

/* Collective: adds memory, at least so many bytes of it. */
weft_status weft_cuda_arena_grow(weft_group *group, weft_cuda_arena *arena, size_t bytes);

/* Before the group goes, to which the memory belongs. */
void weft_cuda_arena_free(weft_cuda_arena *arena);

#endif
