/*
 * A plan made ready to run on this rank: its part, and what the backend made of it. This is the public handle
 * weft_plan. The one-call functions keep theirs in the session.
 */
#ifndef WEFT_RUN_PROGRAM_H
#define WEFT_RUN_PROGRAM_H

#include "gemm/gemm.h"
#include "run/backend.h"

/* One of the caller's buffers, seen as its operand: stored rows of `cols` elements. */
typedef struct weft_given {
    char *data;
    int64_t ld;
    int64_t stride; /* elements between batch elements; bytes when packed */
    int64_t rows, cols;
    int64_t batch;
    int64_t element_bytes;
} weft_given;

struct weft_plan {
    weft_group *group;
    weft_session *session;
    weft_problem asked; /* the key of the cache */
    struct weft_plan *next;

    weft_plan_part part;
    int operand_of_role[WEFT_ROLE_COUNT];      /* or -1 */
    weft_given dense_of_role[WEFT_ROLE_COUNT]; /* a buffer for it that has no gaps: all but `data` */
    uint32_t touched;                          /* roles that some rank touches on a peer by address */
    uint32_t landed;                           /* roles into which messages of other nodes land */
    uint32_t used;                             /* roles whose own instance this rank touches */
    const weft_binding *bind;                  /* how operands are packed; NULL: none is */
    size_t bytes;  /* of the largest rank's part, as the ranks agreed; on GPUs of its symmetric memory */
    bool alone;    /* `bytes` are of this rank's part: others drop it at other calls, and make it again */
    bool captured; /* a graph may run it at any time: the cache keeps it */
    bool loaded;   /* somebody's own: what its schedule is called says nothing about it */
    bool kept;     /* by the session: all ranks drop it at the same point of their calls, unless `alone` */

    uint32_t reached;         /* roles for whose sake there may be a plan that stages; 0: for none */
    struct weft_plan *staged; /* that plan, once it was needed (reach.h) */
    uint32_t told;            /* roles of which runs tell whether peers could reach them */

    void *lowered; /* the backend's own */
};

/* Collective: agreement on what is asked, then the backend's part. */
weft_status weft_program_create(weft_session *session, const weft_problem *problem, struct weft_plan **plan);

/* Collective: of a part that was checked, which is left empty when it is taken over. Ranks compare its hash.
 */
weft_status weft_program_load(weft_session *session, weft_plan_part *part, struct weft_plan **plan);
void weft_program_destroy(struct weft_plan *plan);

/* Rejects a call that keeps its plan, as weft_session_reject; where plans need no meeting this rank is told
 * alone, and the others wait for its next call. */
weft_status weft_program_reject(weft_group *group, const weft_problem *asked, weft_status rejection);

/* A plan, made by this rank alone where the ranks need not meet for it, else collectively like the above.
 * `kept`: as of the plan. */
weft_status weft_program_make(weft_session *session, const weft_problem *problem, bool kept,
                              struct weft_plan **plan);

/* The cached plan of a problem, made if it is not there. It belongs to the cache. */
weft_status weft_program_cached(weft_session *session, const weft_problem *problem, struct weft_plan **plan);
void weft_program_drop_cached(weft_session *session);

/* What this rank's part takes in memory. */
static inline size_t weft_program_bytes(const struct weft_plan *plan)
{
    const weft_plan_part *p = &plan->part;

    return sizeof(*plan) + p->operand_count * sizeof(*p->operands) + p->lane_count * sizeof(*p->lanes) +
           p->task_count * sizeof(*p->tasks) + p->region_count * sizeof(*p->regions) +
           p->wait_count * sizeof(*p->waits) + p->post_count * sizeof(*p->posts) +
           p->signal_count * sizeof(*p->signal_posts);
}

#endif
