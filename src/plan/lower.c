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
#include "plan/lower.h"
#include "plan/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    transfer *transfers;
    uint32_t transfer_count, transfer_room;
    uint32_t *order; /* [place] transfers, by rank and key */
    uint32_t *first; /* [world + 1] in `order` */
    far_read *reads;
    uint32_t read_count, read_room;
    far_write *writes;
    uint32_t write_count, write_room;
    trigger *triggers;
    uint32_t trigger_count, trigger_room;
    need *needs;
    uint32_t need_count, need_room;
    bool far_triggers;
    bool failed;
    const char *refused; /* why it cannot be done */
} lowering;

static bool grow(lowering *l, void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    void *more;

    if (l->failed)
        return false;
    if (count < *room)
        return true;
    more = realloc(*array, (size_t)(*room ? 2 * *room : 64) * bytes);
    if (!more) {
        l->failed = true;
        return false;
    }
    *array = more;
    *room = *room ? 2 * *room : 64;
    return true;
}

#define ADD(l, what, ...)                                                                                    \
    do {                                                                                                     \
        if (grow((l), (void **)&(l)->what##s, (l)->what##_count, &(l)->what##_room, sizeof(*(l)->what##s)))  \
            (l)->what##s[(l)->what##_count++] = __VA_ARGS__;                                                 \
    } while (0)

static bool apart(const lowering *l, int one, int other)
{
    return l->domain[one] != l->domain[other];
}

static bool is_empty(const weft_region *region)
{
    return !region->rows || !region->cols;
}

static bool reserved(const lowering *l, uint32_t signal)
{
    return signal < 2 * (uint32_t)l->world;
}

static bool is_input(const lowering *l, uint32_t operand)
{
    const weft_operand *o = &l->flat[0].operands[operand];

    return o->place == WEFT_PLACE_USER && !o->output;
}

/* ---- rounds -------------------------------------------------------------------------------------- */

/* In which round every task happens, when each lane does one task in a round if it can. */
static void find_depths(lowering *l)
{
    uint32_t signals = l->flat[0].signal_count, left = l->task_base[l->world], round = 0, before = left + 1;
    uint32_t *posts = calloc((size_t)l->world * signals, sizeof(uint32_t));
    uint32_t *next = calloc((size_t)l->world * l->lanes, sizeof(uint32_t));

    for (; posts && next && left && left != before; round++) {
        before = left;
        for (int rank = 0; rank < l->world; rank++) {
            const weft_plan_part *part = &l->flat[rank];

            for (uint32_t lane = 0; lane < part->lane_count; lane++) {
                uint32_t at = next[(uint32_t)rank * l->lanes + lane], index = part->lanes[lane].task0 + at;
                bool held = at < part->lanes[lane].task_count;

                for (uint32_t i = 0; held && i < part->tasks[index].wait_count; i++) {
                    const weft_wait *wait = &part->waits[part->tasks[index].wait0 + i];

                    held = posts[(uint32_t)rank * signals + wait->signal] >= wait->count;
                }
                if (held)
                    l->depth[l->task_base[rank] + index] = round + 1;
            }
        }
        for (int rank = 0; rank < l->world; rank++) {
            const weft_plan_part *part = &l->flat[rank];

            for (uint32_t lane = 0; lane < part->lane_count; lane++) {
                uint32_t *at = &next[(uint32_t)rank * l->lanes + lane], index = part->lanes[lane].task0 + *at;

                if (*at == part->lanes[lane].task_count || l->depth[l->task_base[rank] + index] != round + 1)
                    continue;
                (*at)++;
                left--;
                for (uint32_t i = 0; i < part->tasks[index].post_count; i++) {
                    const weft_post *post = &part->posts[part->tasks[index].post0 + i];

                    posts[(uint32_t)post->rank * signals + post->signal]++;
                }
            }
        }
    }
    l->failed |= !posts || !next;
    if (left && !l->failed)
        l->refused = "it waits for ever";
    free(posts);
    free(next);
}

/* ---- what stands in for memory elsewhere --------------------------------------------------------- */

typedef enum direction { IN, OUT, DIRECTIONS } direction;

static box *box_at(const lowering *l, direction way, uint32_t operand, int rank, int peer)
{
    size_t world = (size_t)l->world;

    return &l->boxes[(((size_t)way * l->operands + operand) * world + (size_t)rank) * world + (size_t)peer];
}

static void widen(lowering *l, direction way, int rank, const weft_region *r)
{
    box *b = box_at(l, way, r->operand, rank, r->rank);
    bool first = b->row0 == b->row1;

    b->row0 = first || r->row0 < b->row0 ? r->row0 : b->row0;
    b->col0 = first || r->col0 < b->col0 ? r->col0 : b->col0;
    b->row1 = first || r->row0 + r->rows > b->row1 ? r->row0 + r->rows : b->row1;
    b->col1 = first || r->col0 + r->cols > b->col1 ? r->col0 + r->cols : b->col1;
}

/* Where a region of a peer elsewhere is kept on `rank`. */
static weft_region kept(const lowering *l, direction way, int rank, const weft_region *r)
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

static void size_stand_ins(lowering *l)
{
    uint32_t next = l->operands;

    for (int i = 0; i < DIRECTIONS * (int)l->operands; i++) {
        stand_in *in = &l->stand_ins[i];

        for (size_t j = 0; j < (size_t)l->world * (size_t)l->world; j++) {
            const box *b = &l->boxes[(size_t)i * (size_t)l->world * (size_t)l->world + j];

            in->rows = b->row1 - b->row0 > in->rows ? b->row1 - b->row0 : in->rows;
            in->cols = b->col1 - b->col0 > in->cols ? b->col1 - b->col0 : in->cols;
        }
        if (in->rows)
            in->operand = next++;
    }
}

/* ---- what crosses -------------------------------------------------------------------------------- */

typedef struct flat_task {
    int rank;
    uint32_t number;
    const weft_plan_part *part;
    const weft_task *task;
    const weft_region *regions;
} flat_task;

static flat_task task_at(const lowering *l, int rank, uint32_t index)
{
    const weft_plan_part *part = &l->flat[rank];

    return (flat_task){rank, l->task_base[rank] + index, part, &part->tasks[index],
                       &part->regions[part->tasks[index].region0]};
}

/* A COPY from elsewhere that its owner can make as it is: nothing is packed on the way. */
static bool is_pull(const lowering *l, const flat_task *t)
{
    return t->task->kind == WEFT_TASK_COPY && !is_empty(&t->regions[1]) &&
           apart(l, t->rank, t->regions[1].rank) && !l->flat[0].operands[t->regions[0].operand].packed;
}

static bool is_push(const lowering *l, const flat_task *t)
{
    return t->task->kind == WEFT_TASK_COPY && !is_empty(&t->regions[0]) &&
           apart(l, t->rank, t->regions[0].rank);
}

/* The destination of a product or sum that is pushed on: its own, or the first elsewhere (then `out`). */
static const weft_region *pushed_on(const lowering *l, const flat_task *t, bool *out)
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

/* First look: which regions need a place here. */
static void look(lowering *l, const flat_task *t)
{
    bool out = false, copies = t->task->kind == WEFT_TASK_COPY;
    const weft_region *on = copies ? NULL : pushed_on(l, t, &out);

    if (out)
        widen(l, OUT, t->rank, on);
    for (int i = t->task->destinations; i < t->task->region_count; i++) {
        const weft_region *r = &t->regions[i];

        if (is_empty(r) || !apart(l, t->rank, r->rank))
            continue;
        if (l->flat[0].operands[r->operand].packed)
            l->refused = "a packed operand does not travel";
        if (!is_pull(l, t))
            widen(l, IN, t->rank, r);
        else if (l->flat[0].operands[t->regions[0].operand].place == WEFT_PLACE_PRIVATE)
            l->shared[t->regions[0].operand] = true;
    }
}

/* Posts to `to`, or with -1 to ranks of the domain, that are not reserved. */
static bool next_post(const lowering *l, const flat_task *t, int to, uint32_t *at, weft_post *post)
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

static bool posts_to(const lowering *l, const flat_task *t, int to)
{
    weft_post post;
    uint32_t at = 0;

    return next_post(l, t, to, &at, &post);
}

static bool waits(const lowering *l, const flat_task *t)
{
    for (uint32_t i = 0; i < t->task->wait_count; i++) {
        if (!reserved(l, t->part->waits[t->task->wait0 + i].signal))
            return true;
    }
    return false;
}

/* A push of an input that waits for nothing needs no task where it was. */
static bool is_free(const lowering *l, const flat_task *t)
{
    return is_push(l, t) && is_input(l, t->regions[1].operand) && !waits(l, t);
}

static void cause_transfer(lowering *l, const flat_task *t, weft_region target, weft_region source)
{
    bool awaits = !is_free(l, t);
    uint32_t *last = &l->caused[t->number];

    while (*last != NONE)
        last = &l->transfers[*last].next;
    *last = l->transfer_count;
    if (awaits)
        ADD(l, trigger, (trigger){t->number, t->rank, 0});
    ADD(l, transfer,
        (transfer){.from = t->rank,
                   .to = target.rank,
                   .target = target,
                   .source = source,
                   .key = 2 * (uint64_t)l->depth[t->number] + 1,
                   .cause = t->number,
                   .next = NONE,
                   .awaits = awaits});
}

/* Second look: the transfers that a task causes, and what it reads. */
static void collect(lowering *l, const flat_task *t)
{
    bool copies = t->task->kind == WEFT_TASK_COPY, out = false;
    const weft_region *on = copies ? NULL : pushed_on(l, t, &out);
    weft_region source = copies && t->task->region_count ? t->regions[1] : (weft_region){.rank = t->rank};

    if (on)
        source = out ? kept(l, OUT, t->rank, on) : *on;
    for (int step = 1; step < l->world; step++) {
        int to = (t->rank + step) % l->world;
        bool pushed = false;

        if (!apart(l, t->rank, to) || t->task->kind == WEFT_TASK_ENTER || t->task->kind == WEFT_TASK_EXIT)
            continue;
        for (int i = 0; i < t->task->destinations; i++) {
            if (t->regions[i].rank != to || is_empty(&t->regions[i]))
                continue;
            cause_transfer(l, t, t->regions[i], source);
            pushed = true;
        }
        if (!pushed && posts_to(l, t, to))
            cause_transfer(l, t, (weft_region){.rank = to}, (weft_region){.rank = t->rank});
    }
    for (int i = 0; i < t->task->region_count; i++) {
        const weft_region *r = &t->regions[i];

        if (is_empty(r))
            continue;
        if (i < t->task->destinations)
            ADD(l, write, (far_write){r, t->number});
        else if (apart(l, t->rank, r->rank))
            ADD(l, read,
                (far_read){t->rank, *r, l->region_base[t->rank] + t->task->region0 + (uint32_t)i,
                           l->depth[t->number], is_pull(l, t) ? t->regions[0] : kept(l, IN, t->rank, r)});
    }
}

static int rank_of(const lowering *l, uint32_t task)
{
    int rank = 0;

    while (task >= l->task_base[rank + 1])
        rank++;
    return rank;
}

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_regions(const weft_region *a, const weft_region *b, bool matrix_only)
{
    int by = compare_numbers(a->operand, b->operand);

    by = by ? by : compare_numbers(a->rank, b->rank);
    by = by ? by : compare_numbers(a->batch, b->batch);
    if (matrix_only)
        return by;
    by = by ? by : compare_numbers(a->row0, b->row0);
    by = by ? by : compare_numbers(a->rows, b->rows);
    by = by ? by : compare_numbers(a->col0, b->col0);
    return by ? by : compare_numbers(a->cols, b->cols);
}

static int compare_reads(const void *left, const void *right)
{
    const far_read *a = left, *b = right;
    int by = compare_numbers(a->rank, b->rank);

    by = by ? by : compare_regions(&a->region, &b->region, false);
    by = by ? by : compare_regions(&a->lay, &b->lay, false);
    return by ? by : compare_numbers(a->index, b->index);
}

static int compare_writes(const void *left, const void *right)
{
    const far_write *a = left, *b = right;
    int by = compare_regions(a->region, b->region, true);

    return by ? by : compare_numbers(a->task, b->task);
}

static bool overlap(const weft_region *a, const weft_region *b)
{
    return a->row0 < b->row0 + b->rows && b->row0 < a->row0 + a->rows && a->col0 < b->col0 + b->cols &&
           b->col0 < a->col0 + a->cols;
}

static uint32_t transfer_to(const lowering *l, uint32_t cause, int to)
{
    uint32_t t = l->caused[cause];

    while (t != NONE && l->transfers[t].to != to)
        t = l->transfers[t].next;
    return t;
}

/* Whoever writes a region of its owner comes before it is pushed. */
static void need_writers(lowering *l, uint32_t number, const weft_region *region)
{
    far_write wanted = {.region = region};
    uint32_t low = 0, high = l->write_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (compare_writes(&l->writes[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    l->transfers[number].need0 = l->need_count;
    for (; low < l->write_count && !compare_regions(l->writes[low].region, region, true); low++) {
        uint32_t task = l->writes[low].task;

        if (!overlap(l->writes[low].region, region))
            continue;
        if (apart(l, rank_of(l, task), region->rank)) {
            ADD(l, need, (need){NONE, transfer_to(l, task, region->rank)});
        } else {
            l->far_triggers |= rank_of(l, task) != region->rank;
            ADD(l, trigger, (trigger){task, region->rank, 0});
            ADD(l, need, (need){task, NONE});
        }
    }
    l->transfers[number].need_count = l->need_count - l->transfers[number].need0;
}

/* One transfer for all who read the same. */
static void bring_reads(lowering *l)
{
    if (l->read_count)
        qsort(l->reads, l->read_count, sizeof(*l->reads), compare_reads);
    if (l->write_count)
        qsort(l->writes, l->write_count, sizeof(*l->writes), compare_writes);
    for (uint32_t i = 0; i < l->read_count && !l->failed; i++) {
        const far_read *read = &l->reads[i], *before = read - 1;
        uint64_t key = 2 * (uint64_t)read->depth;

        if (i && read->rank == before->rank && !compare_regions(&read->region, &before->region, false) &&
            !compare_regions(&read->lay, &before->lay, false)) {
            transfer *t = &l->transfers[l->transfer_count - 1];

            t->key = key < t->key ? key : t->key;
        } else {
            ADD(l, transfer,
                (transfer){.from = read->region.rank,
                           .to = read->rank,
                           .target = read->lay,
                           .source = read->region,
                           .key = key,
                           .cause = NONE,
                           .next = NONE});
            if (!is_input(l, read->region.operand) && !l->failed)
                need_writers(l, l->transfer_count - 1, &read->region);
        }
        l->read_by[read->index] = l->transfer_count - 1;
    }
}

/* ---- order --------------------------------------------------------------------------------------- */

static _Thread_local const lowering *sorted; /* qsort has no context */

static int compare_transfers(const void *left, const void *right)
{
    uint32_t i = *(const uint32_t *)left, j = *(const uint32_t *)right;
    const transfer *a = &sorted->transfers[i], *b = &sorted->transfers[j];
    int world = sorted->world, by = compare_numbers(a->from, b->from);

    by = by ? by : compare_numbers((int64_t)a->key, (int64_t)b->key);
    by = by ? by : compare_numbers((a->to - a->from + world) % world, (b->to - b->from + world) % world);
    return by ? by : compare_numbers(i, j);
}

static void order_transfers(lowering *l)
{
    uint32_t *count = calloc((size_t)l->world, sizeof(*count));

    l->order = malloc(((size_t)l->transfer_count + 1) * sizeof(*l->order));
    if (!l->order || !count) {
        l->failed = true;
        free(count);
        return;
    }
    for (uint32_t i = 0; i < l->transfer_count; i++)
        l->order[i] = i;
    sorted = l;
    qsort(l->order, l->transfer_count, sizeof(*l->order), compare_transfers);
    for (uint32_t i = 0, rank = 0; rank <= (uint32_t)l->world; rank++) {
        l->first[rank] = i;
        memset(count, 0, (size_t)l->world * sizeof(*count));
        for (; i < l->transfer_count && l->transfers[l->order[i]].from == (int)rank; i++)
            l->transfers[l->order[i]].number = ++count[l->transfers[l->order[i]].to];
    }
    free(count);
}

static int compare_triggers(const void *left, const void *right)
{
    const trigger *a = left, *b = right;
    int by = compare_numbers(a->task, b->task);

    return by ? by : compare_numbers(a->target, b->target);
}

/* Each once, numbered through its lane; tasks of a lane are numbered in its order. */
static void number_triggers(lowering *l)
{
    uint32_t *count = calloc((size_t)l->world, sizeof(*count)), unique = 0;
    int64_t lane = -1;

    l->failed |= !count;
    if (l->trigger_count && !l->failed)
        qsort(l->triggers, l->trigger_count, sizeof(*l->triggers), compare_triggers);
    for (uint32_t i = 0; i < l->trigger_count && !l->failed; i++) {
        trigger t = l->triggers[i];
        int rank = rank_of(l, t.task);
        int64_t its = (int64_t)rank * l->lanes + l->flat[rank].tasks[t.task - l->task_base[rank]].lane;

        if (unique && !compare_triggers(&t, &l->triggers[unique - 1]))
            continue;
        if (its != lane)
            memset(count, 0, (size_t)l->world * sizeof(*count));
        lane = its;
        t.number = ++count[t.target];
        l->triggers[unique++] = t;
    }
    l->trigger_count = unique;
    free(count);
}

static const trigger *find_trigger(const lowering *l, uint32_t task, int target)
{
    trigger wanted = {task, target, 0};

    return bsearch(&wanted, l->triggers, l->trigger_count, sizeof(wanted), compare_triggers);
}

/* ---- the parts ----------------------------------------------------------------------------------- */

typedef struct emission {
    const lowering *l;
    weft_builder b;
    uint32_t happened; /* signals: (lane) of the own tasks, or (rank, lane) of all of the domain */
    int wire;          /* the lane of transfers */
} emission;

static uint32_t moved_signal(const lowering *l, uint32_t signal)
{
    return signal + (uint32_t)l->world; /* the signals that count landings come before */
}

static uint32_t trigger_signal(const emission *e, int rank, uint32_t lane)
{
    return e->happened + (e->l->far_triggers ? (uint32_t)rank * e->l->lanes : 0) + lane;
}

static void declare(emission *e)
{
    const lowering *l = e->l;
    const weft_plan_part *part = &l->flat[e->b.rank];
    int64_t ordinary = (int64_t)part->signal_count - 2 * (int64_t)l->world;
    uint32_t first;

    for (uint32_t i = 0; i < l->operands; i++) {
        weft_operand operand = part->operands[i];

        operand.handed_on = false;
        if (l->shared[i])
            operand.place = WEFT_PLACE_STAGING;
        weft_builder_operand(&e->b, operand);
    }
    for (int i = 0; i < DIRECTIONS * (int)l->operands; i++) {
        const stand_in *in = &l->stand_ins[i];
        const weft_operand *o = &part->operands[i % (int)l->operands];
        weft_operand operand = {.place = WEFT_PLACE_STAGING,
                                .dtype = o->dtype,
                                .rows = in->rows * (l->world - 1),
                                .cols = in->cols,
                                .transposed = o->transposed,
                                .paired = o->paired,
                                .batch = o->batch};

        if (!in->rows)
            continue;
        snprintf(operand.name, sizeof(operand.name), "%s%u", i < (int)l->operands ? "in" : "out",
                 (uint8_t)(i % (int)l->operands));
        weft_builder_operand(&e->b, operand);
    }
    for (uint32_t i = 0; i < part->lane_count; i++)
        weft_builder_lanes(&e->b, part->lanes[i].kind, 1);
    e->wire = weft_builder_lanes(&e->b, WEFT_LANE_COPY, l->first[e->b.rank + 1] > l->first[e->b.rank]);
    first = weft_builder_signals(&e->b, ordinary);
    for (int64_t i = 0; i < ordinary; i++)
        weft_builder_expect(&e->b, first + (uint32_t)i, part->signal_posts[2 * l->world + i]);
    e->happened = weft_builder_signals(&e->b, (int64_t)l->lanes * (l->far_triggers ? l->world : 1));
    for (uint32_t i = 0; i < l->trigger_count; i++) {
        int rank = rank_of(l, l->triggers[i].task);

        if (l->triggers[i].target == e->b.rank)
            weft_builder_expect(
                &e->b,
                trigger_signal(e, rank, l->flat[rank].tasks[l->triggers[i].task - l->task_base[rank]].lane),
                l->triggers[i].number);
    }
    for (uint32_t i = 0; i < l->transfer_count; i++) {
        if (l->transfers[i].to == e->b.rank)
            weft_builder_lands(&e->b, l->transfers[i].from);
    }
}

static void add_waits(emission *e, const flat_task *t)
{
    const lowering *l = e->l;

    for (uint32_t i = 0; i < t->task->wait_count; i++) {
        const weft_wait *wait = &t->part->waits[t->task->wait0 + i];

        if (!reserved(l, wait->signal))
            weft_builder_wait(&e->b, moved_signal(l, wait->signal), wait->count);
    }
    for (uint32_t i = 0; i < t->task->region_count; i++) {
        uint32_t by = l->read_by[l->region_base[t->rank] + t->task->region0 + i];

        if (by != NONE)
            weft_builder_wait(&e->b, WEFT_SIGNAL_LANDED(l->world, l->transfers[by].from),
                              l->transfers[by].number);
    }
}

static void add_posts(emission *e, const flat_task *t, int to)
{
    weft_post post;

    for (uint32_t at = 0; next_post(e->l, t, to, &at, &post);)
        weft_builder_post(&e->b, moved_signal(e->l, post.signal), post.rank);
}

static void add_triggers(emission *e, const flat_task *t)
{
    const lowering *l = e->l;
    uint32_t low = 0, high = l->trigger_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (l->triggers[middle].task < t->number)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < l->trigger_count && l->triggers[low].task == t->number; low++)
        weft_builder_post(&e->b, trigger_signal(e, t->rank, t->task->lane), l->triggers[low].target);
}

static void nothing(emission *e)
{
    weft_builder_to(&e->b, (weft_region){.rank = e->b.rank});
    weft_builder_from(&e->b, (weft_region){.rank = e->b.rank});
}

/* Is it the end of a lane that only waits for what the flat plan said to ranks elsewhere? */
static bool only_waits_at_end(const lowering *l, const flat_task *t)
{
    return t->task->kind == WEFT_TASK_COPY && is_empty(t->regions) && !posts_to(l, t, -1) &&
           l->caused[t->number] == NONE && t->task[1].kind == WEFT_TASK_EXIT && t->task->lane == 0;
}

/* A task in its own lane, without what crosses. */
static void emit_task(emission *e, const flat_task *t)
{
    const lowering *l = e->l;
    bool moves = is_push(l, t) || is_pull(l, t), out = false;
    const weft_region *on = t->task->kind == WEFT_TASK_COPY ? NULL : pushed_on(l, t, &out);

    if (t->task->kind == WEFT_TASK_ENTER || t->task->kind == WEFT_TASK_EXIT || is_free(l, t) ||
        only_waits_at_end(l, t))
        return;
    weft_builder_task(&e->b, t->task->lane, (weft_task_kind)t->task->kind, t->task->flags);
    if (moves)
        nothing(e);
    if (out)
        weft_builder_to(&e->b, kept(l, OUT, t->rank, on));
    for (int i = 0; i < t->task->region_count && !moves; i++) {
        uint32_t by = l->read_by[l->region_base[t->rank] + t->task->region0 + (uint32_t)i];
        const weft_region *r = &t->regions[i];

        if (i >= t->task->destinations)
            weft_builder_from(&e->b, by != NONE ? l->transfers[by].target : *r);
        else if (t->task->kind == WEFT_TASK_COPY && is_empty(r))
            weft_builder_to(&e->b, (weft_region){.rank = e->b.rank});
        else if (!on || !apart(l, t->rank, r->rank))
            weft_builder_to(&e->b, *r);
    }
    add_waits(e, t);
    if (!is_push(l, t))
        add_posts(e, t, -1);
    add_triggers(e, t);
    weft_builder_end(&e->b);
}

static void emit_transfer(emission *e, uint32_t number)
{
    const lowering *l = e->l;
    const transfer *move = &l->transfers[number];
    flat_task cause = {0};

    if (move->cause != NONE)
        cause = task_at(l, move->from, move->cause - l->task_base[move->from]);
    weft_builder_task(&e->b, e->wire, WEFT_TASK_COPY, 0);
    weft_builder_to(&e->b, move->target);
    weft_builder_from(&e->b, move->source);
    if (move->awaits)
        weft_builder_wait(&e->b, trigger_signal(e, move->from, cause.task->lane),
                          find_trigger(l, move->cause, move->from)->number);
    for (uint32_t i = 0; i < move->need_count; i++) {
        const need *n = &l->needs[move->need0 + i];

        if (n->task != NONE) {
            int rank = rank_of(l, n->task);

            weft_builder_wait(&e->b,
                              trigger_signal(e, rank, l->flat[rank].tasks[n->task - l->task_base[rank]].lane),
                              find_trigger(l, n->task, move->from)->number);
        } else {
            weft_builder_wait(&e->b, WEFT_SIGNAL_LANDED(l->world, l->transfers[n->landed].from),
                              l->transfers[n->landed].number);
        }
    }
    if (move->cause != NONE)
        add_posts(e, &cause, move->to);
    weft_builder_end(&e->b);
    if (move->cause != NONE && is_push(l, &cause) && posts_to(l, &cause, -1)) {
        weft_builder_task(&e->b, e->wire, WEFT_TASK_COPY, 0);
        nothing(e);
        add_posts(e, &cause, -1);
        weft_builder_end(&e->b);
    }
}

static weft_status emit(const lowering *l, int rank, weft_plan_part *part, weft_error_text *error)
{
    emission e = {.l = l, .b = weft_builder_begin(l->problem, l->domain, l->world, rank)};

    declare(&e);
    for (uint32_t i = 0; i < l->flat[rank].task_count; i++) {
        flat_task t = task_at(l, rank, i);

        emit_task(&e, &t);
    }
    for (uint32_t i = l->first[rank]; i < l->first[rank + 1]; i++)
        emit_transfer(&e, l->order[i]);
    return weft_builder_finish(&e.b, part, error);
}

/* ---- entry --------------------------------------------------------------------------------------- */

static bool begin(lowering *l)
{
    size_t world = (size_t)l->world, tasks = 0, regions = 0;

    l->operands = l->flat[0].operand_count;
    l->task_base = calloc(world + 1, sizeof(uint32_t));
    l->region_base = calloc(world + 1, sizeof(uint32_t));
    l->first = calloc(world + 2, sizeof(uint32_t));
    if (!l->task_base || !l->region_base || !l->first)
        return false;
    for (int rank = 0; rank < l->world; rank++) {
        l->task_base[rank + 1] = l->task_base[rank] + l->flat[rank].task_count;
        l->region_base[rank + 1] = l->region_base[rank] + l->flat[rank].region_count;
        l->lanes = l->flat[rank].lane_count > l->lanes ? l->flat[rank].lane_count : l->lanes;
    }
    tasks = l->task_base[l->world];
    regions = l->region_base[l->world];
    l->depth = calloc(tasks, sizeof(uint32_t));
    l->caused = malloc(tasks * sizeof(uint32_t));
    l->read_by = malloc((regions + 1) * sizeof(uint32_t));
    l->boxes = calloc((size_t)DIRECTIONS * l->operands * world * world, sizeof(box));
    l->stand_ins = calloc((size_t)DIRECTIONS * l->operands, sizeof(stand_in));
    l->shared = calloc(l->operands, sizeof(bool));
    if (!l->depth || !l->caused || !l->read_by || !l->boxes || !l->stand_ins || !l->shared)
        return false;
    memset(l->caused, 0xff, tasks * sizeof(uint32_t));
    memset(l->read_by, 0xff, (regions + 1) * sizeof(uint32_t));
    return true;
}

static void for_all(lowering *l, void (*visit)(lowering *, const flat_task *))
{
    for (int rank = 0; rank < l->world; rank++) {
        for (uint32_t i = 0; i < l->flat[rank].task_count && !l->failed; i++) {
            flat_task t = task_at(l, rank, i);

            visit(l, &t);
        }
    }
}

static void analyse(lowering *l)
{
    l->failed = !begin(l);
    if (!l->failed)
        find_depths(l);
    if (!l->failed && !l->refused) {
        for_all(l, look);
        size_stand_ins(l);
        for_all(l, collect);
        bring_reads(l);
    }
    if (!l->failed && !l->refused) {
        order_transfers(l);
        number_triggers(l);
    }
}

static void end(lowering *l)
{
    free(l->task_base);
    free(l->region_base);
    free(l->first);
    free(l->depth);
    free(l->caused);
    free(l->read_by);
    free(l->boxes);
    free(l->stand_ins);
    free(l->shared);
    free(l->transfers);
    free(l->order);
    free(l->reads);
    free(l->writes);
    free(l->triggers);
    free(l->needs);
}

weft_status weft_plan_lower(const weft_problem *problem, const weft_plan_part *flat, const int32_t *domain,
                            int world, int only, weft_plan_part *parts, weft_error_text *error)
{
    lowering l = {.problem = problem, .flat = flat, .domain = domain, .world = world};
    weft_status status = WEFT_OK;

    analyse(&l);
    if (l.failed)
        status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks over nodes", world);
    else if (l.refused)
        status = weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s %s cannot run over several nodes: %s",
                                weft_op_name(problem->op), weft_schedule_name(problem->op, problem->schedule),
                                l.refused);
    for (int rank = only < 0 ? 0 : only; rank < (only < 0 ? world : only + 1) && status == WEFT_OK; rank++)
        status = emit(&l, rank, &parts[only < 0 ? rank : 0], error);
    end(&l);
    return status;
}
