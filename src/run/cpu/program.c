#include "run/cpu/program.h"

#include "core/dtype.h"
#include "core/round.h"
#include "choose/choose.h"
#include "run/given.h"
#include "run/cpu/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCRATCH_MIN = 256 << 10, /* arenas start at these, so that small plans never grow them */
    SIGNALS_MIN = 1024,
    SUMS_BYTES = 64 << 10, /* a REDUCE with an epilogue sums blocks of this size */
};

/* Rows of scratch that are whole pages apart would fall into the same few sets of a cache; rows that are an
 * odd number of lines apart use all of them. Short rows stay dense, and over nodes those of staging: a dense
 * block leaves and lands in its place, another is gathered before and scattered after. */
static int64_t pad_row(int64_t elements, int64_t element_bytes)
{
    int64_t line = 64 / element_bytes, lines = weft_divide_up(elements, line);

    return lines < 16 ? elements : (lines | 1) * line;
}

/* Shapes of one operand's memory, equal on all ranks. */
static void lay_operand(const weft_plan *plan, const weft_operand *operand, weft_program_operand *lain)
{
    int64_t rows = weft_operand_rows(operand, plan->part.world, 0);
    int64_t cols = weft_operand_cols(operand, plan->part.world, 0) * weft_operand_width(operand);
    int64_t batch = operand->batch > 0 ? operand->batch : 1;

    lain->element_bytes = (int64_t)weft_dtype_size(operand->dtype);
    if (operand->packed) {
        lain->ld = cols;
        lain->stride_bytes =
            (int64_t)weft_round_up_bytes(weft_packed_bytes(plan->bind, rows, cols), WEFT_RUN_ALIGNMENT);
    } else {
        lain->ld = operand->transposed ? rows : cols;
        if (operand->place == WEFT_PLACE_PRIVATE ||
            (operand->place == WEFT_PLACE_STAGING && !plan->part.domain))
            lain->ld = pad_row(lain->ld, lain->element_bytes);
        lain->stride_bytes = (operand->transposed ? cols : rows) * lain->ld * lain->element_bytes;
    }
    lain->bytes = weft_round_up_bytes((size_t)(lain->stride_bytes * batch), WEFT_RUN_ALIGNMENT);
}

/* Where scratch operands lie: alike on all ranks. */
static void lay_out(weft_plan *plan)
{
    weft_program *program = weft_program_of(plan);
    size_t scratch = 0, private_bytes = 0;

    for (uint32_t i = 0; i < plan->part.operand_count; i++) {
        weft_program_operand *lain = &program->operands[i];

        if (plan->part.operands[i].place == WEFT_PLACE_STAGING) {
            lain->offset = scratch;
            scratch += lain->bytes;
        } else if (plan->part.operands[i].place == WEFT_PLACE_PRIVATE) {
            lain->offset = private_bytes;
            private_bytes += lain->bytes;
        }
    }
    program->scratch_bytes = scratch;
    program->workspace_offset = private_bytes;
    program->private_bytes = private_bytes + program->workspace_bytes * (size_t)program->workers;
}

/* One worker's memory: a block of accumulators (or a whole tile of them, when sums travel in another type
 * than they are kept in), then what the engine wants. */
static void size_workspace(weft_plan *plan)
{
    const weft_plan_part *part = &plan->part;
    weft_program *program = weft_program_of(plan);
    int64_t m = 0, n = 0, k = 0, width = weft_problem_is_gated(&part->problem) ? 2 : 1;
    bool packed = true;

    for (uint32_t i = 0; i < part->task_count; i++)
        if (part->tasks[i].region_count > program->regions_max)
            program->regions_max = part->tasks[i].region_count;
    program->lists_bytes = weft_round_up_bytes(
        program->regions_max * (2 * sizeof(weft_view) + sizeof(weft_region)), WEFT_RUN_ALIGNMENT);
    program->workspace_bytes = weft_round_up_bytes(program->lists_bytes, 4096);
    if (!plan->bind)
        return;
    program->sums_bytes = SUMS_BYTES;
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *regions = weft_task_regions(part, task), *a, *b;
        size_t tile;

        if (task->kind != WEFT_TASK_GEMM)
            continue;
        a = weft_product_a(part, task);
        b = weft_product_b(part, task);
        m = regions->rows > m ? regions->rows : m;
        n = b->cols * width > n ? b->cols * width : n;
        k = a->cols > k ? a->cols : k;
        packed = packed && part->operands[b->operand].packed;
        tile = (size_t)(regions->rows * b->cols * width) * 4;
        if (part->problem.wire_dtype != weft_dtype_accumulator(part->problem.dtype) &&
            tile > program->sums_bytes)
            program->sums_bytes = tile;
        if (part->problem.scales == WEFT_SCALE_BLOCK && tile > program->blocks_bytes)
            program->blocks_bytes = tile;
    }
    program->blocks_bytes = weft_round_up_bytes(program->blocks_bytes, WEFT_RUN_ALIGNMENT);
    program->sums_bytes = weft_round_up_bytes(program->sums_bytes, WEFT_RUN_ALIGNMENT);
    program->edge_bytes =
        weft_round_up_bytes((size_t)m * (size_t)plan->bind->kernel->nr * 4, WEFT_RUN_ALIGNMENT);
    program->workspace_bytes = weft_round_up_bytes(
        program->lists_bytes + program->sums_bytes + program->edge_bytes + 2 * program->blocks_bytes +
            weft_gemm_workspace_bytes(plan->bind, m, n + plan->bind->kernel->nr, k, packed),
        4096);
}

