/*
 * A plan on a GPU: its part, one block of symmetric GPU memory with its scratch operands, signals and control
 * block, and the operands it was run with so far, each set lowered to a program once.
 *
 * Where a peer's operands lie is learnt from the peer, on the host, when they change (a meeting). Runs with
 * operands that were met before, or that differ only in what no peer touches, put a kernel on the stream and
 * nothing else.
 *
 * Plans that the group keeps for its calls are made without a meeting (unmet.h), and run once without one.
 *
 * A meeting also finds whether somebody's operands of a collective lie where peers cannot reach them. Then
 * all ranks run its plan that stages (run/reach.h).
 */
#ifndef WEFT_RUN_CUDA_PLAN_H
#define WEFT_RUN_CUDA_PLAN_H

#include "choose/cuda/choose.h"
#include "run/cuda/group.h"
#include "run/given.h"

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
    bool beyond;     /* peers cannot reach some rank's: the plan that stages runs */
    bool agreed;     /* that all ranks have a program for it */
    weft_cuda_spot spots[];
} weft_cuda_meeting;

/* A copy on the stream before the kernel, or back after it, of an operand that peers cannot reach where the
 * caller has it, or would still read there when it changes. Its program knows only where it is staged: the
 * caller's address may be another in every run. */
typedef struct weft_cuda_stage {
    char *user, *staged;
    bool back;
    size_t line_bytes, lines, batch;
    size_t user_pitch, staged_pitch, user_stride, staged_stride; /* bytes */
} weft_cuda_stage;

typedef struct weft_cuda_stages {
    weft_cuda_stage of[WEFT_ROLE_COUNT];
    int count;
} weft_cuda_stages;

/* A set of operands and its program. */
typedef struct weft_cuda_bound {
    weft_operands operands; /* as the program knows them */
    weft_operands checked;  /* as the caller had them last */
    weft_cuda_executor executor;
    uint64_t used; /* when it last ran: which of the group's runs that was */
    CUevent last;  /* behind its last run */
    bool captured; /* a graph may run it at any time: it stays as long as the plan */
    bool untold;   /* of the plan's first run: of its operands no rank knows whether others have them so */
} weft_cuda_bound;

typedef struct weft_cuda_plan {
    struct weft_cuda_plan *next; /* of the group */
    uint32_t number;             /* of the plan in its group: equal on all ranks */
    bool retired;                /* destroyed; the block goes when it is on all ranks */
    bool unmet;                  /* each rank made it by itself, in the group's arena (unmet.h) */
    bool untold; /* nobody has told where its operands lie, for its first run: what peers touch is staged */
    char *block;
    size_t *offsets; /* by operand: of scratch operands in the block */
    int64_t *lds;
    uint32_t *done_posts;      /* collectives: see done.h */
    weft_plan_part collective; /* of a product whose other half it is; without ranks where there is none */
    size_t inboxes_at;         /* of that */
    size_t signals_at, control_at;
    struct weft_cuda_staging *staging; /* NULL until a rank needs it */
    size_t staging_at[WEFT_ROLE_COUNT];
    struct weft_cuda_staging *alone; /* where this rank stages what no peer touches; NULL until it needs it */
    weft_cuda_meeting *meetings;
    weft_cuda_bound bound[WEFT_CUDA_BOUND_MAX];
    int bound_count;
    bool counted; /* what its first program has is in the plan's bytes */
    bool issued;  /* since its outcome was last looked at */
    /* Of an epilogue behind the product (epilogue.h): that product, and its sums, as they lie; or NULL. */
    struct weft_plan *product;
    float *sums;
    int64_t sums_ld;
    size_t sums_bytes;
    weft_operands checked; /* as the caller had them last */
    CUevent finished;      /* behind its last run */
    bool product_ran;
} weft_cuda_plan;

/* Alpha and beta of a run, by value, or where they will be (`at`) when the stream comes to it. */
typedef struct weft_cuda_values {
    float alpha, beta;
    const float *alpha_at, *beta_at;
} weft_cuda_values;

weft_cuda_values weft_cuda_values_of(const struct weft_plan *plan, const weft_operands *operands);

/* The caller's operands of a run: there, as large as they have to be, in memory that the GPU can use. */
weft_status weft_cuda_check_operands(const struct weft_plan *plan, const weft_operands *operands);

/* By what this backend decides what problems leave open: the same on all ranks. */
weft_cuda_basis weft_cuda_basis_of(const weft_group *group);

/* What needs no peer: the part, made of the problem or given (and then taken over), and its tables. */
weft_status weft_cuda_plan_prepare(struct weft_plan *plan, const weft_problem *problem,
                                   weft_plan_part *given);
/* Scratch operands, signals and control block, at the same offsets on all ranks. Returns the block's size. */
size_t weft_cuda_plan_lay_out(struct weft_plan *plan);

/* When the ranks know what is touched: whether there may be a plan that stages it chunk by chunk. */
void weft_cuda_plan_note_reached(struct weft_plan *plan);

/* Waits until the GPU is done with a program; false when it was not within the group's deadline. */
bool weft_cuda_bound_pass(const weft_group *group, const weft_cuda_bound *bound);

/* The same, and frees it. */
bool weft_cuda_bound_free(weft_group *group, weft_cuda_bound *bound);

/* Whether an operand goes through staging memory on its way: see weft_cuda_stage. */
bool weft_cuda_is_staged(const struct weft_plan *plan, int role, const weft_operands *operands);

/*
 * Symmetric memory for what is staged. Runs of a rank follow each other, so that a group's plans share it;
 * one that needs more than there is gets new memory for all that come later, and the old goes with its last
 * plan. `take` is collective, in the meeting where a rank first needs it; `leave` is made by all ranks at the
 * same point of their calls.
 */
weft_status weft_cuda_staging_take(struct weft_plan *plan);
/* How much that would be. */
size_t weft_cuda_staging_bytes(const struct weft_plan *plan);
/* Collective where there is less: so much of it that stays, whatever plans come and go. */
weft_status weft_cuda_staging_hold(weft_group *group, size_t bytes);
void weft_cuda_staging_leave(weft_group *group, struct weft_cuda_staging *staging);

/* Takes memory of the rank's own, which its plans share likewise, for an operand that no peer touches, if it
 * has to be staged: what a collective beside the product moves, where it has gaps between its rows. */
weft_status weft_cuda_alone_take(const struct weft_plan *plan, const weft_operands *operands);
void weft_cuda_alone_leave(weft_cuda_group *g, struct weft_cuda_staging *alone);

/* Before the group goes: without giving the memory back, which goes with the group. */
void weft_cuda_staging_free(weft_cuda_group *g);

/* This rank's, where a role's instance begins. */
char *weft_cuda_staging_at(const struct weft_plan *plan, int role);

/* Where this rank's instance lies when it is staged, and in which form. */
weft_given weft_cuda_staged(const struct weft_plan *plan, int role);

/* The copies of a set of operands. */
void weft_cuda_stage_bind(const struct weft_plan *plan, const weft_operands *operands,
                          weft_cuda_stages *stages);

/* On the stream: those to staging memory, or those back. */
weft_status weft_cuda_stage_run(const struct weft_plan *plan, const weft_cuda_stages *stages, bool back,
                                CUstream stream);

static inline weft_cuda_plan *weft_cuda_plan_of(const struct weft_plan *plan)
{
    return plan->lowered;
}

static inline weft_cuda_control *weft_cuda_plan_control(const weft_cuda_plan *p)
{
    return (weft_cuda_control *)(p->block + p->control_at);
}

#endif
