/*
 * Small collectives without a plan: every rank shows its payload once, everyone reads what it needs. One hop.
 */
#ifndef WEFT_RUN_CPU_SMALL_H
#define WEFT_RUN_CPU_SMALL_H

#include "run/cpu/executor.h"

/* Whether weft_small_run takes this collective. The same on every rank. */
bool weft_small_fits(const weft_group *group, const weft_problem *problem);

/* The same; what fits is the session's small call from then on, which weft_small_run runs. The group has a
 * session. */
bool weft_small_take(weft_group *group, const weft_problem *problem);
weft_status weft_small_run(weft_executor *executor, const void *send, void *recv);

#endif
