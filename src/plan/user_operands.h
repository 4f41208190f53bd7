/*
 * The operands a caller brings to a problem: which there are, of what type and shape, how they are divided
 * over the ranks, which of them come back. It follows from the problem alone; generators begin with them, and
 * the checker holds every plan against them.
 */
#ifndef WEFT_PLAN_USER_OPERANDS_H
#define WEFT_PLAN_USER_OPERANDS_H

#include "plan/plan.h"

enum { WEFT_USER_OPERANDS_MAX = 5 };

/* Fills in the operands of a resolved problem: A, B, C, bias, D or send, recv. Returns how many there are. */
int weft_user_operands(const weft_problem *problem, int world, weft_operand operands[WEFT_USER_OPERANDS_MAX]);

/* The roles that some rank touches on a peer, as bits, in any plan of the resolved problem for ranks that
 * share memory: so each knows without asking which of its operands its peers must be able to reach. */
uint32_t weft_user_operands_touched(const weft_problem *problem);

#endif
