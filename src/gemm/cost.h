/*
 * What a tile of a product costs a core: the one formula by which tiles are searched for (plan/tiles.c) and
 * by which the simulator prices them (sim/price.c). The search knows no machine and takes what moving costs
 * from the kernel's extents; the simulator takes the rates of its description.
 */
#ifndef WEFT_GEMM_COST_H
#define WEFT_GEMM_COST_H

#include "core/round.h"
#include "gemm/gemm.h"

enum {
    WEFT_GEMM_KEEPS_B_BYTES = 512 << 10, /* of B, that a core still has when its next tile needs them again */
    WEFT_GEMM_PLACE_ROWS = 8             /* rows that kernels read a B for where it lies, at most */
};

/* Time in any unit: of a multiplication inside a full micro-tile, and of an element that is moved. */
typedef struct weft_gemm_rates {
    double multiply;
    double pack_a, pack_b; /* laid out for the kernel */
    double stream_b;       /* read where it lies, beside the arithmetic */
} weft_gemm_rates;

/* What a tile does about its B. */
typedef enum weft_gemm_b {
    WEFT_GEMM_PACKS_B,
    WEFT_GEMM_STREAMS_B, /* packed before, or used by so few rows that it is not worth it */
    WEFT_GEMM_HAS_B      /* the same, and the core has it since its last tile */
} weft_gemm_b;

typedef struct weft_gemm_cost {
    double arithmetic; /* as long as of whole micro-tiles */
    double stream;     /* of B, beside the arithmetic where memory is fast enough */
    double packing;    /* besides */
} weft_gemm_cost;

static inline weft_gemm_b weft_gemm_b_of(int64_t rows, int64_t mr, bool packed, bool same_as_before,
                                         double bytes)
{
    if (!packed && (rows > mr || rows > WEFT_GEMM_PLACE_ROWS))
        return WEFT_GEMM_PACKS_B;
    return same_as_before && bytes <= WEFT_GEMM_KEEPS_B_BYTES ? WEFT_GEMM_HAS_B : WEFT_GEMM_STREAMS_B;
}

static inline weft_gemm_cost weft_gemm_cost_of(const weft_gemm_rates *rates, const weft_gemm_steps *steps,
                                               int64_t rows, int64_t cols, int64_t k, weft_gemm_b b)
{
    double a_elems = (double)rows * (double)k, b_elems = (double)cols * (double)k;

    return (weft_gemm_cost){
        .arithmetic = rates->multiply * (double)weft_round_up(rows, steps->mr) *
                      (double)weft_round_up(cols, steps->nr) * (double)weft_round_up(k, steps->k_step),
        .stream = b == WEFT_GEMM_STREAMS_B ? rates->stream_b * b_elems : 0,
        .packing = rates->pack_a * a_elems + (b == WEFT_GEMM_PACKS_B ? rates->pack_b * b_elems : 0),
    };
}

#endif
