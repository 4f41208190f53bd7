/*
 * What a round of mixture of experts takes: dispatch, the experts' grouped GEMM, combine. A formula, not a
 * simulation: who gets which token is only known at run time, so expected numbers of rows take the place of a
 * plan.
 *
 * Every token draws `topk` of `experts` at random, but for the part `skew` of them, which all want the first
 * `topk`; ranks hold the experts in blocks. A token travels once to every rank that has an expert of its own;
 * combine brings back a row for every expert (exact) or for every rank (reduced). The busiest rank decides.
 */
#ifndef WEFT_SIM_MOE_H
#define WEFT_SIM_MOE_H

#include "core/status.h"
#include "sim/machine.h"

typedef struct weft_moe_shape {
    int experts, topk, ranks;
    int64_t hidden, tokens; /* tokens of each rank */
    int64_t inter;          /* of the experts' feed-forward: gate and up H x I, down I x H; 0: no experts */
    double skew;            /* 0 to 1 */
    bool reduced;
    weft_dtype dtype;
    bool fp8; /* tokens travel so, with a float32 scale for every 128 elements */
} weft_moe_shape;

typedef struct weft_moe_time {
    double dispatch_us, experts_us, combine_us;
    double rows;               /* that the busiest rank gets */
    double link_us, memory_us; /* of dispatch and combine: what passes its link (or network), its memory */
    double network_bytes, link_bytes; /* of dispatch, through its card and its link inside the node */
} weft_moe_time;

weft_status weft_sim_moe(const weft_machine *machine, const weft_moe_shape *shape, bool graph,
                         weft_moe_time *time, weft_error_text *error);

#endif
