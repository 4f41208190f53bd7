/*
 * The form stage: a plan says what it must, with numbers that exist. Nothing in a plan is trusted: which
 * operands the caller brings, of what type and shape, follows from the problem.
 */
#include "plan/check_stages.h"
#include "core/dtype.h"
#include "core/round.h"
#include "plan/user_operands.h"

#include <stdlib.h>
#include <string.h>

static bool same_operand(const weft_operand *a, const weft_operand *b)
{
    return !strcmp(a->name, b->name) && a->place == b->place && a->role == b->role && a->dtype == b->dtype &&
           a->rows == b->rows && a->cols == b->cols && a->rows_parted == b->rows_parted &&
           a->cols_parted == b->cols_parted && a->row_granule == b->row_granule &&
           a->col_granule == b->col_granule && a->transposed == b->transposed && a->packed == b->packed &&
           a->handed_on == b->handed_on && a->paired == b->paired && a->output == b->output &&
           a->batch == b->batch;
}

/* ---- the problem and its operands --------------------------------------------------------------- */

/* The user's operands are those of the problem, each once; all others are scratch memory. */
static void form_of_operands(weft_checker *checker)
{
    const weft_plan_part *part = &checker->parts[0];
    weft_operand wanted[WEFT_USER_OPERANDS_MAX];
    int count = weft_user_operands(&part->problem, checker->world, wanted), users = 0;
    weft_dtype sums = weft_dtype_accumulator(part->problem.dtype);

    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        if (!memchr(o->name, 0, sizeof(o->name)) || !o->name[0] || (unsigned)o->place > WEFT_PLACE_PRIVATE ||
            (unsigned)o->role >= WEFT_ROLE_COUNT || !weft_dtype_size(o->dtype) || o->batch < 0 ||
            o->batch > weft_max(part->problem.l, 1) || !weft_extents_fit(o->rows, o->cols, o->batch)) {
            weft_check_find(checker, -1, -1, "operand %u: its name, place, role, type or shape is none", i);
            continue;
        }
        users += o->place == WEFT_PLACE_USER;
        if (o->place != WEFT_PLACE_USER && (o->role != WEFT_ROLE_NONE || o->output))
            weft_check_find(checker, -1, -1, "operand %s is scratch memory, and no %s", o->name,
                            o->output ? "result of the caller's" : "operand of the caller's");
        if (o->packed && o->dtype != part->problem.dtype)
            weft_check_find(checker, -1, -1, "operand %s is packed, but not of the type of B", o->name);
        if (o->handed_on && (o->place == WEFT_PLACE_USER || o->dtype != sums || o->packed || o->transposed ||
                             part->problem.op > WEFT_OP_GEMM_AS))
            weft_check_find(checker, -1, -1,
                            "operand %s cannot be handed on: only whole sums in scratch "
                            "memory are",
                            o->name);
    }
    for (int i = 0; i < count && !checker->report->count; i++) {
        int found = 0;

        for (uint32_t j = 0; j < part->operand_count; j++)
            found += same_operand(&part->operands[j], &wanted[i]);
        if (found != 1)
            weft_check_find(checker, -1, -1, "%s of the problem is %s among the operands of the plan",
                            wanted[i].name, found ? "more than once" : "not, as it should be,");
    }
    if (!checker->report->count && users != count)
        weft_check_find(checker, -1, -1, "the plan has %d operands of the caller's, the problem %d", users,
                        count);
}

/* The problem is a whole one, and every part's. */
static bool form_of_problem(weft_checker *checker)
{
    weft_error_text error = {0};
    weft_problem resolved;

    for (int rank = 0; rank < checker->world; rank++) {
        const weft_problem *p = &checker->parts[rank].problem;

        if (!weft_problem_same(p, &checker->parts[0].problem))
            weft_check_find(checker, rank, -1, "rank %d's part is of another problem than rank 0's", rank);
        else if (weft_problem_resolve(p, checker->world, &resolved, &error) != WEFT_OK)
            weft_check_find(checker, rank, -1, "the problem is none: %s", error.text);
        else if (p->schedule == WEFT_SCHEDULE_AUTO || !weft_problem_same(p, &resolved))
            weft_check_find(checker, rank, -1, "the problem of rank %d leaves something open", rank);
        if (checker->report->count)
            return false;
    }
    return true;
}

