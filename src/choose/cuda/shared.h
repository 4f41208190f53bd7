/*
 * Which schedule of a product is the fastest where ranks share a GPU: a model of a few numbers for each,
 * fitted to random products on 2, 4 and 8 ranks of one H200 (docs/performance/gpu.md says how well it
 * chooses).
 */
#ifndef WEFT_CHOOSE_CUDA_SHARED_H
#define WEFT_CHOOSE_CUDA_SHARED_H

#include "plan/plan.h"

typedef struct weft_cuda_sharing {
    int world;
    int crews;         /* of two SMs each that a rank has */
    int64_t ring_cols; /* of a tile of a ring */
    bool unfused;      /* a library can multiply */
    bool halves;       /* and a collective by itself is the other half */
} weft_cuda_sharing;

/* The schedule, of those that move what the problem's layout says. */
weft_schedule weft_cuda_shared_fastest(const weft_problem *problem, const weft_cuda_sharing *sharing);

#endif
