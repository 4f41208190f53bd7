/*
 * Operands beyond the peers' reach. A problem has two plans: one in which ranks touch each other's operands
 * where they lie, in symmetric memory, and one that stages what others need of them (plan/staged.h). All
 * ranks must run the same one, and each knows only where its own operands lie. On CPUs they tell each other
 * in every run, so that the next run of the operation is right for all; before the first they meet for it. In
 * a run that comes as a surprise, operands pass through symmetric memory as a whole (cpu/operands.h); so do
 * those too small to be worth chunks, packed weights, those of plans from files, and over nodes those of
 * collectives that are lowered. What ranks of other nodes send lands where the receiver says
 * (weft_given_lands), so that ranks alone on their nodes need neither.
 * A backend that meets for new operands says by itself what they told (`reach` of its table).
 */
#ifndef WEFT_RUN_REACH_H
#define WEFT_RUN_REACH_H

#include "run/program.h"

weft_status weft_reach_pick(struct weft_plan *plan, const weft_operands *operands, struct weft_plan **fit);

/* The plan to run with these operands. Collective where not all is known yet. */
static inline weft_status weft_reach_fit(struct weft_plan *plan, const weft_operands *operands,
                                         struct weft_plan **fit)
{
    *fit = plan;
    return plan->reached ? weft_reach_pick(plan, operands, fit) : WEFT_OK;
}

#endif
