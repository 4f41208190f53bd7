/* Problems, plans and runs: the doors of weft.h. */
#include "run/gpu.h"
#include "run/cpu/program.h"

#include <string.h>

void weft_problem_init(weft_problem *problem, weft_op op)
{
    if (!problem)
        return;
    memset(problem, 0, sizeof(*problem));
    problem->size = sizeof(*problem);
    problem->op = op;
    problem->l = 1;
    problem->d_dtype = problem->wire_dtype = WEFT_DTYPE_DEFAULT;
    problem->alpha = 1;
    problem->b_form = op < WEFT_OP_ALL_REDUCE ? WEFT_B_PACK_IN_RUN : WEFT_B_PLAIN;
}

static weft_status no_group(const char *call)
{
    return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: group is NULL", call);
}

weft_status weft_plan_create(weft_group *group, const weft_problem *problem, weft_plan **plan)
{
    weft_executor *executor;
    weft_status status;

    if (!group)
        return no_group("weft_plan_create");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!problem || !plan || problem->size != sizeof(*problem)) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "weft_plan_create: %s",
                       !problem ? "problem is NULL"
                       : !plan  ? "plan is NULL"
                                : "problem->size is not that of weft_problem; weft_problem_init sets it");
        return weft_executor_reject(group, NULL, WEFT_ERR_ARGUMENT);
    }
    status = weft_executor_of(group, &executor);
    return status == WEFT_OK ? weft_program_create(executor, problem, plan) : status;
}

/* The door of both kinds of run: NULL operands are none, and a wrong size is rejected on every rank. */
static weft_status admit(weft_plan *plan, const weft_operands **operands, const char *call)
{
    static const weft_operands none = {.size = sizeof(none)};

    if (!plan)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: plan is NULL", call);
    if (!*operands)
        *operands = &none;
    if ((*operands)->size == sizeof(none))
        return WEFT_OK;
    weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                   "%s: operands->size is %zu; it must be sizeof(weft_operands), %zu", call,
                   (*operands)->size, sizeof(none));
    return weft_executor_reject(plan->group, &plan->part.problem, WEFT_ERR_ARGUMENT);
}

weft_status weft_run(weft_plan *plan, const weft_operands *operands)
{
    weft_status status = admit(plan, &operands, "weft_run");

    return status == WEFT_OK ? weft_program_run(plan, operands) : status;
}

weft_status weft_run_on(weft_plan *plan, const weft_operands *operands, void *stream)
{
    weft_status status = admit(plan, &operands, "weft_run_on");

    if (status != WEFT_OK)
        return status;
    if (plan->gpu)
        return plan->group->gpu->calls->run(plan, operands, stream);
    if (!stream)
        return weft_program_run(plan, operands);
    weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                   "weft_run_on: stream is %p, but the group is on the CPU, which has no streams", stream);
    return weft_executor_reject(plan->group, &plan->part.problem, WEFT_ERR_ARGUMENT);
}

weft_status weft_run_wait(weft_plan *plan, void *stream)
{
    if (!plan)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "weft_run_wait: plan is NULL");
    return plan->gpu ? plan->group->gpu->calls->wait(plan, stream) : weft_group_check(plan->group);
}

void weft_plan_destroy(weft_plan *plan)
{
    weft_program_destroy(plan);
}

const weft_problem *weft_plan_problem(const weft_plan *plan)
{
    return plan ? &plan->part.problem : NULL;
}
