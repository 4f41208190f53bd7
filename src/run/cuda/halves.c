/* See halves.h. */
#include "run/cuda/halves.h"

#include "core/dtype.h"
#include "core/round.h"
#include "plan/user_operands.h"
#include "run/cuda/packets.h"

weft_status weft_cuda_halves_make(const weft_plan_part *part, const weft_cuda_basis *basis, bool packets,
                                  weft_plan_part *collective, weft_error_text *error)
{
    const weft_problem *p = &part->problem;
    weft_problem asked = {.size = sizeof(asked), .l = 1, .alpha = 1}, resolved, decided;
    weft_status status;

    *collective = (weft_plan_part){0};
    if (p->tuning.exchange != 3 || p->tuning.library == 2 || !weft_cuda_halves(p, part->world))
        return WEFT_OK;
    asked.op = p->op == WEFT_OP_AG_GEMM   ? WEFT_OP_ALL_GATHER
               : p->op == WEFT_OP_GEMM_RS ? WEFT_OP_REDUCE_SCATTER
                                          : WEFT_OP_ALL_REDUCE;
    asked.dtype = p->op == WEFT_OP_AG_GEMM ? p->dtype : p->wire_dtype;
    asked.count = p->op == WEFT_OP_AG_GEMM   ? p->m / part->world * p->k
                  : p->op == WEFT_OP_GEMM_RS ? p->m / part->world * p->n
                                             : p->m * p->n;
    if (p->tuning.staged) { /* only of a gemm_ar: nobody touches a D */
        asked.schedule = WEFT_SCHEDULE_TWO_SHOT;
        asked.tuning.sums_stay = 1;
    } else if (!packets) {
        asked.schedule = p->op == WEFT_OP_GEMM_RS ? WEFT_SCHEDULE_PULL : WEFT_SCHEDULE_PUSH;
    }
    status = weft_problem_resolve(&asked, part->world, &resolved, error);
    if (status != WEFT_OK)
        return status;
    decided = weft_cuda_choose(basis, &resolved);
    if (p->op == WEFT_OP_AG_GEMM && decided.schedule == WEFT_SCHEDULE_PULL)
        decided.schedule = WEFT_SCHEDULE_PUSH; /* with the same lanes, and A may lie anywhere */
    return weft_plan_make(&decided, part->world, part->rank, collective, error);
}

uint32_t weft_cuda_halves_touched(const weft_plan_part *part, const weft_plan_part *collective)
{
    weft_operand_role role = part->problem.op == WEFT_OP_AG_GEMM ? WEFT_ROLE_SEND : WEFT_ROLE_RECV;

    return weft_user_operands_touched(&collective->problem) & 1u << role
               ? 1u << weft_cuda_halves_role(&part->problem)
               : 0;
}

int weft_cuda_halves_role(const weft_problem *p)
{
    return p->op == WEFT_OP_AG_GEMM ? WEFT_ROLE_A : WEFT_ROLE_D;
}

/* A plan by packets has an operand of inboxes, or two; others may have a row of sums. */
static size_t own_bytes(const weft_plan_part *collective, uint32_t operand, weft_cuda_wire wire)
{
    const weft_operand *o = &collective->operands[operand];

    if (o->place == WEFT_PLACE_USER)
        return 0;
    return weft_schedule_is_packets(collective->problem.schedule)
               ? weft_cuda_inbox_bytes(collective, wire)
               : weft_round_up_bytes((size_t)(o->rows * o->cols) * weft_dtype_size(o->dtype), 16);
}

size_t weft_cuda_halves_bytes(const weft_plan_part *collective, weft_cuda_wire wire)
{
    size_t bytes = 0;

    for (uint32_t o = 0; o < collective->operand_count; o++)
        bytes += own_bytes(collective, o, wire);
    return bytes;
}

/* The operand that the product reads, gathered, or leaves its sums in. */
static uint32_t inner_operand(const weft_plan_part *part)
{
    for (uint32_t i = 0; i < part->task_count; i++)
        if (part->tasks[i].kind == WEFT_TASK_GEMM) {
            const weft_region *d = weft_task_regions(part, &part->tasks[i]);

            return part->problem.op == WEFT_OP_AG_GEMM ? weft_product_a(part, &part->tasks[i])->operand
                                                       : d->operand;
        }
    return 0; /* not reached: every rank multiplies where cuBLASLt does */
}

bool weft_cuda_halves_keeps(const weft_plan_part *part, uint32_t operand)
{
    return part->operands[operand].place == WEFT_PLACE_USER || operand == inner_operand(part);
}

static uint32_t outer_operand(const weft_plan_part *part)
{
    for (uint32_t o = 0; o < part->operand_count; o++)
        if (part->operands[o].place == WEFT_PLACE_USER &&
            (int)part->operands[o].role == weft_cuda_halves_role(&part->problem))
            return o;
    return 0; /* not reached: every product has them */
}

void weft_cuda_halves_places(const weft_plan_part *part, const weft_cuda_binding *binding,
                             weft_cuda_place *out)
{
    const weft_plan_part *collective = binding->collective;
    uint32_t world = (uint32_t)part->world, inner = inner_operand(part), outer = outer_operand(part);
    uint32_t send = part->problem.op == WEFT_OP_AG_GEMM ? outer : inner,
             recv = part->problem.op == WEFT_OP_AG_GEMM ? inner : outer;
    size_t at = 0;

    for (uint32_t o = 0; o < collective->operand_count; o++) {
        const weft_operand *operand = &collective->operands[o];

        for (uint32_t r = 0; r < world; r++) {
            weft_cuda_place *to = &out[o * world + r];

            if (operand->place != WEFT_PLACE_USER)
                to->base = binding->inboxes[r] + at;
            else
                to->base = binding->places[(operand->role == WEFT_ROLE_SEND ? send : recv) * world + r].base;
            to->ld = operand->cols; /* rows of shares, one behind the other */
            to->stride = 0;
            to->padded = false;
        }
        at += own_bytes(collective, o, binding->wire);
    }
}
