/*
 * The plan: a schedule written down as data.
 *
 * A weft_plan_part is what one rank does in one run of a problem. It is made by a pure function of
 * (problem, world size, rank), without communication, in time proportional to the part. Everything else
 * consumes it: the checker, the simulator, the executors, the printers.
 *
 * What always holds
 * - A part has lanes. A lane is a list of tasks done in order; lanes of a rank run beside each other.
 *   A thread blocked at the head of one lane may run the head of another lane of its rank.
 * - A task starts when all of its waits hold; when it is finished all of its posts are made (a post
 *   releases, a wait acquires).
 * - A rank waits only on its own signals; anyone may post to anyone's.
 * - A run of a rank starts all of its lanes and ends when all of them have ended. The next run of the
 *   group on that rank starts after that.
 * - The first task of lane 0 is ENTER, the last is EXIT. ENTER posts WEFT_SIGNAL_ENTER(me) at every
 *   peer: from then on peers may read this rank's inputs and write its outputs and staging memory of
 *   this run. Every peer posts WEFT_SIGNAL_DONE once it touches this rank no more (its ENTER posts that
 *   already where it never does); EXIT waits for all of them. All of these posts and waits are listed in
 *   the plan like any other.
 *   Every task that touches a peer's memory, or posts to it, is ordered after that peer's ENTER of the
 *   same run, by a wait on the ENTER signal or on something that follows from it.
 * - The same plan may run any number of times back to back; `epoch` counts the runs of this plan. That a
 *   peer's run e+1 touches this rank only after its ENTER e+1 is what makes one copy of every buffer
 *   and one set of signals enough.
 *
 * More than one domain
 *
 * Ranks of one domain load and store each other's memory; without `domain` in a part all ranks do. Between
 * domains only COPY moves anything, and only in one form, which this page calls a crossing COPY (see
 * weft_task_crosses): the rank whose lane it is in pushes a region of its own domain into memory of one rank
 * elsewhere, and posts signals of that rank alone. No other task touches or posts to a rank of another
 * domain, but ENTER (below). A bare post that crosses is a crossing COPY of 0 rows. The checker enforces it;
 * weft_plan_make_over makes the plans of any schedule so (lower.c).
 *
 * What an executor does for a crossing COPY
 * - Both ends know it from the plan: (run, source rank, destination rank, its number among the crossing COPYs
 *   of that pair, counted in the order of the source's task list) names the message on both sides.
 * - It starts when its waits hold, like any task; among them, or before it in its lane, is the wait for the
 *   destination's ENTER of this run, the credit that receives are posted and memory may be written. So ENTER
 *   says also that its rank has posted the receives of the run's messages, or will take them in any order. An
 *   executor that keeps a message at its destination until that rank has entered may send it before: for the
 *   plan it lands after.
 * - For its lane it is finished when its source may be overwritten. That says nothing about the destination.
 * - At the destination: bytes may land in any order, also those of one lane. The posts of a message are made
 *   when its bytes are there, and the messages of one lane of one rank to one rank make theirs in the order
 *   of that lane (a message that has landed early posts when those before it have). Between lanes, and
 *   between sources, there is no order.
 * - One of its posts is WEFT_SIGNAL_LANDED(source). EXIT waits for all of those, which stand for the DONE of
 *   ranks elsewhere: DONE never crosses.
 * - ENTER posts WEFT_SIGNAL_ENTER(me) at ranks of other domains too, but only at those that push to this rank
 *   in this plan: those posts are all that crosses beside crossing COPYs. A rank that never pushes to q does
 *   not hear of q.
 */
#ifndef WEFT_PLAN_PLAN_H
#define WEFT_PLAN_PLAN_H

#include <weft/weft.h>
#include "core/part.h"
#include "core/status.h"

#include <stdbool.h>

/* ---- operands and regions ------------------------------------------------------------------------- */

typedef enum weft_operand_place {
    WEFT_PLACE_USER,    /* a buffer the caller gives to each run; ENTER publishes where it lies */
    WEFT_PLACE_STAGING, /* symmetric scratch memory at the same offset on every rank; peers may touch it */
    WEFT_PLACE_PRIVATE  /* scratch memory that only its own rank touches */
} weft_operand_place;

