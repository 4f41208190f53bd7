/* See arena.h. */
#include "run/cuda/arena.h"

#include "core/round.h"
#include "run/cuda/group.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 1024 };
#define PIECE_LEAST ((size_t)32 << 20)
#define PIECE_MOST ((size_t)128 << 20) /* where a plan does not need more */

/* A place in the list for one more region. */
static bool make_room(weft_cuda_arena *a)
{
    int room = a->room ? 2 * a->room : 64;
    weft_cuda_region *grown;

    if (a->count < a->room)
        return true;
    grown = realloc(a->regions, (size_t)room * sizeof(*grown));
    if (!grown)
        return false;
    a->regions = grown;
    a->room = room;
    return true;
}

char *weft_cuda_arena_take(weft_cuda_arena *a, size_t bytes)
{
    bytes = weft_round_up_bytes(bytes, ALIGNMENT);
    for (int i = 0; i < a->count; i++) {
        weft_cuda_region *r = &a->regions[i];

        if (r->state != WEFT_CUDA_REGION_CLEAN || r->bytes < bytes)
            continue;
        if (r->bytes > bytes) {
            if (!make_room(a))
                return NULL;
            r = &a->regions[i];
            memmove(r + 1, r, (size_t)(a->count++ - i) * sizeof(*r));
            r[1] = (weft_cuda_region){r->at + bytes, r->bytes - bytes, WEFT_CUDA_REGION_CLEAN, false};
            r->bytes = bytes;
        }
        r->state = WEFT_CUDA_REGION_TAKEN;
        return r->at;
    }
    return NULL;
}

void weft_cuda_arena_give(weft_cuda_arena *a, const char *at)
{
    for (int i = 0; i < a->count; i++)
        if (a->regions[i].at == at)
            a->regions[i].state = WEFT_CUDA_REGION_GIVEN;
}

bool weft_cuda_arena_could(const weft_cuda_arena *a, size_t bytes)
{
    size_t run = 0;

    bytes = weft_round_up_bytes(bytes, ALIGNMENT);
    for (int i = 0; i < a->count; i++) {
        const weft_cuda_region *r = &a->regions[i];

        run = r->state == WEFT_CUDA_REGION_TAKEN ? 0 : r->first ? r->bytes : run + r->bytes;
        if (run >= bytes)
            return true;
    }
    return false;
}

void weft_cuda_arena_swept(weft_cuda_arena *a)
{
    int kept = 0;

    for (int i = 0; i < a->count; i++) {
        weft_cuda_region r = a->regions[i];

        if (r.state == WEFT_CUDA_REGION_GIVEN)
            r.state = WEFT_CUDA_REGION_CLEAN;
        if (kept && !r.first && r.state == WEFT_CUDA_REGION_CLEAN &&
            a->regions[kept - 1].state == WEFT_CUDA_REGION_CLEAN)
            a->regions[kept - 1].bytes += r.bytes;
        else
            a->regions[kept++] = r;
    }
    a->count = kept;
}

weft_status weft_cuda_arena_grow(weft_group *group, weft_cuda_arena *a, size_t bytes)
{
    size_t piece = weft_max_bytes(PIECE_LEAST, weft_min_bytes(a->bytes, PIECE_MOST));
    void *memory;
    weft_status status;

    bytes = weft_round_up_bytes(bytes, ALIGNMENT);
    piece = weft_max_bytes(piece, bytes);
    status = weft_cuda_alloc(group, piece, ALIGNMENT, &memory);
    if (status != WEFT_OK && bytes && bytes < piece && weft_group_check(group) == WEFT_OK)
        status = weft_cuda_alloc(group, piece = bytes, ALIGNMENT, &memory); /* there is less left */
    if (status != WEFT_OK)
        return status;
    if (!make_room(a))
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its plans", group->rank);
    a->regions[a->count++] = (weft_cuda_region){memory, piece, WEFT_CUDA_REGION_CLEAN, true};
    a->bytes += piece;
    return WEFT_OK;
}

void weft_cuda_arena_free(weft_cuda_arena *a)
{
    free(a->regions);
    *a = (weft_cuda_arena){0};
}
