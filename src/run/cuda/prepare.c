/* What of a plan on a GPU follows from its problem, or from a part that is given, alone. See plan.h. */
#include "run/cuda/plan.h"

#include "core/dtype.h"
#include "core/round.h"
#include "choose/cuda/choose.h"
#include "run/cuda/collective.h"
#include "run/cuda/done.h"
#include "run/cuda/exchanged.h"
#include "run/cuda/halves.h"
#include "run/cuda/lower.h"
#include "run/given.h"

#include <stdlib.h>

enum { CONTROL_BYTES = 4096 };

/* Scratch operands, signals and control block, at the same offsets on all ranks. Returns the block's size. */
size_t weft_cuda_plan_lay_out(weft_plan *plan)
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

/* Of a kernel without a product: a collective's, or the one beside a product that is a launch of its own.
 * Packets and marked words have no DONE. */
static bool lanes_say_done(const weft_plan *plan)
{
    const weft_plan_part *part = &plan->part, *collective = &weft_cuda_plan_of(plan)->collective;

    if (weft_schedule_is_packets(collective->world ? collective->problem.schedule : part->problem.schedule) ||
        (!collective->world && weft_cuda_is_exchanged(part)))
        return false;
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

weft_cuda_basis weft_cuda_basis_of(const weft_group *group)
{
    const weft_cuda_group *g = weft_cuda_of(group);

    return (weft_cuda_basis){.world = group->size,
                             .crews = g->crews,
                             .hopper = g->device->hopper,
                             .library = g->library,
                             .whole = g->whole,
                             .adds = g->adds};
}

/* The part of a problem, as this backend chooses. */
static weft_status make_part(weft_plan *plan, const weft_problem *problem)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_error_text *error = &plan->group->error;
    int world = plan->group->size;
    weft_problem resolved, decided;
    weft_cuda_basis basis = weft_cuda_basis_of(plan->group);
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

weft_status weft_cuda_plan_prepare(weft_plan *plan, const weft_problem *problem, weft_plan_part *given)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_error_text *error = &plan->group->error;
    weft_cuda_basis basis = weft_cuda_basis_of(plan->group);
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
    return !plan->loaded && lanes_say_done(plan) ? count_done(plan) : WEFT_OK;
}

void weft_cuda_plan_note_reached(weft_plan *plan)
{
    const weft_problem *p = &plan->part.problem;
    weft_cuda_basis basis = weft_cuda_basis_of(plan->group);

    /* the switch knows no operand beyond symmetric memory: those are copied as a whole */
    if (!plan->loaded && weft_problem_can_be_staged(p) && p->schedule != WEFT_SCHEDULE_MULTIMEM &&
        weft_cuda_chunks_pay(&basis, p))
        plan->reached = plan->touched;
}
