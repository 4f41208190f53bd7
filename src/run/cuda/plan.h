/*
 * A plan on a GPU: its part, one block of symmetric GPU memory with its scratch operands, signals and control
 * block, and the operands it was run with so far, each set lowered to a program once.
 *
 * Where a peer's operands lie is learnt from the peer, on the host, when they change (a meeting). Runs with
 * operands that were met before, or that differ only in what no peer touches, put a kernel on the stream and
 * nothing else.
 */
#ifndef WEFT_RUN_CUDA_PLAN_H
#define WEFT_RUN_CUDA_PLAN_H

#include "run/cuda/group.h"

enum { WEFT_CUDA_BOUND_MAX = 128 }; /* a model has 80 layers and more */
#define WEFT_CUDA_STAGED INT64_MIN

/* Where one rank has one operand, as it told in a meeting. */
typedef struct weft_cuda_spot {
    int64_t offset; /* from the beginning of its slot; WEFT_CUDA_STAGED: where the plan stages it */
    int64_t ld, stride;
} weft_cuda_spot;

/* What all ranks had when they met: spots[role * world + rank] of the roles that peers touch. */
typedef struct weft_cuda_meeting {
    struct weft_cuda_meeting *next;
    uint32_t number; /* counted from 1, the same on all ranks */
    weft_cuda_spot spots[];
} weft_cuda_meeting;

/* A copy on the stream before or after the kernel, of an operand of a collective that peers cannot reach
 * where the caller has it, or that they would still read there when it changes. */
typedef struct weft_cuda_stage {
    const void *from;
    void *to;
    size_t bytes; /* 0: none */
} weft_cuda_stage;

/* A set of operands and its program. */
typedef struct weft_cuda_bound {
    weft_operands operands;
    weft_cuda_executor executor;
    uint64_t used; /* when it last ran */
    weft_cuda_stage in, out;
    CUevent last;  /* behind its last run; made with the plan: see weft_cuda_rehearse */
    bool captured; /* a graph may run it at any time: it stays as long as the plan */
} weft_cuda_bound;

typedef struct weft_cuda_plan {
    struct weft_cuda_plan *next; /* of the group */
    uint32_t number;             /* of the plan in its group: equal on all ranks */
    bool retired;                /* destroyed; the block goes when it is on all ranks */
    char *block;
    size_t *offsets; /* by operand: of scratch operands in the block */
    int64_t *lds;
    uint32_t *done_posts; /* collectives: see done.h */
    size_t signals_at, control_at;
    char *staging; /* NULL until a rank needs it: symmetric memory for SEND and RECV */
    size_t staging_at[WEFT_ROLE_COUNT];
    weft_cuda_meeting *meetings;
    weft_cuda_bound bound[WEFT_CUDA_BOUND_MAX];
    int bound_count;
    uint64_t runs;
    bool issued; /* since its outcome was last looked at */
} weft_cuda_plan;

/* Frees a program once the GPU is done with it; false when it was not within the group's deadline. */
bool weft_cuda_bound_free(weft_group *group, weft_cuda_bound *bound);

/* Whether an operand of a collective goes through staging memory on its way: see weft_cuda_stage. */
bool weft_cuda_is_staged(const struct weft_plan *plan, int role, const weft_operands *operands);

/* Collective, in the meeting where a rank first needs it: the memory. */
weft_status weft_cuda_staging_make(struct weft_plan *plan);

/* The copies of a set of operands. */
void weft_cuda_stage_bind(const struct weft_plan *plan, const weft_operands *operands,
                          weft_cuda_bound *bound);

/* On the stream. */
weft_status weft_cuda_stage_run(const struct weft_plan *plan, const weft_cuda_stage *stage, CUstream stream);

static inline weft_cuda_plan *weft_cuda_plan_of(const struct weft_plan *plan)
{
    return plan->lowered;
}

static inline weft_cuda_control *weft_cuda_plan_control(const weft_cuda_plan *p)
{
    return (weft_cuda_control *)(p->block + p->control_at);
}

#endif
