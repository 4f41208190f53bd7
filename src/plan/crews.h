/*
 * Tiles of a product on a Hopper GPU, whose multiprocessors work in crews of two that make a tile of D
 * together (choose/cuda/walker.h): how wide they are, how many crews take part, and how fast they are.
 *
 * Pure functions: who decides for a GPU that is there, who decides for one that is described, and the
 * simulator use the same.
 */
#ifndef WEFT_PLAN_CREWS_H
#define WEFT_PLAN_CREWS_H

#include "plan/plan.h"

enum {
    WEFT_CREW_SMS = 2,
    WEFT_CREW_ROWS = 256, /* of a tile, half of them to an SM */
    WEFT_CREW_COLS = 256,
    WEFT_CREW_NARROW_COLS = 224,
    WEFT_CREW_HALF_COLS = 128,
    WEFT_CREW_STEP_K = 64,
    WEFT_CREW_BOX_BYTES = 64 << 10, /* of shared memory, that finished tiles are stored through */
};

/* Measured on an H200: how long a step takes while all crews work, by the columns of their tiles (`cuda_gemm
 * --tune`), and what a library's products reach. */
enum {
    WEFT_CREW_STEP_NS = 730,
    WEFT_CREW_NARROW_STEP_NS = 633,
    WEFT_CREW_HALF_STEP_NS = 420,
    WEFT_CREWS_H200 = 66,
    WEFT_CREWS_H200_TFLOPS = 790,
};

/* Whether the sums of a product stay in their owner's memory, to which the ranks add in turn. */
bool weft_crews_ring(const weft_problem *problem, weft_schedule schedule);

/* Panels of rows and columns of tiles that a rank computes. */
int64_t weft_crews_tiles(const weft_problem *problem, int world, int64_t tile_m, int64_t tile_n);

/* Whether the tiles of a ring are narrow. */
bool weft_crews_narrow_ring(const weft_problem *problem, int world, int crews, int64_t tile_m);

/* Columns of the tiles of a problem whose schedule is set, where all have WEFT_CREW_ROWS. */
int64_t weft_crews_cols(const weft_problem *problem, int world, int crews);

/* Whether copy lanes fetch what the product by a schedule needs of peers. */
bool weft_crews_gather(const weft_problem *problem, weft_schedule schedule);

/* The same of all that a product by a schedule needs of peers; `sums_stay` is decided. */
bool weft_crews_fetch(const weft_problem *problem, weft_schedule schedule, int world, bool sums_stay);

/* How crews make a product by a schedule, as far as `tuning` leaves it open: tiles, whether the sums stay,
 * the stripes of a gemm_ar's ring, and how many crews take part. `adds`: stores may add in any rank's memory.
 */
void weft_crews_tune(const weft_problem *problem, weft_schedule schedule, int world, int crews, bool adds,
                     weft_tuning *tuning);

/* Of the rate of a library's products, what crews reach with tiles of so many columns: narrow ones load more
 * for the same product. */
double weft_crews_rate(int64_t cols);

#endif
