/* The two halves of choose.h: products, and collectives. */
#ifndef WEFT_CHOOSE_CUDA_DECIDE_H
#define WEFT_CHOOSE_CUDA_DECIDE_H

#include "choose/cuda/choose.h"

weft_problem weft_cuda_choose_product(const weft_problem *asked, const weft_cuda_basis *basis);
weft_problem weft_cuda_choose_collective(const weft_problem *asked, const weft_cuda_basis *basis);

/* Whether a product by a schedule has chunks to stage; of others what peers cannot reach is copied whole: a
 * collective beside the product moves it, or compute lanes would have to copy, which they do not between
 * products. */
bool weft_cuda_has_chunks(const weft_problem *problem, weft_schedule schedule, const weft_tuning *tuning);

/* What a link carries less where so many bytes that all ranks add up go in two hops, 2 (W - 1) / W times, and
 * not in one, W - 1 times. */
static inline int64_t weft_cuda_spared_by_a_hop(int64_t bytes, int64_t world)
{
    return bytes * (world - 1) * (world - 2) / world;
}

#endif
