/* What crosses between domains, and in which order: see lowering.h. */
#include "plan/lowering.h"

#include "core/grow.h"
#include "core/round.h"

#include <stdlib.h>
#include <string.h>

static bool grow(lowering *l, void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    l->failed = l->failed || !weft_grow(array, count, room, bytes);
    return !l->failed;
}

#define ADD(l, what, ...)                                                                                    \
    do {                                                                                                     \
        if (grow((l), (void **)&(l)->what##s, (l)->what##_count, &(l)->what##_room, sizeof(*(l)->what##s)))  \
            (l)->what##s[(l)->what##_count++] = __VA_ARGS__;                                                 \
    } while (0)

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

static void widen(lowering *l, direction way, int rank, const weft_region *r)
{
    box *b = box_at(l, way, r->operand, rank, r->rank);
    bool first = b->row0 == b->row1;

    b->row0 = first || r->row0 < b->row0 ? r->row0 : b->row0;
    b->col0 = first || r->col0 < b->col0 ? r->col0 : b->col0;
    b->row1 = first || r->row0 + r->rows > b->row1 ? r->row0 + r->rows : b->row1;
    b->col1 = first || r->col0 + r->cols > b->col1 ? r->col0 + r->cols : b->col1;
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
        l->read_far[r->operand] = true;
        if (l->flat[0].operands[r->operand].packed)
            l->refused = "a packed operand does not travel";
        if (!is_pull(l, t))
            widen(l, IN, t->rank, r);
        else if (l->flat[0].operands[t->regions[0].operand].place == WEFT_PLACE_PRIVATE)
            l->shared[t->regions[0].operand] = true;
    }
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

/* The lesser of `next` and of how many steps, more than `after`, it is to a rank elsewhere. */
static int nearer(const lowering *l, int from, int to, int after, int next)
{
    int step = (to - from + l->world) % l->world;

    return step > after && step < next && apart(l, from, to) ? step : next;
}

/* The next rank elsewhere, in rotation, that a task writes to or tells: so many steps after it; 0: none. */
static int next_target(const lowering *l, const flat_task *t, int after)
{
    int next = l->world;

    for (int i = 0; i < t->task->destinations; i++)
        if (!is_empty(&t->regions[i]))
            next = nearer(l, t->rank, t->regions[i].rank, after, next);
    for (uint32_t i = 0; i < t->task->post_count; i++) {
        const weft_post *post = &t->part->posts[t->task->post0 + i];

        if (!reserved(l, post->signal))
            next = nearer(l, t->rank, post->rank, after, next);
    }
    return next < l->world ? next : 0;
}

/* Second look: the transfers that a task causes, and what it reads. */
static void collect(lowering *l, const flat_task *t)
{
    bool copies = t->task->kind == WEFT_TASK_COPY, out = false;
    const weft_region *on = copies ? NULL : pushed_on(l, t, &out);
    weft_region source = copies && t->task->region_count ? *weft_copy_source(t->part, t->task)
                                                         : (weft_region){.rank = t->rank};

    if (on)
        source = out ? kept(l, OUT, t->rank, on) : *on;
    for (int step = next_target(l, t, 0); step; step = next_target(l, t, step)) {
        int to = (t->rank + step) % l->world;
        bool pushed = false;

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
        if (i < t->task->destinations && l->read_far[r->operand]) {
            ADD(l, write, (far_write){r, t->number});
            l->write_rows = weft_max(r->rows, l->write_rows);
        } else if (i >= t->task->destinations && apart(l, t->rank, r->rank))
            ADD(l, read,
                (far_read){t->rank, *r, l->region_base[t->rank] + t->task->region0 + (uint32_t)i,
                           l->depth[t->number], is_pull(l, t) ? t->regions[0] : kept(l, IN, t->rank, r)});
    }
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

    by = by ? by : compare_numbers(a->region->row0, b->region->row0);
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

/* Whoever writes a region of its owner comes before it is pushed. Writes of a matrix are sorted by their
 * first row: none that begins further above than the tallest is tall reaches the region. */
static void need_writers(lowering *l, uint32_t number, const weft_region *region)
{
    weft_region above = *region;
    far_write wanted = {.region = &above};
    uint32_t low = 0, high = l->write_count;

    above.row0 -= l->write_rows;
    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (compare_writes(&l->writes[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    l->transfers[number].need0 = l->need_count;
    for (; low < l->write_count && !compare_regions(l->writes[low].region, region, true) &&
           l->writes[low].region->row0 < region->row0 + region->rows;
         low++) {
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
    size_t world = (size_t)l->world;

    l->order = malloc(((size_t)l->transfer_count + 1) * sizeof(*l->order));
    l->sent = calloc(world * world, sizeof(*l->sent));
    if (!l->order || !l->sent) {
        l->failed = true;
        return;
    }
    for (uint32_t i = 0; i < l->transfer_count; i++)
        l->order[i] = i;
    sorted = l;
    qsort(l->order, l->transfer_count, sizeof(*l->order), compare_transfers);
    for (uint32_t i = 0, rank = 0; rank <= (uint32_t)l->world; rank++) {
        l->first[rank] = i;
        for (; i < l->transfer_count && l->transfers[l->order[i]].from == (int)rank; i++)
            l->transfers[l->order[i]].number = ++l->sent[rank * world + (size_t)l->transfers[l->order[i]].to];
    }
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

const trigger *weft_lowering_trigger(const lowering *l, uint32_t task, int target)
{
    trigger wanted = {task, target, 0};

    return bsearch(&wanted, l->triggers, l->trigger_count, sizeof(wanted), compare_triggers);
}

uint32_t weft_lowering_triggers(const lowering *l, uint32_t task)
{
    uint32_t low = 0, high = l->trigger_count;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (l->triggers[middle].task < task)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
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
    l->read_far = calloc(l->operands, sizeof(bool));
    if (!l->depth || !l->caused || !l->read_by || !l->boxes || !l->stand_ins || !l->shared || !l->read_far)
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

void weft_lowering_find(lowering *l)
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

void weft_lowering_free(lowering *l)
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
    free(l->read_far);
    free(l->transfers);
    free(l->order);
    free(l->sent);
    free(l->reads);
    free(l->writes);
    free(l->triggers);
    free(l->needs);
}
