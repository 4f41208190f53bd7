/* Operands of collectives that go through symmetric memory of the plan. See weft_cuda_stage in plan.h. */
#include "run/cuda/plan.h"

#include "run/given.h"

bool weft_cuda_is_staged(const weft_plan *plan, int role, const weft_operands *operands)
{
    int operand = plan->operand_of_role[role];
    weft_given given, recv;
    size_t bytes;

    if (operand < 0 || plan->part.problem.op < WEFT_OP_ALL_REDUCE)
        return false;
    given = weft_given_of(plan, operand, operands);
    bytes = weft_given_span(plan, operand, &given);
    recv = weft_given_of(plan, plan->operand_of_role[WEFT_ROLE_RECV], operands);
    if (plan->part.problem.op == WEFT_OP_ALL_TO_ALL && plan->part.problem.schedule == WEFT_SCHEDULE_PACKETS &&
        given.data == recv.data)
        return false; /* a thread has sent what it overwrites */
    return weft_given_must_move(plan, operand, &given, operands,
                                weft_cuda_contains(plan->group, given.data, bytes));
}

weft_status weft_cuda_staging_make(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_operands none = {.size = sizeof(none)};
    size_t at = 0;
    void *memory = NULL;
    weft_status status;

    for (int role = WEFT_ROLE_SEND; role <= WEFT_ROLE_RECV; role++) {
        int operand = plan->operand_of_role[role];
        weft_given given = weft_given_of(plan, operand, &none); /* collectives: as large on every rank */

        p->staging_at[role] = at;
        at += (weft_given_span(plan, operand, &given) + 255) / 256 * 256;
    }
    status = weft_cuda_alloc(plan->group, at, 256, &memory);
    if (status == WEFT_OK)
        p->staging = memory;
    return status;
}

void weft_cuda_stage_bind(const weft_plan *plan, const weft_operands *operands, weft_cuda_bound *bound)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);

    bound->in = bound->out = (weft_cuda_stage){0};
    for (int role = WEFT_ROLE_SEND; role <= WEFT_ROLE_RECV && p->staging; role++) {
        int operand = plan->operand_of_role[role];
        char *staged = p->staging + p->staging_at[role];
        weft_given given;

        if (!weft_cuda_is_staged(plan, role, operands))
            continue;
        given = weft_given_of(plan, operand, operands);
        if (role == WEFT_ROLE_SEND)
            bound->in = (weft_cuda_stage){given.data, staged, weft_given_span(plan, operand, &given)};
        else
            bound->out = (weft_cuda_stage){staged, given.data, weft_given_span(plan, operand, &given)};
    }
}

weft_status weft_cuda_stage_run(const weft_plan *plan, const weft_cuda_stage *stage, CUstream stream)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_error_text *error = &plan->group->error;

    if (stage->bytes)
        WEFT_CUDA_TRY(cuMemcpyAsync((CUdeviceptr)(uintptr_t)stage->to, (CUdeviceptr)(uintptr_t)stage->from,
                                    stage->bytes, stream));
    return WEFT_OK;
}
