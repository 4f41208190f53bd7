/* The checker's entry, its sentences, and the form stage. */
#include "plan/check_stages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT"};

void weft_check_find(weft_checker *checker, int rank, int64_t task, const char *format, ...)
{
    weft_check_report *report = checker->report;
    va_list arguments;

    if (report->count < WEFT_FINDINGS_MAX) {
        weft_finding *finding = &report->findings[report->count];

        finding->rank = rank;
        finding->task = task;
        va_start(arguments, format);
        vsnprintf(finding->text, sizeof(finding->text), format, arguments);
        va_end(arguments);
    }
    report->count++;
}

/* Room for four short texts at a time. */
static char *text_buffer(void)
{
    static _Thread_local char texts[4][120];
    static _Thread_local int next;

    next = (next + 1) % 4;
    return texts[next];
}

const char *weft_check_task_text(const weft_checker *checker, uint32_t task)
{
    char *text = text_buffer();
    int rank = 0;

    while (task >= checker->task_base[rank + 1])
        rank++;
    snprintf(text, 120, "%s task %u of rank %d",
             kind_names[checker->parts[rank].tasks[task - checker->task_base[rank]].kind],
             task - checker->task_base[rank], rank);
    return text;
}

const char *weft_check_region_text(const weft_checker *checker, const weft_region *region)
{
    char *text = text_buffer();

    snprintf(text, 120, "%s of rank %d, batch %lld, rows %lld..%lld, cols %lld..%lld",
             checker->parts[0].operands[region->operand].name, region->rank, (long long)region->batch,
             (long long)region->row0, (long long)(region->row0 + region->rows), (long long)region->col0,
             (long long)(region->col0 + region->cols));
    return text;
}

/* ---- form ---------------------------------------------------------------------------------------- */

static bool same_operand(const weft_operand *a, const weft_operand *b)
{
    return !strcmp(a->name, b->name) && a->place == b->place && a->role == b->role && a->dtype == b->dtype &&
           a->rows == b->rows && a->cols == b->cols && a->rows_parted == b->rows_parted &&
           a->cols_parted == b->cols_parted && a->transposed == b->transposed && a->packed == b->packed &&
           a->handed_on == b->handed_on && a->output == b->output && a->batch == b->batch;
}

static void form_of_part(weft_checker *checker, int rank)
{
    const weft_plan_part *part = &checker->parts[rank], *first = &checker->parts[0];
    uint32_t next = 0;

    if (part->rank != rank || part->world != checker->world || part->hash != first->hash)
        weft_check_find(checker, rank, -1,
                        "the part of rank %d is that of rank %d of %d, or of another problem", rank,
                        part->rank, part->world);
    if (part->signal_count != first->signal_count || part->signal_count < 2 * (uint32_t)checker->world)
        weft_check_find(checker, rank, -1, "rank %d has %u signals, rank 0 has %u", rank, part->signal_count,
                        first->signal_count);
    if (part->operand_count != first->operand_count)
        weft_check_find(checker, rank, -1, "rank %d has %u operands, rank 0 has %u", rank,
                        part->operand_count, first->operand_count);
    for (uint32_t i = 0; i < part->operand_count && i < first->operand_count; i++) {
        if (!same_operand(&part->operands[i], &first->operands[i]))
            weft_check_find(checker, rank, -1, "operand %u (%s) of rank %d differs from rank 0's", i,
                            part->operands[i].name, rank);
    }
    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        if (part->lanes[lane].task0 != next || part->lanes[lane].task_count > part->task_count - next)
            weft_check_find(checker, rank, -1, "lane %u of rank %d does not continue the task list", lane,
                            rank);
        next = part->lanes[lane].task0 + part->lanes[lane].task_count;
    }
    if (!part->lane_count || next != part->task_count || part->lanes[0].task_count < 2 ||
        part->tasks[0].kind != WEFT_TASK_ENTER ||
        part->tasks[part->lanes[0].task_count - 1].kind != WEFT_TASK_EXIT)
        weft_check_find(checker, rank, -1, "lane 0 of rank %d does not run from ENTER to EXIT", rank);
}