/* The role of a user operand, so that an executor knows which pointer it is. */
typedef enum weft_operand_role {
    WEFT_ROLE_NONE,
    WEFT_ROLE_A,
    WEFT_ROLE_B,
    WEFT_ROLE_C,
    WEFT_ROLE_BIAS,
    WEFT_ROLE_D,
    WEFT_ROLE_SEND, /* collectives */
    WEFT_ROLE_RECV,
    WEFT_ROLE_COUNT
} weft_operand_role;

/*
 * A matrix (per batch element) that every rank has its own instance of. An extent that is `parted` is
 * divided over the ranks, in multiples of its granule: the instance of rank r has weft_part_granular(extent,
 * granule, W, r) of it. Regions count rows and
 * columns from the start of the instance, not of the global matrix.
 */
typedef struct weft_operand {
    char name[12]; /* "A", "B", "D", "gatheredA", "partial" */
    weft_operand_place place;
    weft_operand_role role;
    weft_dtype dtype;
    int64_t rows, cols; /* global when parted, else of each instance */
    bool rows_parted, cols_parted;
    int64_t row_granule, col_granule; /* of an extent that is parted; 0 = 1 */
    bool transposed;                  /* stored column by column */
    bool packed;    /* stored in the GEMM engine's layout for B; only COPY writes it, only GEMM reads it */
    bool handed_on; /* partial sums in the GEMM engine's own order, tile by tile: a GEMM writes a region as
                       bare sums, its only destination, and another starts from that very region */
    bool paired;    /* a column is two numbers side by side, a gate and an up: of a gated activation's B, bias
                       and sums; regions count pairs */
    bool output;    /* the caller gets it back: every element must be written exactly once in a run */
    int64_t batch;  /* matrices in an instance, one after another */
} weft_operand;

typedef struct weft_region {
    uint32_t operand;
    int32_t rank; /* whose instance */
    int64_t batch;
    int64_t row0, rows;
    int64_t col0, cols;
} weft_region;

/* ---- signals -------------------------------------------------------------------------------------- */

/*
 * Signals are numbered 0 .. signal_count-1; every rank has an instance of each. The first 2 W are reserved:
 * number p is posted once a run by the ENTER of rank p at each of its peers, number W + p once a run when
 * rank p has touched the owner's memory for the last time; by nothing else. With more than one domain the
 * next W are reserved too: number 2 W + p is posted by each crossing COPY of rank p to the owner; then
 * numbers p and W + p get no posts from ranks of other domains, but for the ENTER of ranks pushed to.
 */
#define WEFT_SIGNAL_ENTER(rank) ((uint32_t)(rank))
#define WEFT_SIGNAL_DONE(world, rank) ((uint32_t)((world) + (rank)))
#define WEFT_SIGNAL_LANDED(world, rank) ((uint32_t)(2 * (world) + (rank)))

/*
 * Holds when the signal has had `count` posts of this run: its value is at least
 * (epoch - 1) * signal_posts[signal] + count, epochs counted from 1.
 */
typedef struct weft_wait {
    uint32_t signal; /* of this rank */
    uint32_t count;
} weft_wait;

typedef struct weft_post {
    uint32_t signal;
    int32_t rank; /* whose instance is incremented by one */
} weft_post;

/* ---- tasks ---------------------------------------------------------------------------------------- */

typedef enum weft_task_kind {
    WEFT_TASK_ENTER,
    WEFT_TASK_COPY,
    WEFT_TASK_GEMM,
    WEFT_TASK_REDUCE,
    WEFT_TASK_EXIT
} weft_task_kind;

enum {
    WEFT_TASK_EPILOGUE =
        1 << 0, /* alpha, beta, bias, act are applied, D is in d_dtype; else D gets bare sums */
    WEFT_TASK_HAS_ACC = 1 << 1, /* GEMM: the accumulators start from a region */
    WEFT_TASK_HAS_C = 1 << 2,   /* with the epilogue, when beta is not 0 */
    WEFT_TASK_HAS_BIAS = 1 << 3,
    WEFT_TASK_CARRY =
        1 << 4 /* GEMM: the next task of the lane goes on with these sums over the k that follows;
                  nobody else reads the destination, so an executor may keep it to itself */
};

