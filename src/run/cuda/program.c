/* Lowers a plan part to device arrays, lane by lane. See program.h. */
#include "run/cuda/lower.h"

#include "core/dtype.h"
#include "run/cuda/done.h"

#include <stdlib.h>
#include <string.h>

/* ---- order within a lane ----------------------------------------------------------------------------- */

/*
 * A plan may rely on a lane doing its tasks one after another. The members of a crew do not wait for each
 * other between tasks, so where a task touches what an earlier one of its lane wrote (or writes what that one
 * touched) the weft_lowering adds a signal of its own: the earlier task posts it, the later one waits. What a
 * task carries never leaves its registers. A collective's CTA does its lane's tasks one after another.
 */
typedef struct lane_order {
    uint32_t *signal; /* per task of the lane: the private signal it posts, 0 = none (0 is never private) */
} lane_order;

static bool overlap(const weft_region *x, const weft_region *y)
{
    return x->operand == y->operand && x->rank == y->rank && x->batch == y->batch &&
           x->row0 < y->row0 + y->rows && y->row0 < x->row0 + x->rows && x->col0 < y->col0 + y->cols &&
           y->col0 < x->col0 + x->cols;
}

static bool depends(const weft_plan_part *part, const weft_task *later, const weft_task *earlier)
{
    const weft_region *x = weft_task_regions(part, later), *y = weft_task_regions(part, earlier);
    for (int i = 0; i < later->region_count; i++)
        for (int j = 0; j < earlier->region_count; j++)
            if ((i < later->destinations || j < earlier->destinations) && overlap(x + i, y + j))
                return true;
    return false;
}

/* The later task waits for a signal whose posts the earlier one is among, so for that one too. */
static bool awaits(const weft_plan_part *part, const weft_task *later, const weft_task *earlier)
{
    for (uint32_t i = 0; i < earlier->post_count; i++)
        for (uint32_t j = 0; j < later->wait_count; j++) {
            const weft_post *post = &part->posts[earlier->post0 + i];
            const weft_wait *wait = &part->waits[later->wait0 + j];
            if (post->rank == part->rank && post->signal == wait->signal &&
                wait->count == part->signal_posts[wait->signal])
                return true;
        }
    return false;
}

static void order_lane(weft_lowering *low, const weft_lane *lane, lane_order *order)
{
    const weft_task *tasks = &low->part->tasks[lane->task0];
    memset(order->signal, 0, lane->task_count * sizeof(*order->signal));
    if (low->part->problem.op >= WEFT_OP_ALL_REDUCE)
        return;
    for (uint32_t i = 1; i < lane->task_count; i++)
        for (uint32_t j = 0; j < i && !(tasks[i].flags & WEFT_TASK_CARRY); j++)
            if (!order->signal[j] && !(tasks[j].flags & WEFT_TASK_CARRY) &&
                depends(low->part, &tasks[i], &tasks[j]) && !awaits(low->part, &tasks[i], &tasks[j]))
                order->signal[j] = low->part->signal_count + low->program->private_signals++;
}

/* By the step before which they must hold; the order of equals stays. */
static void sort_waits(weft_cuda_program *program, const weft_cuda_task *task)
{
    weft_cuda_wait *waits = program->waits + task->wait0;
    for (int i = 1; i < task->wait_count; i++)
        for (int j = i; j > 0 && waits[j - 1].step > waits[j].step; j--) {
            weft_cuda_wait later = waits[j - 1];
            waits[j - 1] = waits[j];
            waits[j] = later;
        }
}

/* Whether the epilogue does more than store: the walkers have shorter code for sums that are only stored. */
static bool changes_sums(const weft_problem *p, const weft_task *task)
{
    return p->alpha != 1 || p->scales || p->act != WEFT_ACT_NONE ||
           task->flags & (WEFT_TASK_HAS_C | WEFT_TASK_HAS_BIAS);
}

/* The posts of a collective's task: see done.h. */
static weft_status lower_own_posts(weft_lowering *low, uint32_t index, uint32_t *first, uint32_t *count)
{
    const weft_plan_part *part = low->part;
    const weft_task *task = &part->tasks[index];
    weft_status status = WEFT_OK;
    *first = low->program->post_count;
    for (uint32_t i = 0; i < task->post_count && status == WEFT_OK; i++) {
        const weft_post *post = &part->posts[task->post0 + i];
        if (low->done->join == UINT32_MAX || post->signal != low->done->join_signal)
            status = weft_lower_post(low, post->signal, post->rank);
    }
    for (int rank = 0; rank < part->world && status == WEFT_OK; rank++)
        if (low->done->lanes[rank] > 1 &&
            low->done->last[(uint32_t)task->lane * (uint32_t)part->world + (uint32_t)rank] == index + 1)
            status = weft_lower_post(low, WEFT_SIGNAL_DONE(part->world, part->rank), rank);
    *count = low->program->post_count - *first;
    return status;
}

