/*
 * Symmetric memory on GPUs: one reserved range of addresses with a slot of `stride` bytes per rank, so that
 * the object at p lies at p + (r - me) * stride on rank r, as in every other kind of group. A slot is address
 * space; memory is put into it piece by piece, each piece the physical memory of the slot's rank. A rank
 * that has no access to a peer's piece otherwise (another process, another GPU) maps it from a file
 * descriptor.
 */
#ifndef WEFT_RUN_CUDA_HEAP_H
#define WEFT_RUN_CUDA_HEAP_H

#include "run/cuda/driver.h"

typedef struct weft_cuda_piece {
    CUdeviceptr at;
    size_t bytes;
} weft_cuda_piece;

typedef struct weft_cuda_heap {
    weft_cuda_device *device;
    CUdeviceptr base;
    size_t stride, grain; /* pieces begin and end at multiples of the grain */
    int world;
    weft_cuda_piece *pieces; /* mapped so far */
    int piece_count;
} weft_cuda_heap;

/* What pieces must be multiples of on this device. */
weft_status weft_cuda_heap_grain(const weft_cuda_device *device, size_t *grain, weft_error_text *error);

/* Reserves the range, `bytes` (rounded up to the grain) a rank; nothing has memory yet. */
weft_status weft_cuda_heap_reserve(weft_cuda_device *device, int world, size_t bytes, size_t grain,
                                   weft_cuda_heap *heap, weft_error_text *error);

/* Puts new memory of this GPU, zeroed, at `offset` of slot `rank`. With `fd` not NULL it is exported there.
 */
weft_status weft_cuda_heap_create(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes, int *fd,
                                  weft_error_text *error);

/* Maps a piece that another rank created, from its file descriptor, which stays the caller's to close. */
weft_status weft_cuda_heap_import(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes, int fd,
                                  weft_error_text *error);

/* Maps `memory` at `offset` of a slot; the mapping keeps it alive, so the handle is given back either way. */
weft_status weft_cuda_heap_map(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes,
                               CUmemGenericAllocationHandle memory, weft_error_text *error);

/* Takes away what was put or mapped after the first `pieces`, and never used. */
void weft_cuda_heap_shrink(weft_cuda_heap *heap, int pieces);

void weft_cuda_heap_free(weft_cuda_heap *heap);

static inline char *weft_cuda_heap_slot(const weft_cuda_heap *heap, int rank)
{
    return (char *)(uintptr_t)(heap->base + (size_t)rank * heap->stride);
}

#endif
