/* Making plans on GPUs, waiting for their runs, dropping them. See plan.h. */
#include "run/cuda/plan.h"

#include "choose/tuned.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/choose.h"
#include "run/cuda/collective.h"
#include "run/cuda/done.h"
#include "run/cuda/exchanged.h"
#include "run/cuda/halves.h"
#include "run/cuda/lower.h"
#include "run/cuda/moe.h"
#include "run/cuda/tuned.h"
#include "run/given.h"

#include <stdlib.h>
#include <string.h>

enum {
    RETIRED_MAX = 256,
    CONTROL_BYTES = 4096,
};

/* ---- making --------------------------------------------------------------------------------------- */

/* Scratch operands, signals and control block, at the same offsets on all ranks. Returns the block's size. */
static size_t lay_out(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    const weft_plan_part *part = &plan->part;
    weft_cuda_wire wire = weft_cuda_wire_of(weft_cuda_of(plan->group));
    size_t at = 0;
    uint32_t signals;

    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];
        int64_t rows = weft_operand_rows(o, part->world, 0), cols = weft_operand_cols(o, part->world, 0),
                line = o->transposed ? rows : cols;

        if (o->place == WEFT_PLACE_USER)
            continue;
        p->lds[i] =
            (int64_t)weft_round_up_bytes(line > 0 ? (size_t)line : 1, 8); /* 16 bytes of 16-bit elements */
        p->offsets[i] = at;
        if (p->collective.world && !weft_cuda_halves_keeps(part, i))
            continue;
        if (weft_schedule_is_packets(part->problem.schedule))
            at = weft_round_up_bytes(at + weft_cuda_inbox_bytes(part, wire), 1024);
        else if (weft_cuda_exchange_bytes(part, i))
            at = weft_round_up_bytes(at + weft_cuda_exchange_bytes(part, i), 1024);
        else
            at = weft_round_up_bytes(at + (size_t)(o->batch * (o->transposed ? cols : rows) * p->lds[i]) *
                                              weft_dtype_size(o->dtype),
                                     1024);
    }
    p->inboxes_at = at;
    p->signals_at = weft_round_up_bytes(at + weft_cuda_halves_bytes(&p->collective, wire), 1024);
    signals = p->collective.world ? p->collective.signal_count : part->signal_count;
    at = p->signals_at + (signals + WEFT_CUDA_PRIVATE_SIGNALS) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    p->control_at = at;
    return at + CONTROL_BYTES;
}

/* How often each peer will say DONE to this rank: as its part of the plan has it. */
static weft_status count_done(weft_plan *plan)
{
    const weft_plan_part *collective = &weft_cuda_plan_of(plan)->collective,
                         *part = collective->world ? collective : &plan->part;
    weft_error_text *error = &plan->group->error;
    weft_status status = WEFT_OK;

    weft_cuda_plan_of(plan)->done_posts =
        calloc((size_t)part->world, sizeof(*weft_cuda_plan_of(plan)->done_posts));
    if (!weft_cuda_plan_of(plan)->done_posts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks", part->world);
    for (int rank = 0; rank < part->world && status == WEFT_OK; rank++) {
        weft_plan_part theirs;

        if (rank == part->rank)
            continue;
        status = weft_plan_make(&part->problem, part->world, rank, &theirs, error);
        if (status != WEFT_OK)
            break;
        weft_cuda_plan_of(plan)->done_posts[rank] = weft_cuda_done_lanes(&theirs, part->rank);
        weft_plan_part_free(&theirs);
    }
    return status;
}

/* Of a kernel without a product: a collective's, or the one beside a product that is a launch of its own. */
static bool lanes_say_done(const weft_plan_part *part)
{
    return part->problem.op >= WEFT_OP_ALL_REDUCE || (part->world > 1 && part->problem.tuning.library != 2);
}

/* Whether the switch between the ranks' GPUs can do it. */
static weft_status check_switch(const weft_cuda_group *g, const weft_problem *p, weft_error_text *error)
{
    if (!g->switched)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "all_reduce by multimem needs a GPU for every rank and multicast between them "
            "(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), and %s; push does the same by plain stores",
            g->device->multicast ? "here ranks share a GPU, or are one" : "there is none here");
    if (!weft_cuda_multicast_reduces(p->dtype, p->reduction))
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "the switch between GPUs does not reduce %s so: multimem adds floats and "
            "integers of 32 and 64 bits, f16 and bf16, and of all but f32 and f64 takes the "
            "least or greatest; push reduces anything",
            weft_dtype_name(p->dtype));
    return WEFT_OK;
}