static bool region_inside(const weft_checker *checker, int rank, const weft_region *region)
{
    const weft_plan_part *part = &checker->parts[rank];
    const weft_operand *operand;

    if (region->operand >= part->operand_count || region->rank < 0 || region->rank >= checker->world)
        return false;
    operand = &part->operands[region->operand];
    return region->batch >= 0 && region->batch < operand->batch && region->row0 >= 0 && region->col0 >= 0 &&
           region->rows >= 0 && region->cols >= 0 &&
           region->row0 + region->rows <= weft_operand_rows(operand, checker->world, region->rank) &&
           region->col0 + region->cols <= weft_operand_cols(operand, checker->world, region->rank) &&
           (operand->place != WEFT_PLACE_PRIVATE || region->rank == rank || !region->rows);
}

static bool same_shape(const weft_region *a, const weft_region *b)
{
    return a->rows == b->rows && a->cols == b->cols;
}

/* Shapes of a task's regions agree, and there are as many as its kind and flags say. */
static bool shapes_fit(const weft_task *task, const weft_region *regions)
{
    int acc = !!(task->flags & WEFT_TASK_HAS_ACC), has_c = !!(task->flags & WEFT_TASK_HAS_C);
    int extras = has_c + !!(task->flags & WEFT_TASK_HAS_BIAS);
    int inner = (int)task->region_count - task->destinations - extras;
    const weft_region *from = regions + task->destinations, *extra = from + inner;

    if (task->kind == WEFT_TASK_ENTER || task->kind == WEFT_TASK_EXIT)
        return task->region_count == 0;
    if (task->destinations < 1 || inner < 1)
        return false;
    for (int i = 1; i < task->destinations; i++) {
        if (!same_shape(&regions[i], &regions[0]))
            return false;
    }
    if (task->kind == WEFT_TASK_GEMM) {
        if (inner != 2 + acc || from[0].rows != regions->rows || from[1].cols != regions->cols ||
            from[0].cols != from[1].rows || (acc && !same_shape(&from[2], regions)))
            return false;
    } else {
        for (int i = 0; i < inner; i++) {
            if (!same_shape(&from[i], regions))
                return false;
        }
        if (acc || (task->kind == WEFT_TASK_COPY && (inner != 1 || task->destinations != 1 || task->flags)))
            return false;
    }
    if (has_c && !same_shape(extra, regions))
        return false;
    return !(task->flags & WEFT_TASK_HAS_BIAS) ||
           (extra[has_c].rows == 1 && extra[has_c].cols == regions->cols);
}

/* Numbers that are added together are of one type. */
static bool types_fit(const weft_plan_part *part, const weft_task *task, const weft_region *regions)
{
    int extras = !!(task->flags & WEFT_TASK_HAS_C) + !!(task->flags & WEFT_TASK_HAS_BIAS);

    for (int i = task->destinations + 1; task->kind == WEFT_TASK_REDUCE && i < task->region_count - extras;
         i++)
        if (part->operands[regions[i].operand].dtype !=
            part->operands[regions[task->destinations].operand].dtype)
            return false;
    return true;
}

/* What a task carries is what the next one of its lane goes on with. */
static bool carries_on(const weft_plan_part *part, uint32_t index)
{
    const weft_task *task = &part->tasks[index], *next = task + 1;
    const weft_lane *lane = &part->lanes[task->lane];
    const weft_region *d = &part->regions[task->region0], *a = d + 1, *on, *acc;

    if (task->kind != WEFT_TASK_GEMM || task->destinations != 1 || task->flags & WEFT_TASK_EPILOGUE ||
        part->operands[d->operand].place != WEFT_PLACE_PRIVATE ||
        index + 1 >= lane->task0 + lane->task_count || next->kind != WEFT_TASK_GEMM ||
        !(next->flags & WEFT_TASK_HAS_ACC) || next->region0 + next->region_count > part->region_count ||
        next->region_count < next->destinations + 3)
        return false;
    on = &part->regions[next->region0 + next->destinations];
    acc = on + 2;
    return acc->operand == d->operand && acc->row0 == d->row0 && acc->col0 == d->col0 && same_shape(acc, d) &&
           on[0].operand == a[0].operand && on[0].rank == a[0].rank && on[0].batch == a[0].batch &&
           on[0].row0 == a[0].row0 && on[0].col0 == a[0].col0 + a[0].cols && on[1].operand == a[1].operand &&
           on[1].rank == a[1].rank && on[1].batch == a[1].batch && on[1].col0 == a[1].col0 &&
           on[1].row0 == a[1].row0 + a[1].rows;
}