/*
 * The regions of a task, in this order in part->regions[task.region0 ...]:
 *   COPY    destination, source (one side may be a peer's; shapes equal). A copy of 0 rows only waits and
 *           posts. A copy into a packed operand may end inside a panel: the rest of that panel is padding.
 *   GEMM    destinations (1 or more, same shape m x n), A (m x kk), B (kk x n), then ACC, C, BIAS as flagged
 *           (kk may be 0: the accumulators pass through and the epilogue still happens)
 *   REDUCE  destinations (1 or more), then the ordered list of sources, of one type, then C, BIAS as flagged
 * ENTER and EXIT have none.
 */
typedef struct weft_task {
    uint8_t kind; /* weft_task_kind */
    uint8_t flags;
    uint16_t lane;
    uint16_t destinations;
    uint16_t region_count;
    uint32_t region0;
    uint32_t wait0;
    uint32_t post0;
    uint16_t wait_count;
    uint16_t post_count;
} weft_task;

/* Which of a task's regions is what, counted from region0; -1: it has none such. */
typedef struct weft_task_roles {
    int inputs;    /* how many follow the destinations, before those of the epilogue */
    int a, b, acc; /* GEMM */
    int c, bias;
    int ends, end_count; /* the first that the epilogue reads, and how many */
} weft_task_roles;

static inline weft_task_roles weft_task_roles_of(const weft_task *task)
{
    bool product = task->kind == WEFT_TASK_GEMM;
    int first = task->destinations, end = task->region_count;
    weft_task_roles roles = {.a = product ? first : -1,
                             .b = product ? first + 1 : -1,
                             .acc = product && task->flags & WEFT_TASK_HAS_ACC ? first + 2 : -1,
                             .c = -1,
                             .bias = -1};

    if (task->flags & WEFT_TASK_HAS_BIAS)
        roles.bias = --end;
    if (task->flags & WEFT_TASK_HAS_C)
        roles.c = --end;
    roles.inputs = end - first;
    roles.ends = end;
    roles.end_count = task->region_count - end;
    return roles;
}

typedef enum weft_lane_kind { WEFT_LANE_COMPUTE, WEFT_LANE_COPY } weft_lane_kind;

typedef struct weft_lane {
    weft_lane_kind kind;
    uint32_t task0; /* the lane's tasks are tasks[task0 .. task0 + task_count) */
    uint32_t task_count;
} weft_lane;

/* ---- one rank's part ------------------------------------------------------------------------------ */

typedef struct weft_plan_part {
    weft_problem problem; /* resolved: no AUTO, layout set; a tile of 0 is a whole extent, 0 workers are 1 */
    int world, rank;
    int32_t *domain; /* [world] of each rank, numbered as they first appear; NULL when there is one */
    uint64_t hash;   /* of problem, world and domains: equal on all ranks of a correct call */

    weft_operand *operands;
    uint32_t operand_count;
    weft_lane *lanes;
    uint32_t lane_count;
    weft_task *tasks;
    uint32_t task_count;
    weft_region *regions;
    uint32_t region_count;
    weft_wait *waits;
    uint32_t wait_count;
    weft_post *posts;
    uint32_t post_count;
    uint32_t *signal_posts; /* posts each signal of THIS rank gets in a run */
    uint32_t signal_count;  /* equal on all ranks */
} weft_plan_part;

/* The task's regions, the destinations first. */
static inline const weft_region *weft_task_regions(const weft_plan_part *part, const weft_task *task)
{
    return &part->regions[task->region0];
}

/* Those behind the destinations: what a COPY reads, A and B of a GEMM, the sources of a REDUCE. */
static inline const weft_region *weft_task_inputs(const weft_plan_part *part, const weft_task *task)
{
    return weft_task_regions(part, task) + task->destinations;
}

/* What a COPY reads, where it has regions. */
static inline const weft_region *weft_copy_source(const weft_plan_part *part, const weft_task *copy)
{
    return weft_task_inputs(part, copy);
}

