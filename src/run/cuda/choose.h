/* What a problem leaves open, decided for GPUs: schedule, tiles, lanes. */
#ifndef WEFT_RUN_CUDA_CHOOSE_H
#define WEFT_RUN_CUDA_CHOOSE_H

#include "plan/plan.h"

/* A pure function, so that ranks with the same number of crews agree without talking. `library`: all ranks
 * have cuBLASLt. */
void weft_cuda_choose(weft_problem *problem, int world, int crews, bool hopper, bool library);

/* The same for collectives, of which a rank can have 2 * `ctas` CTAs resident; `whole`: no two ranks share a
 * GPU, so that what goes to peers takes a link's time, and memory's is a rank's own. */
void weft_cuda_choose_collective(weft_problem *problem, int world, int ctas, bool whole);

/* Whether a collective by itself is the other half of an unfused product (halves.h): equal shares of a plain
 * matrix, sums in the type of the result and without an epilogue. */
bool weft_cuda_halves(const weft_problem *problem, int world);

#endif