static weft_status lower_task(weft_lowering *low, const weft_lane *lane, uint32_t at, const lane_order *order,
                              weft_cuda_task *out)
{
    const weft_task *tasks = &low->part->tasks[lane->task0], *task = &tasks[at];
    const weft_region *d = weft_task_regions(low->part, task);
    const weft_task *first = task->kind == WEFT_TASK_GEMM ? weft_lower_first_carried(low, lane, at) : task;
    int64_t step_k = weft_lower_step_k(low);
    uint32_t waits = 0, posts;
    weft_status status;
    *out = (weft_cuda_task){.destinations = task->destinations,
                            .acc = -1,
                            .c = -1,
                            .bias = -1,
                            .view0 = low->program->view_count,
                            .rows = (int32_t)d->rows,
                            .cols = (int32_t)d->cols,
                            .plan_task = lane->task0 + at};
    if (task->flags & WEFT_TASK_EPILOGUE && changes_sums(&low->part->problem, task))
        out->flags |= WEFT_CUDA_EPILOGUE;
    status = task->kind == WEFT_TASK_GEMM ? weft_lower_gemm(low, first, task, out)
                                          : weft_lower_plain(low, task, out);
    out->wait0 = low->program->wait_count;
    for (const weft_task *link = first; link <= task && status == WEFT_OK; link++) {
        int64_t k0 = first == task
                         ? 0
                         : weft_product_a(low->part, link)->col0 - weft_product_a(low->part, first)->col0;
        status = k0 % step_k
                     ? weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                                      "the cuda backend takes k in chunks of multiples of %d, not of %lld",
                                      (int)step_k, (long long)k0)
                     : weft_lower_waits(low, link, k0 / step_k, &waits);
    }
    for (uint32_t j = 0; j < at && status == WEFT_OK; j++)
        if (order->signal[j] && depends(low->part, task, &tasks[j])) {
            status = weft_lower_wait(low, order->signal[j], 1, 1, 0);
            waits++;
        }
    if (status == WEFT_OK)
        status = low->done ? lower_own_posts(low, lane->task0 + at, &out->post0, &posts)
                           : weft_lower_posts(low, task, &out->post0, &posts);
    if (status == WEFT_OK && order->signal[at]) {
        status = weft_lower_post(low, order->signal[at], low->part->rank);
        posts++;
    }
    if (status == WEFT_OK) {
        out->wait_count = (uint16_t)waits;
        out->post_count = (uint16_t)posts;
        sort_waits(low->program, out);
    }
    return status;
}

/*
 * A post says that its task and all before it in the lane are done. Bulk stores are finished by other threads
 * than plain work, so plain work after them first waits for them.
 */
static void settle_lane(weft_cuda_program *program, const weft_cuda_lane *lane)
{
    weft_cuda_task *tasks = program->tasks + lane->task0;
    for (uint32_t i = 1; i < lane->task_count; i++)
        if (!(tasks[i].flags & WEFT_CUDA_BULK) && tasks[i - 1].flags & WEFT_CUDA_BULK) {
            tasks[i].flags |= WEFT_CUDA_AFTER_BULK;
            tasks[i - 1].flags |= WEFT_CUDA_DRAIN;
        }
}

/* Nothing but copies that the bulk engine can do: a storer runs such a lane. */
static bool bulk_lane(const weft_cuda_program *program, const weft_cuda_lane *lane)
{
    const weft_cuda_task *tasks = program->tasks + lane->task0;
    for (uint32_t i = 0; i < lane->task_count; i++)
        if (tasks[i].kind != WEFT_CUDA_COPY || !(tasks[i].flags & WEFT_CUDA_WIDE))
            return false;
    return true;
}

/*
 * A plan lists a wait once per lane: later tasks of the lane rely on it. On Hopper the thread that loads A
 * and B runs ahead of the consumers, so before it loads anything that is not the rank's own input it makes
 * the waits that the consumers make for earlier tasks, too.
 */