static void form_of_task(weft_checker *checker, int rank, uint32_t index)
{
    const weft_plan_part *part = &checker->parts[rank];
    const weft_task *task = &part->tasks[index];
    const weft_region *regions = &part->regions[task->region0];
    const weft_lane *lane = &part->lanes[task->lane < part->lane_count ? task->lane : 0];
    uint32_t number = checker->task_base[rank] + index;
    bool inside = true;

    if (task->kind > WEFT_TASK_EXIT || task->lane >= part->lane_count || index < lane->task0 ||
        index >= lane->task0 + lane->task_count || task->region0 + task->region_count > part->region_count ||
        task->wait0 + task->wait_count > part->wait_count ||
        task->post0 + task->post_count > part->post_count || task->destinations > task->region_count) {
        weft_check_find(checker, rank, index, "task %u of rank %d has numbers outside of its part", index,
                        rank);
        return;
    }
    if ((task->kind == WEFT_TASK_ENTER && index != 0) ||
        (task->kind == WEFT_TASK_EXIT && index != part->lanes[0].task_count - 1))
        weft_check_find(checker, rank, index, "%s is not where it belongs",
                        weft_check_task_text(checker, number));
    for (int i = 0; i < task->region_count; i++) {
        if (!region_inside(checker, rank, &regions[i])) {
            weft_check_find(checker, rank, index,
                            "%s: region %d lies outside of its operand, or is private to another rank",
                            weft_check_task_text(checker, number), i);
            inside = false;
        }
    }
    for (int i = 0; inside && i < task->region_count; i++) {
        if (part->operands[regions[i].operand].packed &&
            (i < task->destinations ? task->kind != WEFT_TASK_COPY
                                    : task->kind != WEFT_TASK_GEMM || i != task->destinations + 1) &&
            regions[i].rows)
            weft_check_find(
                checker, rank, index, "%s: only COPY writes a packed operand, only GEMM reads it, as B: %s",
                weft_check_task_text(checker, number), weft_check_region_text(checker, &regions[i]));
    }
    for (int i = 0; inside && i < task->region_count; i++) {
        bool given = i == 0 && task->destinations == 1 && !(task->flags & WEFT_TASK_EPILOGUE);
        bool taken = i == task->destinations + 2 && (task->flags & WEFT_TASK_HAS_ACC);

        if (part->operands[regions[i].operand].handed_on &&
            (task->kind != WEFT_TASK_GEMM || !(given || taken)))
            weft_check_find(checker, rank, index,
                            "%s: only GEMM hands sums on, bare and to one place, or starts from them: %s",
                            weft_check_task_text(checker, number),
                            weft_check_region_text(checker, &regions[i]));
    }
    if (inside && !shapes_fit(task, regions))
        weft_check_find(checker, rank, index, "%s: the shapes of its regions do not fit together%s%s",
                        weft_check_task_text(checker, number), task->region_count ? "; the first is " : "",
                        task->region_count ? weft_check_region_text(checker, regions) : "");
    if (inside && !types_fit(part, task, regions))
        weft_check_find(checker, rank, index, "%s adds numbers of different types",
                        weft_check_task_text(checker, number));
    if (inside && task->flags & WEFT_TASK_CARRY && !carries_on(part, index))
        weft_check_find(checker, rank, index, "%s: nothing in its lane goes on with the sums it carries",
                        weft_check_task_text(checker, number));
    for (uint32_t i = 0; i < task->wait_count; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];

        if (wait->signal >= part->signal_count || wait->count < 1 ||
            wait->count > part->signal_posts[wait->signal])
            weft_check_find(checker, rank, index,
                            "%s waits for %u posts of signal %u, which gets %u in a run",
                            weft_check_task_text(checker, number), wait->count, wait->signal,
                            wait->signal < part->signal_count ? part->signal_posts[wait->signal] : 0);
    }
    for (uint32_t i = 0; i < task->post_count; i++) {
        const weft_post *post = &part->posts[task->post0 + i];
        uint32_t world = (uint32_t)checker->world;

        if (post->signal >= part->signal_count || post->rank < 0 || post->rank >= checker->world)
            weft_check_find(checker, rank, index, "%s posts signal %u of rank %d, which does not exist",
                            weft_check_task_text(checker, number), post->signal, post->rank);
        else if (post->signal < 2 * world && (post->signal % world != (uint32_t)rank ||
                                              (post->signal < world && task->kind != WEFT_TASK_ENTER)))
            weft_check_find(checker, rank, index, "%s posts signal %u, which is reserved",
                            weft_check_task_text(checker, number), post->signal);
    }
}

