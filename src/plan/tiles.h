/*
 * Tiles of a product on the cores of a CPU: for every number of workers such that all of them work.
 *
 * One worker takes as many rows as the engine packs at once, and all columns and all of k: a packed block of
 * A is then used for as long as it can be; fewer columns where owners would have less than two tiles.
 * Several, and one whose sums travel between nodes, share rows and columns in tiles of about equal size, as
 * many as give each of them the same number; of the ways to do that, the one whose busiest worker computes
 * and moves least. k is cut, at multiples of tile_k over the workers that rows and columns leave without
 * work, only where a schedule can (Stream-K) and where sharing it is estimated to be shorter.
 *
 * A pure function: plans, executor and simulator use the same.
 */
#ifndef WEFT_PLAN_TILES_H
#define WEFT_PLAN_TILES_H

#include "gemm/gemm.h"
#include "plan/plan.h"

/* Fills tile_m, tile_n, tile_k and grain_n of a resolved GEMM problem whose schedule and workers are set,
 * each where it is 0, and fits what is set to the kernel's steps. */
void weft_plan_tiles(weft_problem *problem, int world, const weft_gemm_steps *steps);

/* tile_n of a resolved collective whose workers are set: a chunk for each, of whole lines. */
int64_t weft_plan_chunk(const weft_problem *problem, int world);

#endif
