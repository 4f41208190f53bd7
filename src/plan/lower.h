/*
 * The lowering: from a plan that takes all memory for one to a plan over domains, in which only COPY crosses
 * (plan.h). Nothing is added up in another order, and no task is moved to another rank but the copies.
 */
#ifndef WEFT_PLAN_LOWER_H
#define WEFT_PLAN_LOWER_H

#include "plan/plan.h"

/*
 * `flat` are the parts of all ranks, `domain` numbers the domains as they first appear. Makes the part of
 * rank `only` in parts[0], or with -1 those of all. Every element of what a rank reads elsewhere must be
 * written at most once in a run.
 */
weft_status weft_plan_lower(const weft_problem *problem, const weft_plan_part *flat, const int32_t *domain,
                            int world, int only, weft_plan_part *parts, weft_error_text *error);

#endif