/* Posts made by all ranks at `rank` against the posts it announces. */
static void count_posts(weft_checker *checker, uint64_t *made)
{
    uint32_t signals = checker->parts[0].signal_count;

    memset(made, 0, (size_t)signals * (size_t)checker->world * sizeof(*made));
    for (int from = 0; from < checker->world; from++) {
        const weft_plan_part *part = &checker->parts[from];

        for (uint32_t i = 0; i < part->task_count; i++) {
            for (uint32_t j = 0; j < part->tasks[i].post_count; j++) {
                const weft_post *post = &part->posts[part->tasks[i].post0 + j];

                made[(size_t)post->rank * signals + post->signal]++;
            }
        }
    }
    for (int rank = 0; rank < checker->world; rank++) {
        for (uint32_t i = 0; i < signals; i++) {
            uint64_t got = made[(size_t)rank * signals + i];

            if (got != checker->parts[rank].signal_posts[i])
                weft_check_find(checker, rank, -1,
                                "signal %u of rank %d gets %llu posts in a run, not the %u it is "
                                "announced to get",
                                i, rank, (unsigned long long)got, checker->parts[rank].signal_posts[i]);
        }
    }
}

void weft_check_form(weft_checker *checker)
{
    for (int rank = 0; rank < checker->world; rank++)
        form_of_part(checker, rank);
    if (checker->report->count)
        return;
    for (int rank = 0; rank < checker->world; rank++) {
        for (uint32_t i = 0; i < checker->parts[rank].task_count; i++)
            form_of_task(checker, rank, i);
    }
}

/* ---- entry --------------------------------------------------------------------------------------- */

static bool number_tasks(weft_checker *checker)
{
    checker->task_base = calloc((size_t)checker->world + 1, sizeof(uint32_t));
    checker->lane_base = calloc((size_t)checker->world + 1, sizeof(uint32_t));
    if (!checker->task_base || !checker->lane_base)
        return false;
    for (int rank = 0; rank < checker->world; rank++) {
        checker->task_base[rank + 1] = checker->task_base[rank] + checker->parts[rank].task_count;
        checker->lane_base[rank + 1] = checker->lane_base[rank] + checker->parts[rank].lane_count;
    }
    checker->tasks = checker->task_base[checker->world];
    checker->lanes = checker->lane_base[checker->world];
    checker->report->tasks = checker->tasks;
    return true;
}

static bool run_stages(weft_checker *checker)
{
    uint64_t *made;

    if (!number_tasks(checker))
        return false;
    weft_check_form(checker);
    if (checker->report->count)
        return true;
    made = malloc((size_t)checker->parts[0].signal_count * (size_t)checker->world * sizeof(*made));
    if (!made)
        return false;
    count_posts(checker, made);
    free(made);
    return checker->report->count ||
           (weft_check_order(checker) &&
            (checker->report->count ||
             (weft_check_races(checker) && (checker->report->count || weft_check_data(checker)))));
}

weft_status weft_plan_check(const weft_plan_part *parts, int world, weft_check_report *report,
                            weft_error_text *error)
{
    weft_checker checker = {.parts = parts, .world = world, .report = report};
    bool done;

    memset(report, 0, sizeof(*report));
    done = run_stages(&checker);
    free(checker.task_base);
    free(checker.lane_base);
    free(checker.lane_of);
    free(checker.position);
    free(checker.rank_of);
    free(checker.sequence);
    free(checker.clock_of);
    free(checker.clocks);
    return done ? WEFT_OK
                : weft_error_set(error, WEFT_ERR_MEMORY, "no memory to check a plan of %u tasks on %u lanes",
                                 checker.tasks, checker.lanes);
}
