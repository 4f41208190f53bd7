/*
 * Symmetric memory on a GPU: one reserved range of addresses with a slot of `stride` bytes per rank, so that
 * the object at p lies at p + (r - me) * stride on rank r, as in every other kind of group. Each rank's slot
 * is its own physical memory; a rank in another process hands its slot over as a file descriptor.
 */
#ifndef WEFT_RUN_CUDA_HEAP_H
#define WEFT_RUN_CUDA_HEAP_H

#include "run/cuda/driver.h"

typedef struct weft_cuda_heap {
    weft_cuda_device *device;
    CUdeviceptr base;
    size_t stride;
    int world, mapped; /* slots mapped so far */
} weft_cuda_heap;

/* Reserves the range; no slot has memory yet. `bytes` is what each rank needs. */
weft_status weft_cuda_heap_reserve(weft_cuda_device *device, int world, size_t bytes, weft_cuda_heap *heap,
                                   weft_error_text *error);

/* Gives slot `rank` memory of its own, zeroed. With `fd` not NULL it is exported there, for peers in other
 * processes. */
weft_status weft_cuda_heap_create(weft_cuda_heap *heap, int rank, int *fd, weft_error_text *error);

/* Maps another process's slot from its file descriptor, which stays the caller's to close. */
weft_status weft_cuda_heap_import(weft_cuda_heap *heap, int rank, int fd, weft_error_text *error);

void weft_cuda_heap_free(weft_cuda_heap *heap);

static inline char *weft_cuda_heap_slot(const weft_cuda_heap *heap, int rank)
{
    return (char *)(uintptr_t)(heap->base + (size_t)rank * heap->stride);
}

#endif
