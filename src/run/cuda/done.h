/*
 * DONE without a join. Where several lanes of a rank touch a peer, a plan lets them join before one of them
 * says DONE to it: a hop of its own. In a collective every lane says so itself, after its last touch, and
 * EXIT waits for as many posts as the peer has such lanes, which a peer's part tells.
 */
#ifndef WEFT_RUN_CUDA_DONE_H
#define WEFT_RUN_CUDA_DONE_H

#include "run/cuda/program.h"

typedef struct weft_cuda_done {
    uint32_t *last;  /* [lane * world + rank]: 1 + the lane's last task that touches the rank; 0 = none */
    uint32_t *lanes; /* [rank]: lanes that touch it */
    uint32_t join;   /* the task that is left out, UINT32_MAX = none, and what it waits for */
    uint32_t join_signal;
} weft_cuda_done;

/* False without memory. */
bool weft_cuda_done_find(const weft_plan_part *part, weft_cuda_done *done);
void weft_cuda_done_free(weft_cuda_done *done);

/* Lanes of a part that touch a rank's memory. */
uint32_t weft_cuda_done_lanes(const weft_plan_part *part, int rank);

#endif
