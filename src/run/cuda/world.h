/*
 * All ranks of a problem on one GPU, in one process: virtual ranks that share the SMs, or one rank "in the
 * loop" whose peers are only their memory. Used by the tests and the benchmarks.
 */
#ifndef WEFT_RUN_CUDA_WORLD_H
#define WEFT_RUN_CUDA_WORLD_H

#include "run/cuda/executor.h"
#include "run/cuda/heap.h"

enum { WEFT_CUDA_WORLD_MAX = 8 };

typedef struct weft_cuda_world_options {
    bool alone; /* only rank 0 runs, with all of the GPU: its peers are taken to have entered, and
                   never to touch it */
    bool dense; /* user operands have no padding between rows, whatever that does to alignment */
    const weft_cuda_stand_in *stand_in; /* NULL, or alone: what makes the peers' posts, too */
    weft_cuda_limits limits;
} weft_cuda_world_options;

typedef struct weft_cuda_world {
    weft_cuda_device *device;
    int world, running; /* ranks that run: all of them, or 1 */
    weft_plan_part parts[WEFT_CUDA_WORLD_MAX];
    weft_plan_part collectives[WEFT_CUDA_WORLD_MAX]; /* beside products: see halves.h */
    weft_cuda_executor executors[WEFT_CUDA_WORLD_MAX];
    CUstream streams[WEFT_CUDA_WORLD_MAX];
    weft_cuda_control *controls[WEFT_CUDA_WORLD_MAX];
    weft_cuda_heap heap;
    weft_cuda_place *places; /* [operand * world + rank] */
} weft_cuda_world;

/* Chooses tiles and workers for the GPU, makes every rank's plan, its memory and its executor. */
weft_status weft_cuda_world_make(weft_cuda_device *device, const weft_problem *problem, int world,
                                 const weft_cuda_world_options *options, weft_cuda_world *made,
                                 weft_error_text *error);
void weft_cuda_world_free(weft_cuda_world *world);

/* Where rank `rank` has the operand of a role; base NULL when the problem has none. */
weft_cuda_place weft_cuda_world_place(const weft_cuda_world *world, weft_operand_role role, int rank);

/* Enqueues one run of every rank, each on its stream. */
weft_status weft_cuda_world_launch(weft_cuda_world *world, weft_error_text *error);

/* Waits for everything; the first rank's error, if any. */
weft_status weft_cuda_world_finish(weft_cuda_world *world, weft_error_text *error);

#endif