/* Whether the kernels make such results at all. */
static weft_status check_problem(const weft_cuda_group *g, const weft_problem *p, weft_error_text *error)
{
    if (p->op == WEFT_OP_ALL_REDUCE && p->schedule == WEFT_SCHEDULE_MULTIMEM)
        return check_switch(g, p, error);
    if (p->b_form == WEFT_B_PREPACKED)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "B packed by weft_pack is for CPU kernels; on GPUs give B as it is");
    if (p->op < WEFT_OP_ALL_REDUCE && p->dtype != WEFT_F16 && p->dtype != WEFT_BF16 &&
        !weft_dtype_is_fp8(p->dtype))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "the cuda backend multiplies float16, bfloat16 and fp8, not %s",
                              weft_dtype_name(p->dtype));
    return WEFT_OK;
}

static weft_cuda_basis basis_of(const weft_group *group)
{
    const weft_cuda_group *g = weft_cuda_of(group);

    return (weft_cuda_basis){.world = group->size,
                             .crews = g->crews,
                             .hopper = g->device->hopper,
                             .library = g->library,
                             .whole = g->whole,
                             .adds = g->adds};
}

/*
 * What was asked for, with what rank 0 finds tuned for it where it leaves everything open: files differ
 * between hosts, and change.
 */
static weft_status take_tuned(weft_plan *plan, weft_problem *problem)
{
    weft_group *group = plan->group;
    weft_cuda_basis basis = basis_of(group);
    struct {
        weft_schedule schedule;
        weft_tuning tuning;
        int32_t status;
        char text[256];
    } found;
    weft_status status;

    *problem = plan->asked;
    if (!weft_tuned_asks(problem) || problem->tuning.workers)
        return WEFT_OK;
    memset(&found, 0, sizeof(found));
    if (group->rank == 0) {
        weft_problem resolved;
        weft_error_text error = {0};

        if (weft_problem_resolve(problem, group->size, &resolved, &error) ==
            WEFT_OK) { /* else make_part says */
            found.status =
                (int32_t)weft_cuda_tuned(&basis, weft_cuda_of(group)->device->name, &resolved, &error);
            memcpy(found.text, error.text, sizeof(found.text) - 1);
            found.schedule = resolved.schedule;
            found.tuning = resolved.tuning;
        }
    }
    status = weft_group_broadcast(group, 0, &found, sizeof(found));
    if (status == WEFT_OK && found.status != WEFT_OK)
        status = weft_error_set(&group->error, (weft_status)found.status, "%s", found.text);
    if (status == WEFT_OK && found.schedule != WEFT_SCHEDULE_AUTO) {
        problem->schedule = found.schedule;
        problem->tuning = found.tuning;
    }
    return status;
}

/* The part of a problem, as this backend chooses. */
static weft_status make_part(weft_plan *plan, const weft_problem *problem)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_error_text *error = &plan->group->error;
    int world = plan->group->size;
    weft_problem resolved, decided;
    weft_cuda_basis basis = basis_of(plan->group);
    weft_status status = weft_problem_resolve(problem, world, &resolved, error);

    if (status == WEFT_OK)
        status = check_problem(g, &resolved, error);
    if (status != WEFT_OK)
        return status;
    decided = weft_cuda_choose(&basis, &resolved);
    return weft_plan_make(&decided, world, plan->group->rank, &plan->part, error);
}

/* The tasks of products: tiles that fit a walker, and sums in places where it can add. */
static weft_status check_given_product(const weft_cuda_group *g, const weft_plan_part *part, uint32_t index,
                                       weft_error_text *error)
{
    const weft_task *task = &part->tasks[index];
    const weft_region *d = weft_task_regions(part, task);
    const weft_region *acc = task->flags & WEFT_TASK_HAS_ACC ? d + weft_task_roles_of(task).acc : NULL;
    int widest = weft_cuda_widest(part->problem.dtype);

    if (task->kind != WEFT_TASK_GEMM)
        return WEFT_OK;
    if (d->rows > WEFT_CUDA_TILE_M || d->cols > widest)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d multiplies a tile of %lld x %lld: on GPUs tiles have "
                              "at most %d x %d",
                              index, part->rank, (long long)d->rows, (long long)d->cols, WEFT_CUDA_TILE_M,
                              widest);
    if (acc && acc->rank != part->rank && !g->adds)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d adds to memory of rank %d, and these GPUs cannot add "
                              "in one another's memory",
                              index, part->rank, acc->rank);
    return WEFT_OK;
}

