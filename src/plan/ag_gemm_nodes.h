/*
 * All-gather + GEMM over nodes (two_level.h). A shard goes to one rank of each other node, piece by piece,
 * and all of that node read it there, those of the own node where they are; with copiers, copy lanes fetch
 * both first, for machines where what is read again and again had better be near.
 */
#ifndef WEFT_PLAN_AG_GEMM_NODES_H
#define WEFT_PLAN_AG_GEMM_NODES_H

#include "plan/ag_gemm_shards.h"

/* All of the schedule. */
void weft_ag_two_level(weft_ag_gen *ag);

/* All rows of A, also those of this rank or only the others', into the gathered operand, which is the same on
 * all of a node: tasks of the compute lanes, each of which posts `signal` here when there are several lanes.
 * Returns their number. */
int64_t weft_ag_gather_over_nodes(weft_ag_gen *ag, bool own_too, uint32_t signal);

#endif
