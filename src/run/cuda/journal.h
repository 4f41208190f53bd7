/*
 * What each rank has begun to run, where its peers see it. A run whose operands the ranks have met for puts a
 * kernel on the stream and tells nobody. So ranks that mix plans, or operands of different calls, would wait
 * for each other until a deadline, unless their kernels meet and say so (WEFT_CUDA_OTHER_MEETING): those of
 * two plans do not, and a problem has two where operands may lie beyond the peers' reach (run/reach.h). A
 * host that waits for its GPU compares what all ranks have begun: the last runs one by one, and a sum over
 * all before those.
 */
#ifndef WEFT_RUN_CUDA_JOURNAL_H
#define WEFT_RUN_CUDA_JOURNAL_H

#include "run/cuda/plan.h"

/* This rank goes to a meeting; it comes from there, whatever was told. */
void weft_cuda_journal_meet(const struct weft_plan *plan);
void weft_cuda_journal_met(const struct weft_plan *plan);

/* The same where it is to make a plan together with its peers. */
void weft_cuda_journal_meets(const weft_group *group, weft_op op, bool begins);

/* It runs a plan with the operands of a meeting, 0 where no peer touches any. */
void weft_cuda_journal_run(const struct weft_plan *plan, uint32_t meeting);

/* It makes a collective call that has no plan. */
void weft_cuda_journal_call(const weft_group *group, weft_entry entry);

/* The run or call that it entered last could not be put on the stream. */
void weft_cuda_journal_failed(const weft_group *group);

/* WEFT_OK, or ranks have begun different things: the group is lost. `all`: also long ago. */
weft_status weft_cuda_journal_compare(weft_group *group, bool all);

#endif
