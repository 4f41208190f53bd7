/*
 * The race stage: any two tasks that touch a common element, one of them writing, are ordered.
 *
 * Accesses are grouped by matrix and swept along the dimension in which they are cut; only accesses that
 * overlap there and of which one writes are compared. Since conflicting accesses are then all ordered, every
 * execution sees the same values, and the data stage may follow any one order.
 */
#include "plan/check_stages.h"

#include <stdlib.h>

typedef struct access {
    uint64_t matrix;    /* operand, rank, batch */
    int64_t begin, end; /* along the sweep */
    const weft_region *region;
    uint32_t task;
    bool write;
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

static size_t collect(const weft_checker *c, access *list)
{
    size_t count = 0;

    for (uint32_t task = 0; task < c->tasks; task++) {
        int rank = weft_check_rank(c, task);
        const weft_task *t = weft_check_task(c, task);

        for (uint32_t i = 0; i < t->region_count; i++) {
            const weft_region *region = &c->parts[rank].regions[t->region0 + i];

            if (!region->rows || !region->cols)
                continue;
            list[count++] = (access){
                .matrix = (((uint64_t)region->operand * (uint64_t)c->world + (uint64_t)region->rank) << 32) +
                          (uint64_t)region->batch,
                .region = region,
                .task = task,
                .write = i < t->destinations,
            };
        }
    }
    return count;
}

/* Sweeps along columns when most accesses span all rows. */
static void set_sweep(const weft_checker *c, access *list, size_t count)
{
    const weft_region *first = list[0].region;
    int64_t rows = weft_operand_rows(&c->parts[0].operands[first->operand], c->world, first->rank);
    size_t tall = 0;

    for (size_t i = 0; i < count; i++)
        tall += list[i].region->rows == rows;
    for (size_t i = 0; i < count; i++) {
        const weft_region *r = list[i].region;

        list[i].begin = 2 * tall > count ? r->col0 : r->row0;
        list[i].end = 2 * tall > count ? r->col0 + r->cols : r->row0 + r->rows;
    }
}

static void compare_pair(weft_checker *c, const access *a, const access *b)
{
    const access *writer = a->write ? a : b, *other = a->write ? b : a;
    int rank = weft_check_rank(c, other->task);

    c->report->pairs++;
    if (a->task == b->task || !overlap(a->region, b->region) || weft_check_before(c, a->task, b->task) ||
        weft_check_before(c, b->task, a->task))
        return;
    weft_check_find(c, rank, other->task - c->task_base[rank], "race: %s %s %s while %s writes it",
                    weft_check_task_text(c, other->task), other->write ? "writes" : "reads",
                    weft_check_region_text(c, other->region), weft_check_task_text(c, writer->task));
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