static void form_of_part(weft_checker *checker, int rank)
{
    const weft_plan_part *part = &checker->parts[rank], *first = &checker->parts[0];
    uint32_t next = 0;

    if (part->rank != rank || part->world != checker->world || part->hash != first->hash)
        weft_check_find(checker, rank, -1,
                        "the part of rank %d is that of rank %d of %d, or of another problem", rank,
                        part->rank, part->world);
    if (part->signal_count != first->signal_count ||
        part->signal_count < (part->domain ? 3 : 2) * (uint32_t)checker->world)
        weft_check_find(checker, rank, -1, "rank %d has %u signals, rank 0 has %u", rank, part->signal_count,
                        first->signal_count);
    if (!part->domain != !first->domain ||
        (part->domain &&
         memcmp(part->domain, first->domain, (size_t)checker->world * sizeof(*part->domain)) != 0))
        weft_check_find(checker, rank, -1, "rank %d knows other domains than rank 0", rank);
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
    int64_t rows, cols;

    if (region->operand >= part->operand_count || region->rank < 0 || region->rank >= checker->world)
        return false;
    operand = &part->operands[region->operand];
    rows = weft_operand_rows(operand, checker->world, region->rank);
    cols = weft_operand_cols(operand, checker->world, region->rank);
    return region->batch >= 0 && region->batch < operand->batch && region->row0 >= 0 && region->col0 >= 0 &&
           region->rows >= 0 && region->cols >= 0 && region->row0 <= rows && region->col0 <= cols &&
           region->rows <= rows - region->row0 && region->cols <= cols - region->col0 &&
           (operand->place != WEFT_PLACE_PRIVATE || region->rank == rank || !region->rows);
}

static bool same_shape(const weft_region *a, const weft_region *b)
{
    return a->rows == b->rows && a->cols == b->cols;
}

/* Shapes of a task's regions agree, and there are as many as its kind and flags say. */
static bool shapes_fit(const weft_task *task, const weft_region *regions)
{
    weft_task_roles roles = weft_task_roles_of(task);
    const weft_region *from = regions + task->destinations;
    int acc = !!(task->flags & WEFT_TASK_HAS_ACC), inner = roles.inputs;

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
    if (roles.c >= 0 && !same_shape(&regions[roles.c], regions))
        return false;
    return roles.bias < 0 || (regions[roles.bias].rows == 1 && regions[roles.bias].cols == regions->cols);
}

/* Sums are kept whole, or in the type in which they travel. */
static bool holds_sums(const weft_problem *p, weft_dtype dtype)
{
    return p->op > WEFT_OP_GEMM_AS ? dtype == p->dtype
                                   : dtype == weft_dtype_accumulator(p->dtype) || dtype == p->wire_dtype;
}

/* Every region is of the type that its part in the task asks for. */
static bool types_fit(const weft_plan_part *part, const weft_task *task, const weft_region *regions)
{
    const weft_problem *p = &part->problem;
    weft_task_roles roles = weft_task_roles_of(task);
    bool product = task->kind == WEFT_TASK_GEMM, finished = task->flags & WEFT_TASK_EPILOGUE;
    weft_dtype source;

    if (!task->region_count || (product && p->op > WEFT_OP_GEMM_AS))
        return !product;
    source = part->operands[weft_task_inputs(part, task)->operand].dtype;
    for (int i = 0; i < task->region_count; i++) {
        weft_dtype dtype = part->operands[regions[i].operand].dtype;
        bool to = i < task->destinations, extra = i >= roles.ends;
        bool fits = task->kind == WEFT_TASK_COPY   ? dtype == source
                    : to                           ? (finished ? dtype == p->d_dtype : holds_sums(p, dtype))
                    : extra                        ? dtype == p->d_dtype
                    : i == roles.a || i == roles.b ? dtype == p->dtype
                    : product                      ? holds_sums(p, dtype)
                                                   : dtype == source && holds_sums(p, dtype);

        if (!fits)
            return false;
    }
    return true;
}

/* Gates and ups come in pairs until the epilogue makes one of them; A and D have none. */
static bool pairs_fit(const weft_plan_part *part, const weft_task *task, const weft_region *regions)
{
    bool gated = weft_problem_is_gated(&part->problem), finished = task->flags & WEFT_TASK_EPILOGUE;

    for (int i = 0; i < task->region_count; i++) {
        bool paired = part->operands[regions[i].operand].paired;
        bool to = i < task->destinations, is_a = i == weft_task_roles_of(task).a;

        if (task->kind == WEFT_TASK_COPY ? paired != part->operands[regions[0].operand].paired
                                         : paired != (gated && !is_a && !(to && finished)))
            return false;
    }
    return true;
}

/* ---- packed panels ------------------------------------------------------------------------------- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* A range begins on the grid, and ends there or with its extent. A grid of 0 has the whole extent only. */
static bool on_grid(int64_t begin, int64_t count, int64_t extent, int64_t grid)
{
    int64_t end = begin + count;

    return grid ? begin % grid == 0 && (end % grid == 0 || end == extent) : begin == 0 && end == extent;
}

