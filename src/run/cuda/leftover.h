/*
 * What is left of a part whose product is a launch of its own: the same tasks, but that of the product does
 * nothing. Sums that are made first are there before their rank enters the run, and nobody touches a rank's
 * memory before that: so nothing else need say that they are, and posts and waits that only did are left out.
 */
#ifndef WEFT_RUN_CUDA_LEFTOVER_H
#define WEFT_RUN_CUDA_LEFTOVER_H

#include "core/status.h"
#include "plan/plan.h"

typedef struct weft_cuda_leftover {
    weft_plan_part part; /* of these arrays */
    weft_task *tasks;
    weft_region *regions;
    weft_wait *waits;
    weft_post *posts;
} weft_cuda_leftover;

/* `product` is the number of its task. To be freed after a failure, too. */
weft_status weft_cuda_leftover_make(const weft_plan_part *part, uint32_t product, weft_cuda_leftover *rest,
                                    weft_error_text *error);
void weft_cuda_leftover_free(weft_cuda_leftover *rest);

#endif