/* The checker knows no kernel: whether windows of packed panels begin where this one's panels and steps do.
 */
static weft_status check_panels(const weft_plan *plan, weft_error_text *error)
{
    const weft_plan_part *part = &plan->part;
    weft_gemm_steps steps = weft_gemm_steps_of(plan->bind);

    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];

        for (uint32_t j = 0; j < task->region_count; j++) {
            const weft_region *region = &weft_task_regions(part, task)[j];
            const weft_operand *operand = &part->operands[region->operand];
            int64_t end = region->row0 + region->rows;
            bool last = end == weft_operand_rows(operand, part->world, region->rank);

            if (operand->packed && region->rows &&
                ((j < task->destinations && region->col0 * weft_operand_width(operand) % steps.nr) ||
                 region->row0 % steps.k_step || (end % steps.k_step && !last)))
                return weft_error_set(
                    error, WEFT_ERR_UNSUPPORTED,
                    "task %u of rank %d: rows %lld..%lld from column %lld of %s cut a panel "
                    "of this CPU's: those have %d columns and k in steps of %d",
                    i, part->rank, (long long)region->row0, (long long)end, (long long)region->col0,
                    operand->name, (int)steps.nr, (int)steps.k_step);
        }
    }
    return WEFT_OK;
}

static uint32_t signals_of(const weft_plan *plan)
{
    return plan->part.signal_count > SIGNALS_MIN ? plan->part.signal_count : SIGNALS_MIN;
}

/* What the plan needs of this rank alone. */
static weft_status make_local_room(const weft_plan *plan)
{
    const weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;
    weft_status status =
        weft_executor_grow_local(x, signals_of(plan), program->private_bytes, plan->part.lane_count,
                                 (size_t)plan->part.operand_count * (size_t)x->world);

    if (status != WEFT_OK || program->workers == 1)
        return status;
    if (!x->pool)
        x->pool = weft_pool_create();
    if (!x->pool)
        return weft_error_set(&x->group->error, WEFT_ERR_MEMORY, "rank %d has no memory for %d workers",
                              x->rank, program->workers);
    if (weft_pool_reserve(x->pool, program->workers) < program->workers)
        return weft_error_set(&x->group->error, WEFT_ERR_SYSTEM, "rank %d could not start %d workers",
                              x->rank, program->workers);
    return WEFT_OK;
}

/* In which node each rank is; NULL: there is one. A plan that was given must be for the same. */
static weft_status find_domains(const weft_group *group, const weft_plan_part *given, int32_t *room,
                                const int32_t **domain, weft_error_text *error)
{
    bool same = true;

    *domain = group->spread ? room : NULL;
    for (int rank = 0; group->spread && rank < group->size; rank++)
        room[rank] = group->world->domain[group->seats[rank].world_rank];
    if (!given)
        return WEFT_OK;
    for (int rank = 0; rank < group->size && same; rank++)
        for (int other = 0; other < rank && same; other++)
            same = weft_domains_differ(given, rank, other) == (group->spread && room[rank] != room[other]);
    return same ? WEFT_OK
                : weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                 "the plan is for ranks on other nodes than those of this group");
}