/* The tasks of collectives: a row each, with a thread for every wait, post and region (see lanes.cuh); a
 * REDUCE divides by the number of its sources where it averages. */
static weft_status check_given_move(const weft_plan_part *part, uint32_t index, weft_error_text *error)
{
    const weft_task *task = &part->tasks[index];
    const weft_region *d = weft_task_regions(part, task);

    if (task->region_count && d->rows != 1 && (d->rows || task->kind == WEFT_TASK_REDUCE))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d has %lld rows: on GPUs a task of a collective has one",
                              index, part->rank, (long long)d->rows);
    if (task->region_count > WEFT_CUDA_COLLECTIVE_THREADS ||
        task->wait_count > WEFT_CUDA_COLLECTIVE_THREADS || task->post_count > WEFT_CUDA_COLLECTIVE_THREADS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d has %u regions, %u waits and %u posts: on GPUs a task of a "
                              "collective has at most %d of each",
                              index, part->rank, task->region_count, task->wait_count, task->post_count,
                              WEFT_CUDA_COLLECTIVE_THREADS);
    if (part->problem.reduction == WEFT_AVERAGE && task->kind == WEFT_TASK_REDUCE &&
        task->region_count - task->destinations != part->world)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d adds %d of %d ranks' parts: on GPUs an average is made at "
                              "once",
                              index, part->rank, task->region_count - task->destinations, part->world);
    return WEFT_OK;
}

/* What of a part that somebody wrote the kernels cannot do. */
static weft_status check_given(const weft_cuda_group *g, const weft_plan_part *part, weft_error_text *error)
{
    weft_problem asked = part->problem;
    bool product = asked.op < WEFT_OP_ALL_REDUCE;
    weft_status status;

    if (!product) /* its tasks are walked, whatever the schedule is called */
        asked.schedule = WEFT_SCHEDULE_CUSTOM;
    status = check_problem(g, &asked, error);
    if (status == WEFT_OK &&
        (weft_problem_is_gated(&asked) || (asked.scales && !weft_dtype_is_fp8(asked.dtype))))
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "on GPUs gated activations, and scales of other products than those of fp8, are "
            "for plans that weft makes");
    if (status == WEFT_OK && part->domain)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "a plan over several nodes runs on CPU ranks");
    for (uint32_t i = 0; i < part->operand_count && status == WEFT_OK; i++)
        if (part->operands[i].packed)
            status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                    "%s is packed as CPU kernels read it; on GPUs it is plain",
                                    part->operands[i].name);
        else if (!product && part->operands[i].transposed)
            status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                    "%s is transposed; on GPUs the memory of a collective is not",
                                    part->operands[i].name);
    for (uint32_t i = 0; i < part->task_count && status == WEFT_OK; i++)
        status = product ? check_given_product(g, part, i, error) : check_given_move(part, i, error);
    return status;
}

/* What needs no peer: the part, made of the problem or given (and then taken over), and its tables. */
static weft_status prepare(weft_plan *plan, const weft_problem *problem, weft_plan_part *given)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_error_text *error = &plan->group->error;
    weft_cuda_basis basis = basis_of(plan->group);
    weft_status status = given ? check_given(g, given, error) : make_part(plan, problem);

    if (status != WEFT_OK)
        return status;
    if (given) {
        plan->part = *given;
        *given = (weft_plan_part){0};
        plan->part.problem.tuning.crew = 0;
        plan->part.problem.tuning.library = 2; /* the tasks are the product */
        if (plan->part.problem.op >= WEFT_OP_ALL_REDUCE)
            plan->part.problem.schedule = WEFT_SCHEDULE_CUSTOM; /* and the collective: no kernel of its own */
    }
    weft_cuda_plan_of(plan)->offsets =
        calloc(plan->part.operand_count + 1, sizeof(*weft_cuda_plan_of(plan)->offsets));
    weft_cuda_plan_of(plan)->lds =
        calloc(plan->part.operand_count + 1, sizeof(*weft_cuda_plan_of(plan)->lds));
    if (!weft_cuda_plan_of(plan)->offsets || !weft_cuda_plan_of(plan)->lds)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              plan->part.operand_count);
    weft_given_note(plan);
    status = weft_cuda_halves_make(&plan->part, &basis, true, &weft_cuda_plan_of(plan)->collective, error);
    if (status != WEFT_OK)
        return status;
    if (weft_cuda_plan_of(plan)->collective.world)
        plan->touched = weft_cuda_halves_touched(&plan->part, &weft_cuda_plan_of(plan)->collective);
    return !plan->loaded && lanes_say_done(&plan->part) ? count_done(plan) : WEFT_OK;
}

