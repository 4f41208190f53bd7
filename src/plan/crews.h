/*
 * Tiles of a product on a Hopper GPU, whose multiprocessors work in crews of two that make a tile of D
 * together (run/cuda/walker.h): how wide they are, and how many crews take part.
 *
 * Pure functions: executor and simulator use the same.
 */
#ifndef WEFT_PLAN_CREWS_H
#define WEFT_PLAN_CREWS_H

#include "plan/plan.h"

enum {
    WEFT_CREW_SMS = 2,
    WEFT_CREW_ROWS = 256, /* of a tile, half of them to an SM */
    WEFT_CREW_COLS = 256,
    WEFT_CREW_HALF_COLS = 128,
    WEFT_CREW_BOX_BYTES = 64 << 10, /* of shared memory, that finished tiles are stored through */
};

/* Whether the sums of a product stay in their owner's memory, to which the ranks add in turn. */
bool weft_crews_ring(const weft_problem *problem, weft_schedule schedule);

/* Panels of rows and columns of tiles that a rank computes. */
int64_t weft_crews_tiles(const weft_problem *problem, int world, int64_t tile_m, int64_t tile_n);

/* Whether the tiles of a ring are narrow. */
bool weft_crews_narrow_ring(const weft_problem *problem, int world, int crews, int64_t tile_m);

/* Columns of a tile of 16-bit numbers; `ring`: the sums stay. */
int64_t weft_crews_width(const weft_problem *problem, int world, int crews, int64_t tile_m, bool ring);

/* Columns of the tiles of a problem whose schedule is set, where all have WEFT_CREW_ROWS. */
int64_t weft_crews_cols(const weft_problem *problem, int world, int crews);

/* Whether copy lanes fetch what the product by a schedule needs of peers. */
bool weft_crews_gather(const weft_problem *problem, weft_schedule schedule);

/* How crews share a product whose tiles and `sums_stay` are decided, as far as that is open: how many take
 * part, and the stripes of a gemm_ar's ring. `fetches`: pieces come by copy lanes. */
void weft_crews_share(const weft_problem *problem, int world, int crews, bool fetches, weft_tuning *tuning);

#endif
