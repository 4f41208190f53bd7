/*
 * Lowering by transfers. Every touch between domains becomes a transfer, a crossing COPY made by the rank
 * that has the data:
 *   - a push stays one;
 *   - a pull is made by the owner of what is pulled; where it was, an empty COPY waits that it has landed;
 *   - what a product or a sum reads elsewhere is pushed into scratch memory of the reader ("in"), once for
 *     all tasks that read the same region, when those that write it have;
 *   - what a product or a sum writes elsewhere is written here, into its own copy of the result where it has
 *     one, else into scratch memory ("out"), and pushed from there;
 *   - a post that goes with none of these is a transfer of nothing.
 *
 * All transfers of a rank are in one lane of its own, so that what lands at a peer lands in one order, and
 * WEFT_SIGNAL_LANDED counts through them. The order is that of a run of the flat plan in rounds, in each of
 * which every lane does one task if it can: a transfer that is read comes before its first reader's round,
 * one that a task causes after that task's round. Whatever a transfer waits for has happened by then in the
 * flat run, so the lane never waits for what comes after it.
 */
#ifndef WEFT_PLAN_LOWERING_H
#define WEFT_PLAN_LOWERING_H

#include "plan/builder.h"

enum { NONE = UINT32_MAX };

typedef struct transfer {
    int from, to;
    weft_region target, source;
    uint64_t key;    /* its place in the lane */
    uint32_t cause;  /* the task whose posts to the rank it makes, or NONE */
    uint32_t next;   /* of the same cause, or NONE */
    uint32_t number; /* of those from that rank to that rank, from 1 */
    uint32_t need0, need_count;
    bool awaits; /* its cause */
} transfer;

/* A region that a task reads in another domain. */
typedef struct far_read {
    int rank; /* of the reader */
    weft_region region;
    uint32_t index;  /* of the region, in all parts */
    uint32_t depth;  /* of the reader */
    weft_region lay; /* where the reader gets it */
} far_read;

typedef struct far_write { /* any write of memory that others may read */
    const weft_region *region;
    uint32_t task;
} far_write;

/* `transfer` waits until `task` has happened, on which that posts to `target`. */
typedef struct trigger {
    uint32_t task;
    int target;
    uint32_t number; /* of those of its lane to that rank, from 1 */
} trigger;

typedef struct need { /* of a transfer: a task of its domain, or another transfer that lands */
    uint32_t task, landed;
} need;

typedef struct box { /* what is read or written, of an operand */
    int64_t row0, row1, col0, col1;
} box;

/* Scratch memory in place of an operand elsewhere: slots for the ranks elsewhere. */
typedef struct stand_in {
    int64_t rows, cols; /* of a slot; 0: there is none */
    uint32_t operand;
} stand_in;

typedef struct lowering {
    const weft_problem *problem;
    const weft_plan_part *flat;
    const int32_t *domain;
    int world;
    uint32_t operands, lanes;          /* lanes: the most of a rank */
    uint32_t *task_base, *region_base; /* [world + 1] */
    uint32_t *depth;                   /* [task] */
    uint32_t *caused;                  /* [task] the first transfer, or NONE */
    uint32_t *read_by;                 /* [region] the transfer that brings it, or NONE */
    box *boxes;                        /* [in or out][operand][rank][peer] */
    stand_in *stand_ins;               /* [in or out][operand] */
    bool *shared;                      /* [operand] was private, but is pushed to */
    bool *read_far;                    /* [operand] is read elsewhere */
    transfer *transfers;
    uint32_t transfer_count, transfer_room;
    uint32_t *order; /* [place] transfers, by rank and key */
    uint32_t *first; /* [world + 1] in `order` */
    uint32_t *sent;  /* [from][to] transfers */
    far_read *reads;
    uint32_t read_count, read_room;
    far_write *writes;
    uint32_t write_count, write_room;
    int64_t write_rows; /* of the tallest of them */
    trigger *triggers;
    uint32_t trigger_count, trigger_room;
    need *needs;
    uint32_t need_count, need_room;
    bool far_triggers;
    bool failed;
    const char *refused; /* why it cannot be done */
} lowering;

/* ---- lower_transfers.c ---------------------------------------------------------------------------- */

/* All transfers of the flat parts, in order, and what each waits for. Fails without memory (`failed`), or
 * where it cannot be done (`refused`). */
void weft_lowering_find(lowering *lowering);
void weft_lowering_free(lowering *lowering);

/* The one that was found for a task and a target; the first of those of `task` and of later ones. */
const trigger *weft_lowering_trigger(const lowering *lowering, uint32_t task, int target);
uint32_t weft_lowering_triggers(const lowering *lowering, uint32_t task);