/* What a rank tells the others when a plan is made. */
typedef struct outcome {
    int32_t status;
    uint32_t touched, retired_count;
    uint32_t retired[RETIRED_MAX]; /* plans it has destroyed */
    char text[WEFT_ERROR_TEXT_BYTES];
} outcome;

_Static_assert(sizeof(outcome) <= WEFT_BOARD_BYTES, "ranks show it in one piece");

static void list_retired(const weft_cuda_group *g, outcome *mine)
{
    for (const weft_cuda_plan *p = g->plans; p && mine->retired_count < RETIRED_MAX; p = p->next)
        if (p->retired)
            mine->retired[mine->retired_count++] = p->number;
}

static bool retired_everywhere(const weft_group *group, uint32_t number)
{
    for (int rank = 0; rank < group->size; rank++) {
        const outcome *theirs = weft_group_board(group, rank);
        bool there = false;

        for (uint32_t i = 0; i < theirs->retired_count; i++)
            there |= theirs->retired[i] == number;
        if (!there)
            return false;
    }
    return true;
}

/* The memory of plans that all ranks have destroyed is given back, on all ranks in the same order: that of
 * the list, newest first. */
static void give_retired(weft_group *group)
{
    weft_cuda_plan **at = &weft_cuda_of(group)->plans;

    while (*at) {
        weft_cuda_plan *p = *at;

        if (p->retired && retired_everywhere(group, p->number)) {
            *at = p->next;
            if (p->sums && (char *)p->sums != p->block)
                weft_cuda_give(group, p->sums);
            weft_cuda_give(group, p->block);
            if (p->staging)
                weft_cuda_staging_leave(group, p->staging);
            free(p);
        } else {
            at = &p->next;
        }
    }
}

void weft_cuda_plans_free(weft_cuda_group *g)
{
    while (g->plans) {
        weft_cuda_plan *next = g->plans->next;

        free(g->plans);
        g->plans = next;
    }
    weft_cuda_staging_free(g);
}

static weft_status compare_outcomes(weft_plan *plan, weft_status mine)
{
    weft_group *group = plan->group;
    outcome own = {.status = (int32_t)mine, .touched = plan->touched};
    weft_status status;

    if (mine != WEFT_OK)
        memcpy(own.text, group->error.text, sizeof(own.text));
    list_retired(weft_cuda_of(group), &own);
    status = weft_group_exchange(group, WEFT_SYNC_AGREE, &own, sizeof(own));
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++) {
        const outcome *theirs = weft_group_board(group, rank);

        plan->touched |= theirs->touched;
        if (theirs->status != WEFT_OK)
            status = weft_error_set(&group->error, (weft_status)theirs->status, "%.511s", theirs->text);
    }
    if (status == WEFT_OK)
        give_retired(group);
    return status;
}

static weft_status make_events(weft_plan *plan)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_error_text *error = &plan->group->error;
    weft_status status = WEFT_OK;

    weft_cuda_push(weft_cuda_of(plan->group));
    for (int i = 0; i < WEFT_CUDA_BOUND_MAX && status == WEFT_OK; i++)
        status = weft_cuda_check(
            cu, cu->cuEventCreate(&weft_cuda_plan_of(plan)->bound[i].last, CU_EVENT_DISABLE_TIMING),
            "cuEventCreate", error);
    weft_cuda_pop(weft_cuda_of(plan->group));
    return status;
}