/* A and B of a GEMM. */
static inline const weft_region *weft_product_a(const weft_plan_part *part, const weft_task *product)
{
    return weft_task_regions(part, product) + weft_task_roles_of(product).a;
}

static inline const weft_region *weft_product_b(const weft_plan_part *part, const weft_task *product)
{
    return weft_task_regions(part, product) + weft_task_roles_of(product).b;
}

/* Whether a region lies in what this rank's caller gave: nobody makes it in the run. */
static inline bool weft_region_is_given(const weft_plan_part *part, const weft_region *region)
{
    return region->rank == part->rank && part->operands[region->operand].place == WEFT_PLACE_USER;
}

/*
 * What tiles mean. GEMM ops: a GEMM task covers tile_m x tile_n of a result (less at an edge) over the whole
 * local k; Stream-K cuts k at multiples of tile_k. Collectives: a chunk has tile_n elements. 0, or more
 * than there is, means the whole extent. With a grain there are as many tiles in a row as tile_n says, as
 * wide as one another in multiples of the grain, and what is moved or added is shared by all compute lanes
 * alike. A window of a packed operand starts at a multiple of tile_n or of the grain (of WEFT_PACK_COLUMNS
 * where packing is split over workers) and of tile_k: choose them to fit the kernels.
 */
#define WEFT_PACK_COLUMNS                                                                                    \
    192 /* a multiple of every kernel's panel width: 4, 6, 8, 12, 16, 24, 32, 48, 64                         \
         */

/*
 * Makes rank `rank`'s part of a resolved problem (see weft_problem_resolve). On failure `part` is untouched
 * and the sentence is in `error`.
 */
weft_status weft_plan_make(const weft_problem *problem, int world, int rank, weft_plan_part *part,
                           weft_error_text *error);
void weft_plan_part_free(weft_plan_part *part);

/*
 * The same for ranks in domains: `domain` says of each rank which it is in, by any numbers; NULL, or one
 * number only, is weft_plan_make. A schedule that knows of one domain is lowered, for which the parts of all
 * ranks are looked at; weft_plan_make_all does that once for all of `parts`.
 */
weft_status weft_plan_make_over(const weft_problem *problem, const int32_t *domain, int world, int rank,
                                weft_plan_part *part, weft_error_text *error);
weft_status weft_plan_make_all(const weft_problem *problem, const int32_t *domain, int world,
                               weft_plan_part *parts, weft_error_text *error);

/*
 * Checks a problem and fills what has a default that does not depend on the machine: the layout from the
 * schedule's name (a conflict is an error), dtypes, l. AUTO, tiles and workers are left for the caller,
 * who knows the machine.
 */
weft_status weft_problem_resolve(const weft_problem *problem, int world, weft_problem *resolved,
                                 weft_error_text *error);

/* Whether it has, or may have, a plan that stages. */
bool weft_problem_can_be_staged(const weft_problem *problem);

/* The same for ranks in domains, numbered as they first appear (NULL: one): where nobody shares one, there is
 * nothing to stage. */
bool weft_plan_can_be_staged(const weft_problem *problem, const int32_t *domain, int world);

/* The roles that some rank touches on a peer by address, as bits, in the plan of a resolved problem over
 * these domains (NULL: one): so each rank knows without asking which of its operands its peers must reach. */
uint32_t weft_plan_touched(const weft_problem *problem, const int32_t *domain, int world);

/* The epilogue does nothing but round to D, and that to the type of A and B (fp8: bfloat16). */
bool weft_problem_only_rounds(const weft_problem *problem);

uint64_t weft_problem_hash(const weft_problem *problem, int world);

/* The same with the domains, which may be NULL: what `hash` of a part is. */
uint64_t weft_plan_hash(const weft_problem *problem, const int32_t *domain, int world);

/* Do both ask for the same, field by field? */
bool weft_problem_same(const weft_problem *one, const weft_problem *other);

enum { WEFT_SCALE_BLOCK = 128 }; /* `scales` of a problem whose runs have a factor for each such block */

static inline bool weft_layout_gathers_k(weft_layout layout)
{
    return layout == WEFT_LAYOUT_GATHER_A_K || layout == WEFT_LAYOUT_GATHER_B_K;
}

