/* What a problem leaves open, decided for GPUs: schedule, tiles, lanes. */
#ifndef WEFT_CHOOSE_CUDA_CHOOSE_H
#define WEFT_CHOOSE_CUDA_CHOOSE_H

#include "plan/plan.h"

/* What it is decided by beside the problem: the same on all ranks. */
typedef struct weft_cuda_basis {
    int world;
    int crews;    /* of two SMs each on Hopper, else SMs: that a rank has */
    bool hopper;  /* the GPUs have the Hopper walkers */
    bool library; /* all ranks have cuBLASLt */
    bool whole;   /* no two ranks share a GPU: what goes to peers takes a link's time */
    bool adds;    /* bulk stores may add in any rank's memory */
} weft_cuda_basis;

/* Everything decided, of a resolved problem. A pure function, so that ranks with the same basis agree without
 * talking. */
weft_problem weft_cuda_choose(const weft_cuda_basis *basis, const weft_problem *asked);

/* Whether a plan that was decided had better stage, chunk by chunk, what peers cannot reach; else it is
 * copied as a whole. */
bool weft_cuda_chunks_pay(const weft_cuda_basis *basis, const weft_problem *problem);

/* How many CTAs that wait may be on a GPU of `world` ranks, of which each has `ctas` SMs: half of its SMs
 * leave room for clusters too. */
static inline int weft_cuda_waiting_most(int ctas, int world)
{
    return ctas * world / 2;
}

/* Whether a collective by itself is the other half of an unfused product (halves.h): equal shares of a plain
 * matrix, sums in the type of the result and without an epilogue. */
bool weft_cuda_halves(const weft_problem *problem, int world);

#endif
