/*
 * What a vendor's libraries take on a GPU machine: NCCL (or RCCL) for collectives, cuBLAS (or hipBLASLt) for
 * products. It is what people run who do not run weft, and so what `unfused` is compared with.
 *
 * Collectives follow NCCL's own algorithms: rings with its three protocols, reductions in the switch, trees
 * over nodes. What each step costs is in NCCL's published tuning table; rates are the machine's. Nothing is
 * simulated: a time is a formula.
 */
#ifndef WEFT_SIM_LIBRARY_H
#define WEFT_SIM_LIBRARY_H

#include "plan/plan.h"
#include "sim/machine.h"

/* The least k of a slice, where a product with few tiles is split over the units that have none. */
enum { WEFT_LIBRARY_SPLIT_K = 512 };

typedef enum weft_library_way {
    WEFT_LIBRARY_FASTEST = 0,
    WEFT_LIBRARY_RING,
    WEFT_LIBRARY_SWITCH /* the switch adds and spreads; all_reduce only */
} weft_library_way;

/* Of a collective's problem. `graph`: captured, so that the host's launches do not show. 0: it has none. */
double weft_library_collective_us(const weft_machine *machine, const weft_problem *problem, int world,
                                  weft_library_way way, bool graph);

/* D[m x n] = A·B over k on one device, without a launch. 0 where the machine has no rate for the type. */
double weft_library_gemm_us(const weft_machine *machine, weft_dtype dtype, int64_t m, int64_t n, int64_t k);

/* What travels of a product's: sums as its wire_dtype, or, where that is left open, as the result, which is
 * what people give NCCL; else the operand, or the result. */
weft_dtype weft_library_wire(const weft_problem *problem);

/* A product over ranks: gather, then multiply; or multiply, then reduce or spread. 0: the machine says too
 * little. */
double weft_library_unfused_us(const weft_machine *machine, const weft_problem *problem, int world,
                               bool graph);

#endif
