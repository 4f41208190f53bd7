/*
 * Lowering a plan part: one task at a time to addresses, tensor maps, waits and posts (lower.c), and the
 * order of tasks within lanes (program.c).
 */
#ifndef WEFT_RUN_CUDA_LOWER_H
#define WEFT_RUN_CUDA_LOWER_H

#include "run/cuda/program.h"

typedef struct weft_lowering {
    const weft_plan_part *part;
    const weft_cuda_binding *binding;
    weft_cuda_program *program;
    weft_error_text *error;
    uint32_t found;                    /* see counterpart in lower.c */
    const struct weft_cuda_done *done; /* NULL: as the plan has it */
    bool storers, bulk; /* copy lanes are for the storers of the Hopper walker; all of them can be */
} weft_lowering;

/* A wait of the next task for its step `step` on: until `count` of `total` posts of a run are there. */
weft_status weft_lower_wait(weft_lowering *low, uint32_t signal, uint32_t count, uint32_t total,
                            int64_t step);
weft_status weft_lower_post(weft_lowering *low, uint32_t signal, int rank);

/* Those of a task of the plan; `count` grows by how many they are. */
weft_status weft_lower_waits(weft_lowering *low, const weft_task *task, int64_t step, uint32_t *count);
weft_status weft_lower_posts(weft_lowering *low, const weft_task *task, uint32_t *first, uint32_t *count);

/* The first of the tasks that carry their sums to task `last` of the lane, or that one: see lower.c. */
const weft_task *weft_lower_first_carried(const weft_lowering *low, const weft_lane *lane, uint32_t last);

/* Columns of the widest tile that the walkers make of a product. */
int weft_cuda_widest(weft_dtype dtype);

/* How much of k a step of the Hopper walker takes. */
int64_t weft_lower_step_k(const weft_lowering *low);

/* All of a task but its waits and posts. */
weft_status weft_lower_gemm(weft_lowering *low, const weft_task *first, const weft_task *task,
                            weft_cuda_task *out);
weft_status weft_lower_plain(weft_lowering *low, const weft_task *task, weft_cuda_task *out);

#endif
