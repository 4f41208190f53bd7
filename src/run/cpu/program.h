/*
 * A plan made ready to run on this rank: the part, where its scratch operands lie in the arenas, and what the
 * peers touch. This is the public handle weft_plan.
 */
#ifndef WEFT_RUN_CPU_PROGRAM_H
#define WEFT_RUN_CPU_PROGRAM_H

#include "run/cpu/executor.h"

typedef struct weft_program_operand {
    int64_t element_bytes;
    int64_t ld;           /* dense, over the longest instance */
    int64_t stride_bytes; /* between batch elements */
    size_t bytes;         /* of an instance, all batches */
    size_t offset;        /* staging: in the scratch arena; private: in private memory */
    size_t bounce_offset; /* user: in the scratch arena, when `bounced` has the role */
} weft_program_operand;

struct weft_plan {
    weft_group *group;
    weft_executor *executor;
    weft_problem asked; /* the key of the cache */
    struct weft_plan *next;

    weft_plan_part part;
    weft_program_operand *operands;
    int operand_of_role[WEFT_ROLE_COUNT]; /* or -1 */
    uint32_t touched;                     /* roles that some rank touches on a peer */
    uint32_t used;                        /* roles whose own instance this rank touches */
    uint32_t bounced;                     /* roles that have bounce memory: pages not used are not there */
    size_t scratch_bytes;
    size_t private_bytes;                     /* private operands and all workspaces */
    size_t workspace_offset, workspace_bytes; /* of worker 0; one after another */
    /* A workspace: lists of a task's regions, a block of accumulators, the edge of a panel, the engine's
     * part. */
    uint32_t regions_max;
    size_t lists_bytes, sums_bytes, edge_bytes;
    const weft_binding *bind; /* NULL for collectives */
    int order;                /* in which products hand sums on (gemm.h); 0 = in rows */
    int workers;
    bool captured;             /* a graph may run it at any time: the cache keeps it */
    bool loaded;               /* somebody's own: what its schedule is called says nothing about it */
    struct weft_gpu_plan *gpu; /* NULL, or all there is beside the part: the plan runs on a GPU (run/gpu.h) */
};

/* Collective: agreement, choice of the schedule by rank 0, memory. */
weft_status weft_program_create(weft_executor *executor, const weft_problem *problem,
                                struct weft_plan **plan);

/* Collective: of a part that was checked, which is left empty when it is taken over. Ranks compare its hash.
 */
weft_status weft_program_load(weft_executor *executor, weft_plan_part *part, struct weft_plan **plan);
void weft_program_destroy(struct weft_plan *plan);

/* The cached plan of a problem, made if it is not there (collective like the above). It belongs to the cache.
 */
weft_status weft_program_cached(weft_executor *executor, const weft_problem *problem,
                                struct weft_plan **plan);
void weft_program_drop_cached(weft_executor *executor);

/* Collective; may be repeated with other pointers. */
weft_status weft_program_run(struct weft_plan *plan, const weft_operands *operands);

/* For calls that keep their plans: the same, or on the stream that weft_group_set_stream gave. */
weft_status weft_program_issue(struct weft_plan *plan, const weft_operands *operands);

#endif
