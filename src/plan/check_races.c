/*
 * The race stage: any two tasks that touch a common element, one of them writing, are ordered. A task itself
 * writes every element once, and reads of what it writes only what it adds to, element by element. Sums that
 * are handed on are taken as they were left, whole tiles. A caller may give C as D, and SEND
 * as RECV where the plan allows it (in_place.h): whatever reads the one has read it before the other is
 * written there.
 *
 * Accesses are grouped by matrix and swept along the dimension in which they are cut; only accesses that
 * overlap there and of which one writes are compared. Since conflicting accesses are then all ordered, every
 * execution sees the same values, and the data stage may follow any one order.
 */
#include "plan/check_stages.h"
#include "plan/in_place.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct access {
    uint64_t matrix;    /* operand, rank, batch */
    int64_t begin, end; /* along the sweep */
    const weft_region *region;
    weft_region place; /* the same where the caller may have given its memory as another operand's */
    uint32_t task;
    bool write;
    bool stays; /* of a task that then copies onto itself, which changes nothing */
} access;

static int compare(const void *left, const void *right)
{
    const access *a = left, *b = right;

    if (a->matrix != b->matrix)
        return a->matrix < b->matrix ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->write != b->write)
        return a->write ? -1 : 1;
    return a->task < b->task ? -1 : a->task > b->task;
}

static int compare_matrix(const void *left, const void *right)
{
    const access *a = left, *b = right;

    return a->matrix < b->matrix ? -1 : a->matrix > b->matrix;
}

static bool overlap(const weft_region *a, const weft_region *b)
{
    return a->row0 < b->row0 + b->rows && b->row0 < a->row0 + a->rows && a->col0 < b->col0 + b->cols &&
           b->col0 < a->col0 + a->cols;
}

/* The operand of a role, or `otherwise`. */
static uint32_t operand_of(const weft_plan_part *part, weft_operand_role role, uint32_t otherwise)
{
    for (uint32_t i = 0; i < part->operand_count; i++) {
        if (part->operands[i].role == role)
            return i;
    }
    return otherwise;
}

/* Where a region lies when the caller gives the same memory for two operands: that of C is D's, which has its
 * shape; in place, the smaller of SEND and RECV is this rank's row of the larger. */
static weft_region place_of(const weft_checker *c, weft_region region)
{
    const weft_plan_part *part = &c->parts[0];
    weft_operand_role role = part->operands[region.operand].role;
    weft_op op = part->problem.op;
    weft_operand_role larger = op == WEFT_OP_REDUCE_SCATTER ? WEFT_ROLE_SEND : WEFT_ROLE_RECV;

    if (role == WEFT_ROLE_C) {
        region.operand = operand_of(part, WEFT_ROLE_D, region.operand);
    } else if (c->in_place && role != larger && (role == WEFT_ROLE_SEND || role == WEFT_ROLE_RECV)) {
        region.operand = operand_of(part, larger, region.operand);
        if (op == WEFT_OP_ALL_GATHER || op == WEFT_OP_REDUCE_SCATTER)
            region.row0 += region.rank;
    }
    return region;
}

static bool same_place(const weft_region *a, const weft_region *b)
{
    return a->row0 == b->row0 && a->rows == b->rows && a->col0 == b->col0 && a->cols == b->cols;
}

static bool copies_onto_itself(const weft_checker *c, const weft_plan_part *part, const weft_task *task)
{
    const weft_region *target = weft_task_regions(part, task), *source = weft_copy_source(part, task);
    weft_region to, from;

    if (task->kind != WEFT_TASK_COPY || target->operand == source->operand)
        return false;
    to = place_of(c, *target);
    from = place_of(c, *source);
    return to.operand == from.operand && to.rank == from.rank && to.batch == from.batch &&
           same_place(&to, &from);
}

static size_t collect(const weft_checker *c, access *list)
{
    size_t count = 0;

    for (uint32_t task = 0; task < c->tasks; task++) {
        int rank = weft_check_rank(c, task);
        const weft_task *t = weft_check_task(c, task);
        const weft_region *regions = weft_task_regions(&c->parts[rank], t);
        bool stays = copies_onto_itself(c, &c->parts[rank], t);

        for (uint32_t i = 0; i < t->region_count; i++) {
            access now = {.region = &regions[i], .task = task, .write = i < t->destinations, .stays = stays};

            if (!regions[i].rows || !regions[i].cols)
                continue;
            now.place = place_of(c, regions[i]);
            now.matrix =
                (((uint64_t)now.place.operand * (uint64_t)c->world + (uint64_t)now.place.rank) << 32) +
                (uint64_t)now.place.batch;
            list[count++] = now;
        }
    }
    return count;
}

