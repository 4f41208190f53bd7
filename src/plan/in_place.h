/*
 * A collective in place: the caller gives SEND and RECV the same memory, or the smaller of the two as this
 * rank's row of the larger.
 */
#ifndef WEFT_PLAN_IN_PLACE_H
#define WEFT_PLAN_IN_PLACE_H

#include "plan/plan.h"

/* Whether nobody reads SEND where RECV has been written by then, which the checker proves; else SEND has to
 * be copied before. `domain`: of each rank; NULL: there is one. */
bool weft_plan_in_place(const weft_problem *problem, const int32_t *domain, int world);

#endif
