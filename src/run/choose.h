/* Decides what a problem leaves open on CPU ranks: schedule, tiles, workers, how B is given. */
#ifndef WEFT_RUN_CHOOSE_H
#define WEFT_RUN_CHOOSE_H

#include "group/group.h"
#include "plan/plan.h"

weft_status weft_run_choose(weft_group *group, const weft_problem *problem, int world, weft_problem *resolved,
                            weft_error_text *error);

#endif
