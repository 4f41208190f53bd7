/*
 * Builds one rank's part task by task, and adds by itself what every plan needs: ENTER and EXIT, the wait
 * for a peer's ENTER before a lane first touches that peer (or posts to it), and the DONE posts after the
 * last touch (or post: the next run of the group, perhaps of another plan, counts on the same signals). A
 * generator says only what moves and what is computed; with more than one domain also what crosses to this
 * rank (weft_builder_lands).
 *
 * Lanes and operands are declared first; then tasks in any interleaving of lanes, each lane in its order.
 * Memory failures are remembered and reported once, by weft_builder_finish.
 */
#ifndef WEFT_PLAN_BUILDER_H
#define WEFT_PLAN_BUILDER_H

#include "plan/plan.h"

enum { WEFT_GATES_MAX = 4 };

/*
 * An input of the caller's that peers read in symmetric memory, to which its owner copies it chunk by chunk
 * of its rows or columns (see staged.h). Chunks are numbered by batch and place; chunk c is copied by lane
 * c mod lanes of those from lane0 on, which tells the peers: signal (owner, lane) says how many it has
 * copied. Or an owner's chunks share a signal, and who reads one waits for all: once, and not task by task.
 */
typedef struct weft_staged {
    uint32_t operand, copy; /* the caller's, and where it is staged */
    bool by_rows;
    int64_t chunk; /* rows, or columns; 0: nothing is staged */
    int lane0, lanes;
    int places; /* signals of an owner: one, or one for each lane */
    uint32_t signals;
    int64_t done; /* chunks of this rank that the plan has copied so far */
} weft_staged;

typedef struct weft_builder {
    weft_plan_part part; /* grows here; tasks of all lanes mixed until finish sorts them */
    const weft_problem *problem;
    const int32_t *domain; /* as in the part */
    int world, rank;
    bool failed;
    uint32_t task_room, region_room, wait_room, post_room;
    uint32_t *touched;      /* [lane][peer]: 1 + last task of the lane that touches the peer's memory
                               or posts to it */
    uint8_t *entered;       /* [lane][peer]: the lane has waited for the peer's ENTER */
    weft_wait *lane_waited; /* [lane]: the last wait of the lane that was not on an ENTER signal */
    uint8_t *gates_passed;  /* [lane] */
    weft_wait gates[WEFT_GATES_MAX];
    int gate_count;
    weft_staged staged; /* regions of it on peers become those of its copy, with the waits for them */
} weft_builder;

/* `domain` is numbered as in a part, or NULL. */
weft_builder weft_builder_begin(const weft_problem *problem, const int32_t *domain, int world, int rank);

static inline bool weft_builder_crosses(const weft_builder *builder, int peer)
{
    return builder->domain && builder->domain[peer] != builder->domain[builder->rank];
}

/*
 * One more crossing COPY of rank `from` comes here; returns how many that makes, which is what a task that
 * needs it waits for of WEFT_SIGNAL_LANDED(from), where `from` has all of its crossing COPYs in one lane.
 */
int64_t weft_builder_lands(weft_builder *builder, int from);

/* Chunks of it that a rank has in one matrix of a batch. */
int64_t weft_builder_staged_chunks(const weft_builder *builder, int rank);

/* How many chunks of it signal `place` of a rank stands for, in all. */
int64_t weft_builder_staged_of(const weft_builder *builder, int rank, int place);

/* Returns the operand's number. Only before the first task. */
uint32_t weft_builder_operand(weft_builder *builder, weft_operand operand);

/* Adds `count` lanes of a kind, returns the number of the first. Only before the first task. */
int weft_builder_lanes(weft_builder *builder, weft_lane_kind kind, int count);

/* Reserves `count` signals (on every rank alike), returns the number of the first; this rank gets no posts
 * on them until weft_builder_expect says how many. Only before the first task. */
uint32_t weft_builder_signals(weft_builder *builder, int64_t count);
void weft_builder_expect(weft_builder *builder, uint32_t signal, int64_t posts);

/* One more post than so far; returns how many that makes. */
int64_t weft_builder_expect_more(weft_builder *builder, uint32_t signal);

/* A task: begin, then destinations, other regions in the order of plan.h, waits and posts, then end. */
void weft_builder_task(weft_builder *builder, int lane, weft_task_kind kind, unsigned flags);
void weft_builder_carries(weft_builder *builder); /* the next task of the lane goes on with its sums */
void weft_builder_wait(weft_builder *builder, uint32_t signal, int64_t count); /* once for a lane */
void weft_builder_post(weft_builder *builder, uint32_t signal, int rank);
void weft_builder_end(weft_builder *builder);

/* A place in the open task for its next region, NULL where the builder has failed; and once it is filled in,
 * the same of what a peer has staged. */
weft_region *weft_builder_place(weft_builder *builder, bool destination);
void weft_builder_place_staged(weft_builder *builder, weft_region *region);

/* A region that is written, and one that is read. Inline, so that it is made in its place: a plan has
 * thousands, and waiting for copies of what had just been stored took half of the time it is made in. */
static inline void weft_builder_add(weft_builder *builder, weft_region region, bool destination)
{
    weft_region *place = weft_builder_place(builder, destination);

    if (!place)
        return;
    *place = region;
    if (builder->staged.chunk)
        weft_builder_place_staged(builder, place);
}

static inline void weft_builder_to(weft_builder *builder, weft_region region)
{
    weft_builder_add(builder, region, true);
}

static inline void weft_builder_from(weft_builder *builder, weft_region region)
{
    weft_builder_add(builder, region, false);
}

/* From here on every compute lane waits for `count` posts of `signal` before its next task. */
void weft_builder_gate(weft_builder *builder, uint32_t signal, int64_t count);

/* A whole COPY task without waits and posts of its own is so common that it has a name. */
void weft_builder_copy(weft_builder *builder, int lane, weft_region to, weft_region from);

/* Hands the finished part over, or frees everything. */
weft_status weft_builder_finish(weft_builder *builder, weft_plan_part *part, weft_error_text *error);

static inline weft_region weft_region_make(uint32_t operand, int rank, int64_t batch, weft_span rows,
                                           weft_span cols)
{
    return (weft_region){operand, rank, batch, rows.begin, rows.count, cols.begin, cols.count};
}

#endif