/* What needs no peer: the part, made or given (and then taken over), and its layout. */
static weft_status prepare(weft_plan *plan, const weft_problem *resolved, weft_plan_part *given)
{
    weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;
    weft_error_text *error = &x->group->error;
    const weft_core *core;
    int32_t room[WEFT_RANKS_MAX];
    const int32_t *domain;
    weft_status status = find_domains(x->group, given, room, &domain, error);

    if (status != WEFT_OK)
        return status;
    if (resolved->op < WEFT_OP_ALL_REDUCE) {
        status = weft_core_current(&core, error);
        if (status != WEFT_OK)
            return status;
        plan->bind = weft_core_binding(core, resolved->dtype, false);
        /* The longest part of k decides, so that all ranks agree. Sums of blocks are made in rows. */
        program->order =
            resolved->scales == WEFT_SCALE_BLOCK
                ? 0
                : weft_gemm_order(plan->bind, resolved->m, weft_problem_part_k(resolved, x->world, 0).count,
                                  resolved->op == WEFT_OP_GEMM_AR);
    }
    if (given) {
        plan->part = *given;
        *given = (weft_plan_part){0};
        status = plan->bind ? check_panels(plan, error) : WEFT_OK;
    } else {
        status = weft_plan_make_over(resolved, domain, x->world, x->rank, &plan->part, error);
    }
    if (status != WEFT_OK)
        return status;
    program->operands = calloc(plan->part.operand_count + 1, sizeof(*program->operands));
    if (!program->operands)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              plan->part.operand_count);
    for (uint32_t i = 0; i < plan->part.operand_count; i++)
        lay_operand(plan, &plan->part.operands[i], &program->operands[i]);
    program->workers = resolved->tuning.workers > 0 ? resolved->tuning.workers : 1;
    weft_given_note(plan);
    plan->reached = weft_given_reached(plan);
    plan->told = weft_given_told(plan);
    size_workspace(plan);
    lay_out(plan);
    return make_local_room(plan);
}

/* What a rank tells the others about its part. */
typedef struct outcome {
    int32_t status;
    uint32_t touched, landed;
    uint64_t bytes;  /* of the part */
    uint64_t basis;  /* hash of what it chooses by; 0: none */
    int32_t workers; /* of its basis */
    char kernel[40]; /* whose order it would leave sums in; "" when in rows */
    char text[256];
} outcome;

/* Ranks that will choose by something else than before, or must meet for it, drop what they have kept: what
 * some of them have dropped already would not be made again as the others have it. */
static void agree(weft_executor *x, uint64_t basis)
{
    if (x->agreed && x->agreed != basis)
        x->session->failures++;
    x->agreed = basis;
    x->agreed_failures = x->session->failures;
}

/* Every rank learns whether all parts were made, how large they are, what is touched anywhere, whether sums
 * may be handed on in the order of a kernel (only where all ranks have the same), and whether all choose by
 * the same. */
static weft_status compare_outcomes(weft_plan *plan, weft_status mine)
{
    weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;
    weft_group *group = plan->group;
    outcome out = {.status = (int32_t)mine,
                   .touched = plan->touched,
                   .landed = plan->landed,
                   .bytes = weft_program_bytes(plan)};
    weft_status status;
    bool alike;

    if (x->basis) {
        out.basis = weft_basis_hash(x->basis);
        out.workers = x->basis->workers;
    }
    if (mine != WEFT_OK)
        memcpy(out.text, group->error.text, sizeof(out.text) - 1);
    if (program->order)
        snprintf(out.kernel, sizeof(out.kernel), "%s", plan->bind->kernel->name);
    status = weft_group_exchange(group, WEFT_SYNC_AGREE, &out, sizeof(out));
    alike = status == WEFT_OK;
    for (int rank = 0, last = alike ? group->size : 0; rank < last; rank++) {
        const outcome *theirs = weft_group_board(group, rank);

        plan->touched |= theirs->touched;
        plan->landed |= theirs->landed;
        plan->bytes = theirs->bytes > plan->bytes ? theirs->bytes : plan->bytes;
        if (strcmp(theirs->kernel, out.kernel) != 0)
            program->order = 0;
        alike = alike && theirs->basis == out.basis;
        if (theirs->status != WEFT_OK && status == WEFT_OK)
            status = weft_error_set(&group->error, (weft_status)theirs->status, "%.255s", theirs->text);
    }
    agree(x, alike ? out.basis : 0);
    if (x->agreed)
        x->basis->workers = ((const outcome *)weft_group_board(group, 0))->workers;
    return status;
}