/* ---- what stands in for memory elsewhere --------------------------------------------------------- */

typedef enum direction { IN, OUT, DIRECTIONS } direction;

static inline bool apart(const lowering *l, int one, int other)
{
    return l->domain[one] != l->domain[other];
}

static inline bool is_empty(const weft_region *region)
{
    return !region->rows || !region->cols;
}

static inline bool reserved(const lowering *l, uint32_t signal)
{
    return signal < 2 * (uint32_t)l->world;
}

static inline bool is_input(const lowering *l, uint32_t operand)
{
    const weft_operand *o = &l->flat[0].operands[operand];

    return o->place == WEFT_PLACE_USER && !o->output;
}

static inline box *box_at(const lowering *l, direction way, uint32_t operand, int rank, int peer)
{
    size_t world = (size_t)l->world;

    return &l->boxes[(((size_t)way * l->operands + operand) * world + (size_t)rank) * world + (size_t)peer];
}

/* Where a region of a peer elsewhere is kept on `rank`. */
static inline weft_region kept(const lowering *l, direction way, int rank, const weft_region *r)
{
    const box *b = box_at(l, way, r->operand, rank, r->rank);
    const stand_in *in = &l->stand_ins[way * (int)l->operands + (int)r->operand];
    weft_region here = *r;
    int64_t slot = 0;

    for (int peer = 0; peer < r->rank; peer++)
        slot += apart(l, rank, peer);
    here.operand = in->operand;
    here.rank = rank;
    here.row0 += slot * in->rows - b->row0;
    here.col0 -= b->col0;
    return here;
}

/* ---- tasks of the flat parts ----------------------------------------------------------------------- */

typedef struct flat_task {
    int rank;
    uint32_t number;
    const weft_plan_part *part;
    const weft_task *task;
    const weft_region *regions;
} flat_task;

static inline flat_task task_at(const lowering *l, int rank, uint32_t index)
{
    const weft_plan_part *part = &l->flat[rank];

    return (flat_task){rank, l->task_base[rank] + index, part, &part->tasks[index],
                       weft_task_regions(part, &part->tasks[index])};
}

/* A COPY from elsewhere that its owner can make as it is: nothing is packed on the way. */
static inline bool is_pull(const lowering *l, const flat_task *t)
{
    const weft_region *source = weft_copy_source(t->part, t->task);

    return t->task->kind == WEFT_TASK_COPY && !is_empty(source) && apart(l, t->rank, source->rank) &&
           !l->flat[0].operands[t->regions[0].operand].packed;
}

static inline bool is_push(const lowering *l, const flat_task *t)
{
    return t->task->kind == WEFT_TASK_COPY && !is_empty(&t->regions[0]) &&
           apart(l, t->rank, t->regions[0].rank);
}

/* The destination of a product or sum that is pushed on: its own, or the first elsewhere (then `out`). */
static inline const weft_region *pushed_on(const lowering *l, const flat_task *t, bool *out)
{
    const weft_region *far = NULL, *own = NULL;

    for (int i = t->task->destinations; i-- > 0;) {
        const weft_region *r = &t->regions[i];

        if (!is_empty(r) && apart(l, t->rank, r->rank))
            far = r;
        else if (r->rank == t->rank)
            own = r;
    }
    *out = far && !own;
    return !far ? NULL : own ? own : far;
}

/* Posts to `to`, or with -1 to ranks of the domain, that are not reserved. */
static inline bool next_post(const lowering *l, const flat_task *t, int to, uint32_t *at, weft_post *post)
{
    for (; *at < t->task->post_count; (*at)++) {
        *post = t->part->posts[t->task->post0 + *at];
        if (reserved(l, post->signal) || (to >= 0 ? post->rank != to : apart(l, t->rank, post->rank)))
            continue;
        (*at)++;
        return true;
    }
    return false;
}

static inline bool posts_to(const lowering *l, const flat_task *t, int to)
{
    weft_post post;
    uint32_t at = 0;

    return next_post(l, t, to, &at, &post);
}

static inline bool waits(const lowering *l, const flat_task *t)
{
    for (uint32_t i = 0; i < t->task->wait_count; i++) {
        if (!reserved(l, t->part->waits[t->task->wait0 + i].signal))
            return true;
    }
    return false;
}

/* A push of an input that waits for nothing needs no task where it was. */
static inline bool is_free(const lowering *l, const flat_task *t)
{
    return is_push(l, t) && is_input(l, weft_copy_source(t->part, t->task)->operand) && !waits(l, t);
}

static inline int rank_of(const lowering *l, uint32_t task)
{
    int low = 0, high = l->world - 1;

    while (low < high) {
        int middle = (low + high) / 2;

        if (task < l->task_base[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

#endif
