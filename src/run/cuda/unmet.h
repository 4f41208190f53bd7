/*
 * Plans that every rank makes by itself, so that a run of a new problem needs no word between hosts: those
 * that the group keeps for its calls (`kept`), which all ranks make and drop at the same points of their
 * calls. Each derives the same plan (the ranks have told each other by what they choose) in the same place
 * of an arena. When that has no clean memory left, it is swept on the stream: a barrier of the GPUs, behind
 * which all runs before are through; zeros; and another one.
 *
 * Where peers touch a plan's operands, nobody has told where those lie. So its first run stages them in
 * symmetric memory that a group's plans share (`untold`), and the ranks meet for them in the second.
 *
 * What the ranks ask for is compared when they wait (journal.h).
 */
#ifndef WEFT_RUN_CUDA_UNMET_H
#define WEFT_RUN_CUDA_UNMET_H

#include "run/cuda/plan.h"

/* Whether plans are, as the group stands, and whether one of such a problem can be: the same answers on all
 * ranks. Where ranks have a context in common none is: what the driver does for a new program (loading a
 * kernel, making an event) may wait for all kernels of the context, also for one that waits for a peer who is
 * at the driver's lock. Ranks that meet have launched all that they called for. */
bool weft_cuda_unmet_are(const weft_group *group);
bool weft_cuda_unmet_can(const struct weft_plan *plan);

/* Makes one. False: there is no such plan on any rank, and who makes plans together says why; or
 * `*status`: the group is lost. */
bool weft_cuda_unmet_make(struct weft_plan *plan, weft_status *status);

/* Memory for one, zero on all ranks when its first run begins. Collective where there is too little. */
weft_status weft_cuda_unmet_memory(weft_group *group, size_t bytes, char **memory);

/* Collective, when ranks have made together a plan that is kept: what those need that they will make by
 * themselves, where there is memory for it. An error: the group is lost. */
weft_status weft_cuda_unmet_reserve(const struct weft_plan *plan);

/* Before the group goes. */
void weft_cuda_unmet_free(weft_group *group);

#endif