/* With the part that is given, or one made of the problem. */
static weft_status open_plan(weft_plan *plan, weft_plan_part *given)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_plan *p = calloc(1, sizeof(*p));
    weft_cuda_basis basis;
    weft_problem problem;
    void *block = NULL;
    weft_status status;

    if (!p)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
    plan->lowered = p;
    if (!given && (status = take_tuned(plan, &problem)) != WEFT_OK)
        return status;
    status = prepare(plan, &problem, given);
    if (status == WEFT_OK)
        status = make_events(plan);
    status = compare_outcomes(plan, status);
    basis = basis_of(group);
    /* the switch knows no operand beyond symmetric memory: those are copied as a whole */
    if (!plan->loaded && weft_problem_can_be_staged(&plan->part.problem) &&
        plan->part.problem.schedule != WEFT_SCHEDULE_MULTIMEM &&
        weft_cuda_chunks_pay(&basis, &plan->part.problem))
        plan->reached = plan->touched;
    if (status == WEFT_OK) {
        plan->bytes = lay_out(plan);
        status = weft_cuda_alloc(group, plan->bytes, 1024, &block);
    }
    if (status != WEFT_OK)
        return status;
    p->block = block;
    p->number = ++g->plans_made;
    p->next = g->plans;
    g->plans = p;
    return WEFT_OK;
}

weft_status weft_cuda_plan_create(weft_plan *plan)
{
    return open_plan(plan, NULL);
}

weft_status weft_cuda_plan_load(weft_plan *plan, weft_plan_part *part)
{
    return open_plan(plan, part);
}

void weft_cuda_plan_destroy(weft_plan *plan)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool done = true;

    if (!p)
        return;
    weft_cuda_push(weft_cuda_of(plan->group));
    for (int i = 0; i < p->bound_count; i++)
        done &= weft_cuda_bound_free(plan->group, &p->bound[i]);
    if (done && p->alone)
        weft_cuda_alone_leave(weft_cuda_of(plan->group), p->alone);
    if (done && p->workspace.at)
        cu->cuMemFreeAsync(p->workspace.at, weft_cuda_of(plan->group)->device->uploads);
    for (int i = 0; i < WEFT_CUDA_BOUND_MAX; i++)
        if (p->bound[i].last)
            cu->cuEventDestroy(p->bound[i].last);
    weft_cuda_pop(weft_cuda_of(plan->group));
    while (p->meetings) {
        weft_cuda_meeting *next = p->meetings->next;

        free(p->meetings);
        p->meetings = next;
    }
    free(p->offsets);
    free(p->lds);
    free(p->done_posts);
    weft_plan_part_free(&p->collective);
    p->bound_count = 0;
    p->retired = true;
    if (!p->block) /* it never came into the group's list, where others wait for their peers */
        free(p);
}

/* ---- waiting -------------------------------------------------------------------------------------- */

/* How the runs of a program ended. A kernel that gave up has stopped its peers' kernels; this tells their
 * hosts why. */
static weft_status outcome_of(weft_plan *plan, const weft_cuda_executor *executor)
{
    weft_error_text why = {0};
    weft_status status = weft_cuda_executor_outcome(executor, weft_cuda_of(plan->group)->device->uploads,
                                                    NULL, &why); /* the stream has passed: no wait */

    return status == WEFT_OK ? WEFT_OK : weft_cuda_lost(plan->group, status, why.text);
}

/* A plan has one word for all of its programs; and one more where it has another plan that stages, or one of
 * its product alone. */
static weft_status outcome_of_all(weft_plan *plan)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_status status = p->bound_count > 0 ? outcome_of(plan, &p->bound[0].executor) : WEFT_OK;

    if (status == WEFT_OK && p->product)
        status = outcome_of_all(p->product);
    return status == WEFT_OK && plan->staged ? outcome_of_all(plan->staged) : status;
}

weft_status weft_cuda_plan_wait(weft_plan *plan, void *stream)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_status status;

    weft_cuda_push(g);
    status = weft_cuda_pass(plan->group, weft_cuda_stream(g, stream));
    if (status == WEFT_OK)
        status = outcome_of_all(plan);
    weft_cuda_pop(g);
    return status;
}

/* Whether it may have run since this was last asked. */
static bool take_issued(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool issued = p->issued || plan->captured;

    p->issued = false;
    if (p->product && take_issued(p->product))
        issued = true;
    return (plan->staged && take_issued(plan->staged)) || issued;
}

weft_status weft_cuda_settle(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = weft_cuda_pass(group, weft_cuda_stream(g, g->issue_stream));
    for (weft_plan *plan = group->session ? group->session->cached : NULL; plan && status == WEFT_OK;
         plan = plan->next)
        if (take_issued(plan))
            status = outcome_of_all(plan);
    if (status == WEFT_OK)
        status = weft_cuda_moe_settle(group);
    weft_cuda_pop(g);
    return status;
}