/* Whether D = act(gate) * up: all operands but A and D are paired. */
static inline bool weft_problem_is_gated(const weft_problem *problem)
{
    return problem->act >= WEFT_ACT_RELU_GATED;
}

/* Numbers in a column of an operand's row. */
static inline int64_t weft_operand_width(const weft_operand *operand)
{
    return operand->paired ? 2 : 1;
}

/* Whether ranks store into each other's inboxes alone, so that a backend may carry each post inside of what
 * it posts: see src/plan/packets.c. */
static inline bool weft_schedule_is_packets(weft_schedule schedule)
{
    return schedule == WEFT_SCHEDULE_PACKETS || schedule == WEFT_SCHEDULE_TWO_SHOT_PACKETS;
}

/* Whether sums are stored to where they are added up: see src/plan/gemm_packets.c. */
static inline bool weft_problem_stores_sums(const weft_problem *problem)
{
    return (problem->op == WEFT_OP_GEMM_RS || problem->op == WEFT_OP_GEMM_AR) &&
           problem->schedule == WEFT_SCHEDULE_UNFUSED &&
           (problem->tuning.exchange == 1 || problem->tuning.exchange == 2);
}

/* What of the extents of a problem, where they are divided, lies on rank `rank`. Rank 0 has the most. */
static inline weft_span weft_problem_part_m(const weft_problem *problem, int world, int rank)
{
    return weft_part_granular(problem->m, problem->granule_m, world, rank);
}

static inline weft_span weft_problem_part_n(const weft_problem *problem, int world, int rank)
{
    return weft_part_granular(problem->n, problem->granule_n, world, rank);
}

static inline weft_span weft_problem_part_k(const weft_problem *problem, int world, int rank)
{
    return weft_part_granular(problem->k, problem->granule_k, world, rank);
}

/* Whether all ranks have as much of a divided extent, and that in whole vectors. */
static inline bool weft_parts_even(int64_t extent, int64_t granule, int world, int64_t vector)
{
    int64_t least = weft_part_granular(extent, granule, world, world - 1).count;

    return least * world == extent && least % vector == 0;
}

/* The slice of an all_reduce by two_shot_packets that a rank adds up; that of rank 0 is the longest. Slices
 * begin on whole vectors of 16 bytes, as far as send does. */
weft_span weft_lines_slice(const weft_problem *problem, int world, int rank);

/* Which rows and columns of an operand rank `rank`'s instance has. Rank 0 has the most. */
static inline weft_span weft_operand_row_span(const weft_operand *operand, int world, int rank)
{
    return operand->rows_parted ? weft_part_granular(operand->rows, operand->row_granule, world, rank)
                                : (weft_span){0, operand->rows};
}

static inline weft_span weft_operand_col_span(const weft_operand *operand, int world, int rank)
{
    return operand->cols_parted ? weft_part_granular(operand->cols, operand->col_granule, world, rank)
                                : (weft_span){0, operand->cols};
}

static inline int64_t weft_operand_rows(const weft_operand *operand, int world, int rank)
{
    return weft_operand_row_span(operand, world, rank).count;
}

static inline int64_t weft_operand_cols(const weft_operand *operand, int world, int rank)
{
    return weft_operand_col_span(operand, world, rank).count;
}

/* Do two ranks have memory that the other cannot load and store? */
static inline bool weft_domains_differ(const weft_plan_part *part, int one, int other)
{
    return part->domain && part->domain[one] != part->domain[other];
}

/* Is it a message to another domain? */
static inline bool weft_task_crosses(const weft_plan_part *part, const weft_task *task)
{
    return task->kind == WEFT_TASK_COPY && task->region_count &&
           weft_domains_differ(part, part->rank, weft_task_regions(part, task)->rank);
}

/* ---- names ---------------------------------------------------------------------------------------- */

int weft_op_parse(const char *name, weft_op *op);

/* Beside its name a schedule has the aliases users know (triton_one_shot_all_reduce and its kin). */
int weft_schedule_parse(const char *name, weft_schedule *schedule);

#endif