static weft_status carry_waits(weft_lowering *low, const weft_cuda_lane *lane, weft_cuda_task *task,
                               uint32_t *carried)
{
    weft_cuda_program *program = low->program;
    bool loads = task->kind == WEFT_CUDA_GEMM && task->k > 0 && !(task->flags & WEFT_CUDA_LATE);
    for (; loads && *carried < lane->task_count; (*carried)++) {
        const weft_cuda_task *earlier = &program->tasks[lane->task0 + *carried];
        if (earlier->kind == WEFT_CUDA_GEMM && earlier->k > 0 && !(earlier->flags & WEFT_CUDA_LATE))
            continue;
        for (uint32_t i = 0; i < earlier->wait_count; i++, task->wait_count++) {
            weft_cuda_wait wait = program->waits[earlier->wait0 + i];
            weft_status status = weft_lower_wait(low, wait.number, wait.count, wait.total, 0);
            if (status != WEFT_OK)
                return status;
        }
    }
    sort_waits(program, task);
    return WEFT_OK;
}

static weft_status lower_lane(weft_lowering *low, const weft_lane *lane, lane_order *order)
{
    weft_cuda_program *program = low->program;
    weft_cuda_lane made = {.task0 = program->task_count};
    weft_status status = WEFT_OK;
    uint32_t carried = 0;
    order_lane(low, lane, order);
    for (uint32_t i = 0; i < lane->task_count && status == WEFT_OK; i++) {
        const weft_task *task = &low->part->tasks[lane->task0 + i];
        if (task->kind == WEFT_TASK_ENTER) {
            program->enter_wait0 = program->wait_count;
            status = weft_lower_waits(low, task, 0, &program->enter_waits);
            if (status == WEFT_OK)
                status = weft_lower_posts(low, task, &program->enter_post0, &program->enter_posts);
        } else if (task->kind == WEFT_TASK_EXIT) {
            program->exit_wait0 = program->wait_count;
            status = weft_lower_waits(low, task, 0, &program->exit_waits);
        } else if (!(task->flags & WEFT_TASK_CARRY) && !(low->done && low->done->join == lane->task0 + i)) {
            weft_cuda_task *lowered = &program->tasks[program->task_count];
            status = lower_task(low, lane, i, order, lowered);
            if (status == WEFT_OK)
                status = carry_waits(low, &made, lowered, &carried);
            program->task_count += status == WEFT_OK;
            made.task_count += status == WEFT_OK;
        }
    }
    if (status != WEFT_OK || made.task_count == 0)
        return status;
    settle_lane(program, &made);
    if (low->storers && lane->kind == WEFT_LANE_COPY) {
        program->copies[program->copy_count++] = made;
        low->bulk &= bulk_lane(program, &made);
    } else {
        program->lanes[program->lane_count++] = made;
    }
    return WEFT_OK;
}

/* What peers wait for: the rank's own operand, on its way to where they can reach it. */
static bool stages(const weft_plan_part *part, const weft_cuda_task *task)
{
    const weft_task *copy = &part->tasks[task->plan_task];
    const weft_region *from = weft_copy_source(part, copy);
    return copy->region_count > copy->destinations && weft_region_is_given(part, from);
}

/* The copy lanes that crew `lane` takes, a task of each in turn, to tasks[at] and on: of those that stage, or
 * of the others. */
static uint32_t fold_lanes(const weft_lowering *low, uint32_t lane, bool staging, weft_cuda_task *tasks,
                           uint32_t at)
{
    const weft_cuda_program *program = low->program;
    bool more = true;
    for (uint32_t turn = 0; more; turn++) {
        more = false;
        for (uint32_t i = lane; i < program->copy_count; i += program->lane_count)
            if (turn < program->copies[i].task_count) {
                const weft_cuda_task *task = &program->tasks[program->copies[i].task0 + turn];
                if (stages(low->part, task) == staging)
                    tasks[at++] = *task;
                more = true;
            }
    }
    return at;
}

/*
 * Where storers cannot run the copy lanes (operands the bulk engine or the Hopper walker refuses), the crews
 * do their work: first what others wait for to multiply it, which waits for nothing that a crew does, then
 * what they multiply; or when they have multiplied and added up, what they have made (which all ranks get),
 * before the join of all lanes.
 */
