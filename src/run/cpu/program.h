/* What the CPU makes of a plan's part: where scratch operands lie in the arenas, and a worker's memory. */
#ifndef WEFT_RUN_CPU_PROGRAM_H
#define WEFT_RUN_CPU_PROGRAM_H

#include "run/program.h"
#include "run/cpu/executor.h"

typedef struct weft_program_operand {
    int64_t element_bytes;
    int64_t ld;           /* dense, over the longest instance */
    int64_t stride_bytes; /* between batch elements */
    size_t bytes;         /* of an instance, all batches */
    size_t offset;        /* staging: in the scratch arena; private: in private memory */
    char *bounce;         /* user: memory that it passes through in this run, or NULL */
} weft_program_operand;

typedef struct weft_program {
    weft_executor *executor;
    weft_program_operand *operands;
    size_t scratch_bytes;
    size_t private_bytes;                     /* private operands and all workspaces */
    size_t workspace_offset, workspace_bytes; /* of worker 0; one after another */
    /* A workspace: lists of a task's regions, a block of accumulators, the edge of a panel, two tiles of sums
     * where blocks have scales, the engine's part. */
    uint32_t regions_max;
    size_t lists_bytes, sums_bytes, edge_bytes, blocks_bytes;
    int order; /* in which products hand sums on (gemm.h); 0 = in rows */
    int workers;
} weft_program;

static inline weft_program *weft_program_of(const struct weft_plan *plan)
{
    return plan->lowered;
}

/*
 * The backend's calls (run/backend.h). Making: choice of what was left open, by rank 0; memory. Ranks that
 * met once for it also compare what they choose by, and where that is the same each makes its next plans
 * alone, until one needs more symmetric memory than there is.
 */
weft_status weft_cpu_plan_create(struct weft_plan *plan);
bool weft_cpu_plan_alone(struct weft_plan *plan, weft_status *status);
weft_status weft_cpu_plan_load(struct weft_plan *plan, weft_plan_part *part);
void weft_cpu_plan_destroy(struct weft_plan *plan);
weft_status weft_cpu_run(struct weft_plan *plan, const weft_operands *operands);

#endif
