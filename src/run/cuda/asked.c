/* See asked.h. */
#include "run/cuda/asked.h"

#include "core/dtype.h"

static weft_cuda_matrix matrix_of(const weft_plan_part *part, const weft_cuda_place *places,
                                  const weft_region *region)
{
    const weft_operand *o = &part->operands[region->operand];
    const weft_cuda_place *place = &places[region->operand * (uint32_t)part->world + (uint32_t)region->rank];
    int64_t elements =
        o->transposed ? region->col0 * place->ld + region->row0 : region->row0 * place->ld + region->col0;

    return (weft_cuda_matrix){(char *)place->base + elements * (int64_t)weft_dtype_size(o->dtype), place->ld,
                              o->dtype, o->transposed};
}

/* All of a rank's own operand. */
static weft_cuda_matrix matrix_in_role(const weft_plan_part *part, const weft_cuda_place *places,
                                       weft_operand_role role)
{
    for (uint32_t i = 0; i < part->operand_count; i++)
        if (part->operands[i].place == WEFT_PLACE_USER && part->operands[i].role == role)
            return matrix_of(part, places, &(weft_region){.operand = i, .rank = part->rank});
    return (weft_cuda_matrix){0};
}

static weft_cuda_asked asked_alone(const weft_plan_part *part, const weft_cuda_place *places)
{
    const weft_problem *p = &part->problem;
    weft_cuda_asked asked = {.m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a = matrix_in_role(part, places, WEFT_ROLE_A),
                             .b = matrix_in_role(part, places, WEFT_ROLE_B),
                             .d = matrix_in_role(part, places, WEFT_ROLE_D),
                             .alpha = p->alpha,
                             .beta = p->beta,
                             .act = p->act,
                             .fast = p->fp8_fast};

    if (p->beta != 0)
        asked.c = matrix_in_role(part, places, WEFT_ROLE_C);
    if (p->bias)
        asked.bias = matrix_in_role(part, places, WEFT_ROLE_BIAS);
    return asked;
}

static weft_cuda_asked asked_of_task(const weft_plan_part *part, const weft_cuda_place *places,
                                     const weft_task *task)
{
    const weft_problem *p = &part->problem;
    const weft_region *r = weft_task_regions(part, task);
    weft_task_roles roles = weft_task_roles_of(task);
    bool finished = task->flags & WEFT_TASK_EPILOGUE;
    weft_cuda_asked asked = {.m = r[0].rows,
                             .n = r[0].cols,
                             .k = r[roles.a].cols,
                             .d = matrix_of(part, places, &r[0]),
                             .a = matrix_of(part, places, &r[roles.a]),
                             .b = matrix_of(part, places, &r[roles.b]),
                             .alpha = finished ? p->alpha : 1,
                             .beta = task->flags & WEFT_TASK_HAS_C ? p->beta : 0,
                             .act = finished ? p->act : WEFT_ACT_NONE,
                             .fast = p->fp8_fast};

    if (roles.c >= 0)
        asked.c = matrix_of(part, places, &r[roles.c]);
    if (roles.bias >= 0)
        asked.bias = matrix_of(part, places, &r[roles.bias]);
    return asked;
}

weft_cuda_asked weft_cuda_asked_of(const weft_plan_part *part, const weft_cuda_place *places,
                                   const weft_task *task)
{
    return part->world == 1 ? asked_alone(part, places) : asked_of_task(part, places, task);
}

bool weft_cuda_matrix_on_vectors(const weft_cuda_matrix *x)
{
    return (uintptr_t)x->at % 16 == 0 && x->ld * (int64_t)weft_dtype_size(x->dtype) % 16 == 0;
}