/* Looks anew for what this rank would choose by. */
static weft_status find_basis(weft_executor *x)
{
    if (x->basis)
        weft_basis_drop(x->basis);
    else
        x->basis = calloc(1, sizeof(*x->basis));
    if (!x->basis)
        return weft_group_poison(x->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", x->rank);
    weft_basis_find(x->group, x->basis);
    return WEFT_OK;
}

/* Rank 0 decides what the problem left open, for all, and tells what it has simulated for that: where more
 * ranks than cores simulated too, all of them would wait for the last. */
static weft_status resolve(weft_executor *x, const weft_problem *problem, weft_problem *resolved)
{
    weft_session *s = x->session;
    struct {
        weft_problem problem;
        weft_chosen_few few;
        int32_t status;
        char text[256];
    } decision;
    weft_error_text error = {0};
    weft_status status;

    memset(&decision, 0, sizeof(decision));
    if (s->rank == 0)
        decision.status = (int32_t)weft_choose_and_tell(x->basis, problem, s->world, &decision.problem,
                                                        &decision.few, NULL, &error);
    if (decision.status != WEFT_OK)
        memcpy(decision.text, error.text, sizeof(decision.text) - 1);
    status = weft_group_broadcast(s->group, 0, &decision, sizeof(decision));
    if (status != WEFT_OK)
        return status;
    if (decision.status != WEFT_OK)
        return weft_error_set(&s->group->error, (weft_status)decision.status, "%s", decision.text);
    weft_choose_learn_few(&decision.few);
    *resolved = decision.problem;
    return WEFT_OK;
}

static weft_status new_program(weft_plan *plan)
{
    weft_program *program = calloc(1, sizeof(*program));

    plan->lowered = program;
    if (!program)
        return weft_group_poison(plan->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan",
                                 plan->group->rank);
    return weft_executor_of(plan->group, &program->executor);
}

static size_t scratch_of(const weft_program *program)
{
    return program->scratch_bytes > SCRATCH_MIN ? program->scratch_bytes : SCRATCH_MIN;
}

/* The part, compared with the others', and memory for it. */
static weft_status finish(weft_plan *plan, const weft_problem *resolved, weft_plan_part *given)
{
    weft_program *program = weft_program_of(plan);
    weft_status status = compare_outcomes(plan, prepare(plan, resolved, given));

    return status == WEFT_OK ? weft_executor_grow(program->executor, scratch_of(program), signals_of(plan))
                             : status;
}

weft_status weft_cpu_plan_create(weft_plan *plan)
{
    weft_problem resolved;
    weft_status status = new_program(plan);
    weft_executor *x;

    if (status != WEFT_OK)
        return status;
    x = weft_program_of(plan)->executor;
    status = find_basis(x);
    if (status == WEFT_OK)
        status = resolve(x, &plan->asked, &resolved);
    /* What was found anew is compared after a refusal too, so that what is kept can stay. */
    return status == WEFT_OK ? finish(plan, &resolved, NULL) : compare_outcomes(plan, status);
}

/* What of a plan the ranks compare when they meet follows from the problem where no extent is 0. */
static bool is_whole(const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE ? p->m > 0 && p->n > 0 && p->k > 0 && p->l > 0 : p->count > 0;
}

bool weft_cpu_plan_alone(weft_plan *plan, weft_status *status)
{
    weft_executor *x = plan->group->device;
    weft_problem resolved;
    weft_program *program;

    if (!x || !x->agreed || x->agreed_failures != x->session->failures || !is_whole(&plan->asked) ||
        !weft_basis_holds(x->basis) ||
        weft_choose_cpu(x->basis, &plan->asked, x->world, &resolved, NULL, &x->group->error) != WEFT_OK)
        return false; /* also what all ranks refuse: they say so together */
    *status = new_program(plan);
    if (*status == WEFT_OK)
        *status = prepare(plan, &resolved, NULL);
    if (*status != WEFT_OK)
        return false;
    program = weft_program_of(plan);
    plan->touched |= weft_plan_touched(&resolved, plan->part.domain, x->world);
    if (plan->part.domain) /* results may come by message */
        plan->landed |= 1u << (resolved.op < WEFT_OP_ALL_REDUCE ? WEFT_ROLE_D : WEFT_ROLE_RECV);
    plan->bytes = weft_program_bytes(plan);
    plan->alone = true;
    return scratch_of(program) <= x->scratch_bytes && signals_of(plan) <= x->signal_count;
}

weft_status weft_cpu_plan_load(weft_plan *plan, weft_plan_part *part)
{
    weft_status status = new_program(plan);

    return status == WEFT_OK ? finish(plan, &plan->asked, part) : status;
}

void weft_cpu_plan_destroy(weft_plan *plan)
{
    weft_program *program = weft_program_of(plan);

    if (program)
        free(program->operands);
    free(program);
}
