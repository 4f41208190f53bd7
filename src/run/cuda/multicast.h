/*
 * Symmetric memory as the switch between GPUs knows it: a range of addresses behind which lies the same
 * offset of every rank's memory, for kernels that let the switch add what it loads there and spread what
 * they store. Made when a plan asks for it first, for what there is of symmetric memory then; grown when
 * operands lie beyond.
 */
#ifndef WEFT_RUN_CUDA_MULTICAST_H
#define WEFT_RUN_CUDA_MULTICAST_H

#include "run/cuda/heap.h"

struct weft_group;

typedef struct weft_cuda_multicast {
    weft_cuda_heap range; /* a slot for all ranks; without a base: nobody asked yet */
    size_t covered;       /* bytes at the beginning of every rank's slot that are behind it */
} weft_cuda_multicast;

/* Collective: all of symmetric memory so far. A failure is the same on all ranks, and the group goes
 * on without. */
weft_status weft_cuda_multicast_cover(struct weft_group *group);

/* Whether the switch reduces such elements; it knows no product, and averages no float. */
bool weft_cuda_multicast_reduces(weft_dtype dtype, weft_reduction reduction);

#endif