/*
 * Panels of a packed operand are as wide as the kernel likes, which the problem's tiles are chosen to fit: a
 * copy begins where a panel does; what it leaves of its last panel is padding. Along k, copies and products
 * begin and end between the kernel's steps.
 */
static bool fits_panels(const weft_checker *checker, const weft_plan_part *part, const weft_region *region,
                        bool written)
{
    const weft_problem *p = &part->problem;
    int64_t rows = weft_operand_rows(&part->operands[region->operand], checker->world, region->rank);

    if (written && region->col0 % common_divisor(WEFT_PACK_COLUMNS,
                                                 p->tuning.grain_n ? p->tuning.grain_n : p->tuning.tile_n))
        return false;
    return on_grid(region->row0, region->rows, rows,
                   common_divisor(p->tuning.tile_k, p->tuning.copiers ? p->tuning.chunk_k : 0));
}

/* What a task carries is what the next one of its lane goes on with. */
static bool carries_on(const weft_plan_part *part, uint32_t index)
{
    const weft_task *task = &part->tasks[index], *next = task + 1;
    const weft_lane *lane = &part->lanes[task->lane];
    const weft_region *d = weft_task_regions(part, task), *a, *b, *next_a, *next_b, *acc;

    if (task->kind != WEFT_TASK_GEMM || task->destinations != 1 || task->flags & WEFT_TASK_EPILOGUE ||
        part->operands[d->operand].place != WEFT_PLACE_PRIVATE ||
        index + 1 >= lane->task0 + lane->task_count || next->kind != WEFT_TASK_GEMM ||
        !(next->flags & WEFT_TASK_HAS_ACC) || next->region0 + next->region_count > part->region_count ||
        next->region_count < next->destinations + 3)
        return false;
    a = weft_product_a(part, task);
    b = weft_product_b(part, task);
    next_a = weft_product_a(part, next);
    next_b = weft_product_b(part, next);
    acc = weft_task_regions(part, next) + weft_task_roles_of(next).acc;
    return acc->operand == d->operand && acc->batch == d->batch && acc->row0 == d->row0 &&
           acc->col0 == d->col0 && same_shape(acc, d) && next_a->operand == a->operand &&
           next_a->rank == a->rank && next_a->batch == a->batch && next_a->row0 == a->row0 &&
           next_a->col0 == a->col0 + a->cols && next_b->operand == b->operand && next_b->rank == b->rank &&
           next_b->batch == b->batch && next_b->col0 == b->col0 && next_b->row0 == b->row0 + b->rows;
}

/* Between domains: one COPY pushes to one rank, and posts there; nothing else touches another's memory. */
static void form_of_crossing(weft_checker *checker, int rank, uint32_t index)
{
    const weft_plan_part *part = &checker->parts[rank];
    const weft_task *task = &part->tasks[index];
    const weft_region *regions = weft_task_regions(part, task);
    uint32_t number = checker->task_base[rank] + index;
    bool crosses = weft_task_crosses(part, task), landed = false;

    for (int i = crosses; i < task->region_count; i++) {
        if (weft_domains_differ(part, rank, regions[i].rank) && regions[i].rows && regions[i].cols)
            weft_check_find(checker, rank, index,
                            "%s touches %s, which lies in another domain: only a COPY that pushes crosses",
                            weft_check_task_text(checker, number),
                            weft_check_region_text(checker, &regions[i]));
    }
    for (uint32_t i = 0; i < task->post_count; i++) {
        const weft_post *post = &part->posts[task->post0 + i];
        bool enters = task->kind == WEFT_TASK_ENTER && post->signal == WEFT_SIGNAL_ENTER(rank);

        landed |= crosses && post->signal == WEFT_SIGNAL_LANDED(checker->world, rank);
        if (crosses ? post->rank != regions->rank : weft_domains_differ(part, rank, post->rank) && !enters)
            weft_check_find(checker, rank, index, "%s posts signal %u of rank %d, which %s",
                            weft_check_task_text(checker, number), post->signal, post->rank,
                            crosses ? "it does not push to"
                                    : "is in another domain: only a COPY that "
                                      "pushes to a rank posts there");
    }
    if (crosses && !landed)
        weft_check_find(checker, rank, index, "%s does not say at rank %d that it has landed",
                        weft_check_task_text(checker, number), regions->rank);
}