/* Sweeps along columns when most accesses span all rows. */
static void set_sweep(const weft_checker *c, access *list, size_t count)
{
    const weft_region *first = &list[0].place;
    int64_t rows = weft_operand_rows(&c->parts[0].operands[first->operand], c->world, first->rank);
    size_t tall = 0;

    for (size_t i = 0; i < count; i++)
        tall += list[i].place.rows == rows;
    for (size_t i = 0; i < count; i++) {
        const weft_region *r = &list[i].place;

        list[i].begin = 2 * tall > count ? r->col0 : r->row0;
        list[i].end = 2 * tall > count ? r->col0 + r->cols : r->row0 + r->rows;
    }
}

/* May a task write where it reads? Element by element it may: sums it adds to, C that becomes D. */
static bool adds_in_place(const weft_checker *c, const access *write, const access *read)
{
    const weft_task *task = weft_check_task(c, read->task);
    const weft_region *regions = weft_task_regions(&c->parts[weft_check_rank(c, read->task)], task);

    return !read->write && same_place(&write->place, &read->place) &&
           (task->kind == WEFT_TASK_REDUCE ||
            (task->kind == WEFT_TASK_GEMM && read->region - regions > weft_task_roles_of(task).b));
}

static void find_race(weft_checker *c, const access *one, const access *other, const char *how)
{
    int rank = weft_check_rank(c, one->task);

    weft_check_find(c, rank, one->task - c->task_base[rank], "race: %s %s %s %s %s writes it",
                    weft_check_task_text(c, one->task), one->write ? "writes" : "reads",
                    weft_check_region_text(c, one->region), how, weft_check_task_text(c, other->task));
}

static void find_shared(weft_checker *c, const access *read, const access *write)
{
    char how[64];

    snprintf(how, sizeof(how), "(which may be the memory of %s) when perhaps",
             c->parts[0].operands[write->region->operand].name);
    find_race(c, read, write, how);
}

/* A read of what crosses is over when it is sent, a write when it has landed. */
static bool ended_before(const weft_checker *c, const access *first, const access *second)
{
    return first->write ? weft_check_written_before(c, first->task, second->task)
                        : weft_check_before(c, first->task, second->task);
}

/* Of two operands: what has landed was read, too. */
static bool read_before(const weft_checker *c, uint32_t first, uint32_t second)
{
    return weft_check_before(c, first, second) ||
           (c->channel[first] && weft_check_written_before(c, first, second));
}

static void compare_pair(weft_checker *c, const access *a, const access *b)
{
    const access *writer = a->write ? a : b, *other = a->write ? b : a;
    const weft_operand *operand = &c->parts[0].operands[writer->region->operand];

    c->report->pairs++;
    if (!overlap(&a->place, &b->place))
        return;
    if (operand->handed_on && !same_place(&a->place, &b->place))
        find_race(c, other, writer, "with other edges than those with which");
    else if (a->task == b->task) {
        if (!writer->stays && !adds_in_place(c, writer, other))
            find_race(c, other, writer, "where");
    } else if (other->region->operand != writer->region->operand) {
        if (!writer->stays && !read_before(c, other->task, writer->task))
            find_shared(c, other, writer);
    } else if (!ended_before(c, a, b) && !ended_before(c, b, a)) {
        find_race(c, other, writer, "while");
    }
}

/* Drops from an active list what ended before `begin`. */
static size_t prune(access **active, size_t count, int64_t begin)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (active[i]->end > begin)
            active[kept++] = active[i];
    }
    return kept;
}

static void sweep(weft_checker *c, access *list, size_t count, access **writes, access **reads)
{
    size_t write_count = 0, read_count = 0;

    for (size_t i = 0; i < count; i++) {
        access *now = &list[i];

        if (i == 0 || now->begin != list[i - 1].begin) {
            write_count = prune(writes, write_count, now->begin);
            read_count = prune(reads, read_count, now->begin);
        }
        for (size_t j = 0; j < write_count; j++)
            compare_pair(c, writes[j], now);
        for (size_t j = 0; j < read_count && now->write; j++)
            compare_pair(c, reads[j], now);
        if (now->write)
            writes[write_count++] = now;
        else
            reads[read_count++] = now;
    }
}

bool weft_check_races(weft_checker *checker)
{
    size_t total = 1, count;
    access *list, **active;

    checker->in_place =
        weft_plan_in_place(&checker->parts[0].problem, checker->parts[0].domain, checker->world);
    for (int rank = 0; rank < checker->world; rank++)
        total += checker->parts[rank].region_count;
    list = malloc(total * sizeof(*list));
    active = malloc(2 * total * sizeof(*active));
    if (!list || !active) {
        free(list);
        free(active);
        return false;
    }
    count = collect(checker, list);
    qsort(list, count, sizeof(*list), compare_matrix);
    for (size_t first = 0, last; first < count; first = last) {
        bool written = false;

        for (last = first; last < count && list[last].matrix == list[first].matrix; last++)
            written |= list[last].write;
        if (!written)
            continue;
        set_sweep(checker, list + first, last - first);
        qsort(list + first, last - first, sizeof(*list), compare);
        sweep(checker, list + first, last - first, active, active + total);
    }
    free(list);
    free(active);
    return true;
}
