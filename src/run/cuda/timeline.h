/* One recorded run of a world: when every task of every rank could begin and was done, by the GPU's clock. */
#ifndef WEFT_RUN_CUDA_TIMELINE_H
#define WEFT_RUN_CUDA_TIMELINE_H

#include "run/cuda/world.h"
#include "trace/trace.h"

/* Runs the world once and gives its events, which the caller frees. Runs that are not recorded pay nothing.
 */
weft_status weft_cuda_timeline(weft_cuda_world *world, weft_event **events, size_t *count,
                               weft_error_text *error);

/* The events of one rank from what its kernel wrote (weft_cuda_args.trace); `events` has room for two a task
 * and one more. Returns how many. */
size_t weft_cuda_timeline_events(const weft_plan_part *part, const uint64_t *words, weft_event *events);

#endif