static void form_of_task(weft_checker *checker, int rank, uint32_t index)
{
    const weft_plan_part *part = &checker->parts[rank];
    const weft_task *task = &part->tasks[index];
    const weft_region *regions = weft_task_regions(part, task);
    const weft_lane *lane = &part->lanes[task->lane < part->lane_count ? task->lane : 0];
    uint32_t number = checker->task_base[rank] + index;
    bool inside = true;

    if (task->kind > WEFT_TASK_EXIT || task->lane >= part->lane_count || index < lane->task0 ||
        index >= lane->task0 + lane->task_count ||
        (uint64_t)task->region0 + task->region_count > part->region_count ||
        (uint64_t)task->wait0 + task->wait_count > part->wait_count ||
        (uint64_t)task->post0 + task->post_count > part->post_count ||
        task->destinations > task->region_count || task->flags >= 2 * WEFT_TASK_CARRY) {
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
            (i < task->destinations ? task->kind != WEFT_TASK_COPY : i != weft_task_roles_of(task).b) &&
            regions[i].rows)
            weft_check_find(
                checker, rank, index, "%s: only COPY writes a packed operand, only GEMM reads it, as B: %s",
                weft_check_task_text(checker, number), weft_check_region_text(checker, &regions[i]));
        else if (part->operands[regions[i].operand].packed && regions[i].rows &&
                 !fits_panels(checker, part, &regions[i], i < task->destinations))
            weft_check_find(checker, rank, index, "%s: cuts a panel of a packed operand: %s",
                            weft_check_task_text(checker, number),
                            weft_check_region_text(checker, &regions[i]));
    }
    for (int i = 0; inside && i < task->region_count; i++) {
        bool given = i == 0 && task->destinations == 1 && !(task->flags & WEFT_TASK_EPILOGUE);
        bool taken = i == weft_task_roles_of(task).acc;

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
    else if (inside && !types_fit(part, task, regions))
        weft_check_find(checker, rank, index, "%s: a type does not fit what is done with it; the first is %s",
                        weft_check_task_text(checker, number), weft_check_region_text(checker, regions));
    else if (inside && !pairs_fit(part, task, regions))
        weft_check_find(checker, rank, index,
                        "%s: pairs of gates and ups meet what is not paired; the first is %s",
                        weft_check_task_text(checker, number), weft_check_region_text(checker, regions));
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
        else if (post->signal < (part->domain ? 3 : 2) * world &&
                 (post->signal % world != (uint32_t)rank ||
                  (post->signal < world && task->kind != WEFT_TASK_ENTER) ||
                  (post->signal >= 2 * world && !(inside && weft_task_crosses(part, task)))))
            weft_check_find(checker, rank, index, "%s posts signal %u, which is reserved",
                            weft_check_task_text(checker, number), post->signal);
    }
    if (part->domain && !checker->report->count)
        form_of_crossing(checker, rank, index);
}

/*
 * How many posts a reserved signal may get: of a rank of the domain one, of one elsewhere none, but that its
 * ENTER may come, and that each of its messages says that it has landed.
 */
static bool reserved_fits(const weft_checker *checker, int rank, uint32_t signal, uint64_t got)
{
    int world = checker->world, peer = (int)signal % world;

    if (signal >= WEFT_SIGNAL_LANDED(world, 0))
        return true;
    if (weft_domains_differ(&checker->parts[0], rank, peer))
        return got <= (signal < (uint32_t)world);
    return got == (peer != rank);
}

/* Posts made by all ranks at every rank, against those it announces. */
static bool count_posts(weft_checker *checker)
{
    size_t signals = checker->parts[0].signal_count;
    uint64_t *made = calloc(signals, (size_t)(unsigned)checker->world * sizeof(*made));

    if (!made)
        return false;
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
        for (uint32_t i = 0; i < checker->parts[0].signal_count; i++) {
            uint64_t got = made[(size_t)rank * signals + i];

            if (got != checker->parts[rank].signal_posts[i])
                weft_check_find(checker, rank, -1,
                                "signal %u of rank %d gets %llu posts in a run, not the %u it is "
                                "announced to get",
                                i, rank, (unsigned long long)got, checker->parts[rank].signal_posts[i]);
            else if (!reserved_fits(checker, rank, i, got))
                weft_check_find(checker, rank, -1,
                                "signal %u of rank %d, which is reserved, gets %llu posts in a run", i, rank,
                                (unsigned long long)got);
        }
    }
    free(made);
    return true;
}

bool weft_check_form(weft_checker *checker)
{
    if (!form_of_problem(checker))
        return true;
    for (int rank = 0; rank < checker->world; rank++)
        form_of_part(checker, rank);
    if (!checker->report->count)
        form_of_operands(checker);
    if (checker->report->count)
        return true;
    for (int rank = 0; rank < checker->world; rank++) {
        for (uint32_t i = 0; i < checker->parts[rank].task_count; i++)
            form_of_task(checker, rank, i);
    }
    return checker->report->count || count_posts(checker);
}