static weft_status fold_copies(weft_lowering *low)
{
    weft_cuda_program *program = low->program;
    weft_cuda_task *tasks = calloc(program->task_count + 1, sizeof(*tasks)); /* one more, as ever */
    bool after = low->part->problem.op != WEFT_OP_AG_GEMM; /* copies of results wait for crews */
    uint32_t at = 0;
    if (!tasks)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks",
                              program->task_count);
    for (uint32_t lane = 0; lane < program->lane_count; lane++) {
        weft_cuda_lane made = {.task0 = at}, old = program->lanes[lane];
        uint32_t before = after ? old.task_count : 0;
        while (before > 0 && program->tasks[old.task0 + before - 1].kind == WEFT_CUDA_COPY)
            before--;
        for (uint32_t i = 0; i < before; i++)
            tasks[at++] = program->tasks[old.task0 + i];
        at = fold_lanes(low, lane, true, tasks, at);
        at = fold_lanes(low, lane, false, tasks, at);
        for (uint32_t i = before; i < old.task_count; i++)
            tasks[at++] = program->tasks[old.task0 + i];
        made.task_count = at - made.task0;
        program->lanes[lane] = made;
    }
    free(program->tasks);
    program->tasks = tasks;
    program->copy_count = 0;
    for (uint32_t lane = 0; lane < program->lane_count; lane++)
        settle_lane(program, &program->lanes[lane]);
    return WEFT_OK;
}

/* The walker whose tile fits the plan's. */
static int walker_of(const weft_plan_part *part)
{
    int64_t widest = 0;
    for (uint32_t i = 0; i < part->task_count; i++)
        if (part->tasks[i].kind == WEFT_TASK_GEMM && weft_task_regions(part, &part->tasks[i])->cols > widest)
            widest = weft_task_regions(part, &part->tasks[i])->cols;
    return weft_cuda_walker_for(part->problem.tuning.crew, part->problem.tuning.tile_m, widest,
                                weft_dtype_is_fp8(part->problem.dtype));
}

weft_status weft_cuda_program_make(const weft_plan_part *part, const weft_cuda_binding *binding, bool hopper,
                                   weft_cuda_program *program, weft_error_text *error)
{
    weft_cuda_program made = {.hopper = hopper, .walker = walker_of(part)};
    weft_lowering low = {part, binding, &made, error, 0, NULL, hopper, true};
    weft_cuda_done done = {0};
    lane_order order = {calloc(part->task_count + 1, sizeof(*order.signal))};
    weft_status status = WEFT_OK;

    made.lanes = calloc(part->lane_count + 1, sizeof(*made.lanes));
    made.copies = calloc(part->lane_count + 1, sizeof(*made.copies));
    made.tasks = calloc(part->task_count + 1, sizeof(*made.tasks)); /* one more: the walkers prefetch ahead */
    if (!made.lanes || !made.copies || !made.tasks || !order.signal) {
        free(order.signal);
        weft_cuda_program_free(&made);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", part->task_count);
    }
    if (binding->done_posts) {
        if (!weft_cuda_done_find(part, &done))
            status =
                weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u lanes", part->lane_count);
        low.done = &done;
    }
    for (uint32_t i = 0; i < part->lane_count && status == WEFT_OK; i++)
        status = lower_lane(&low, &part->lanes[i], &order);
    for (uint32_t i = 0; i < made.wait_count && binding->done_posts; i++) {
        uint32_t from = made.waits[i].number - (uint32_t)part->world; /* wraps where it is an ENTER */
        if (from < (uint32_t)part->world && binding->done_posts[from] > 1)
            made.waits[i].count = made.waits[i].total = binding->done_posts[from];
    }
    weft_cuda_done_free(&done);
    free(order.signal);
    if (status == WEFT_OK && made.private_signals > WEFT_CUDA_PRIVATE_SIGNALS)
        status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                "the plan needs %u signals within its lanes; there is room for %d",
                                made.private_signals, WEFT_CUDA_PRIVATE_SIGNALS);
    if (status != WEFT_OK) {
        weft_cuda_program_free(&made);
        return status;
    }
    if (made.lane_count == 0)
        made.lane_count = 1; /* an empty lane still does ENTER and EXIT */
    if (made.copy_count && !(made.hopper && low.bulk))
        status =
            binding->given
                ? weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                 "the copy lanes of a plan from a file take operands whose rows, and what "
                                 "is copied of them, begin and end on 16 bytes")
                : fold_copies(&low);
    if (status != WEFT_OK) {
        weft_cuda_program_free(&made);
        return status;
    }
    /* every copy lane has a storer */
    while (made.lane_count * WEFT_CUDA_CTA_COPIERS * (uint32_t)weft_cuda_walkers[made.walker].ctas <
           made.copy_count)
        made.lanes[made.lane_count++] = (weft_cuda_lane){.task0 = 0};
    *program = made;
    return WEFT_OK;
}

void weft_cuda_program_free(weft_cuda_program *program)
{
    free(program->lanes);
    free(program->copies);
    free(program->tasks);
    free(program->views);
    free(program->waits);
    free(program->posts);
    free(program->maps);
    *program = (weft_cuda_program){0};
}
