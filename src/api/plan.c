/* Problems, plans and runs: the entry points of weft.h. */
#include "api/hold.h"
#include "api/least.h"
#include "api/no_group.h"
#include "core/sized.h"
#include "plan/check.h"
#include "plan/read.h"
#include "run/program.h"
#include "run/reach.h"

#include <stdlib.h>
#include <string.h>

static void set_defaults(weft_problem *problem, weft_op op)
{
    memset(problem, 0, sizeof(*problem));
    problem->size = sizeof(*problem);
    problem->op = op;
    problem->l = 1;
    problem->d_dtype = problem->wire_dtype = WEFT_DTYPE_DEFAULT;
    problem->b_form = op < WEFT_OP_ALL_REDUCE ? WEFT_B_PACK_IN_RUN : WEFT_B_PLAIN;
    problem->alpha = 1;
}

void weft_problem_init_sized(weft_problem *problem, size_t size, weft_op op)
{
    weft_problem defaults;

    if (problem && size == sizeof(defaults)) { /* in place: every call of a collective comes here */
        set_defaults(problem, op);
        return;
    }
    set_defaults(&defaults, op);
    weft_sized_init(problem, size, &defaults, sizeof(defaults), WEFT_PROBLEM_LEAST);
}

weft_status weft_plan_create(weft_group *group, const weft_problem *problem, weft_plan **plan)
{
    weft_session *session;
    weft_problem asked;
    weft_status status;

    if (!group)
        return weft_no_group("weft_plan_create");
    group->entry = WEFT_ENTRY_PLAN_CREATE;
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!plan || !weft_sized_read(&asked, sizeof(asked), problem, WEFT_PROBLEM_LEAST)) {
        weft_error_set(
            &group->error, WEFT_ERR_ARGUMENT, "weft_plan_create: %s",
            !problem ? "problem is NULL"
            : !plan  ? "plan is NULL"
                     : "problem->size is not that of a weft_problem this library knows; weft_problem_init "
                       "sets it");
        return weft_session_reject(group, NULL, WEFT_ERR_ARGUMENT);
    }
    status = weft_session_of(group, &session);
    if (status == WEFT_OK)
        status = weft_program_create(session, &asked, plan);
    if (status == WEFT_OK)
        weft_hold(group);
    return status;
}

/* What only this rank can say about a file: whether it is a plan, for so many ranks, and right. */
static weft_status read_plan(weft_group *group, const char *path, weft_plan_part **parts)
{
    weft_check_report *report;
    weft_status status;
    int world = 0;

    status = weft_plan_read_file(path, parts, &world, &group->error);
    if (status != WEFT_OK)
        return status;
    report = malloc(sizeof(*report));
    if (world != group->size)
        status = weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                                "%s is a plan of %d ranks; the group has %d", path, world, group->size);
    else if ((*parts)->problem.scales == WEFT_SCALE_BLOCK)
        status = weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                                "%s has scales of blocks, which are for plans that weft makes", path);
    else if (!report)
        status = weft_error_set(&group->error, WEFT_ERR_MEMORY, "no memory to check %s", path);
    else
        status = weft_plan_check(*parts, world, report, &group->error);
    if (status == WEFT_OK && report->count)
        status = weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s is not right: %s", path,
                                report->findings[0].text);
    free(report);
    if (status != WEFT_OK) {
        weft_plan_parts_free(*parts, world);
        *parts = NULL;
    }
    return status;
}

weft_status weft_plan_load(weft_group *group, const char *path, weft_plan **plan)
{
    weft_plan_part *parts = NULL;
    weft_session *session;
    weft_status status;

    if (!group)
        return weft_no_group("weft_plan_load");
    group->entry = WEFT_ENTRY_PLAN_LOAD;
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!path || !plan)
        status = weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "weft_plan_load: %s is NULL",
                                path ? "plan" : "path");
    else
        status = read_plan(group, path, &parts);
    if (status != WEFT_OK)
        return weft_session_reject(group, NULL, status);
    status = weft_session_of(group, &session);
    if (status == WEFT_OK)
        status = weft_program_load(session, &parts[group->rank], plan);
    weft_plan_parts_free(parts, group->size);
    return status;
}

/* The entry of both kinds of run: NULL operands are none, and a wrong size is rejected on every rank. */
static weft_status admit(weft_plan *plan, const weft_operands *given, weft_entry entry,
                         weft_operands *operands)
{
    const char *call = weft_entry_name(entry);

    if (!plan)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: plan is NULL", call);
    plan->group->entry = entry;
    *operands = (weft_operands){.size = sizeof(*operands)};
    if (!given || weft_sized_read(operands, sizeof(*operands), given, WEFT_OPERANDS_LEAST))
        return WEFT_OK;
    weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                   "%s: operands->size is %zu, which is not that of weft_operands, %zu, nor zeros beyond it",
                   call, given->size, sizeof(*operands));
    return weft_session_reject(plan->group, &plan->part.problem, WEFT_ERR_ARGUMENT);
}

weft_status weft_run(weft_plan *plan, const weft_operands *operands)
{
    weft_operands given;
    weft_status status = admit(plan, operands, WEFT_ENTRY_RUN, &given);

    if (status == WEFT_OK)
        status = weft_reach_fit(plan, &given, &plan);
    return status == WEFT_OK ? weft_backend_of(plan->group)->run(plan, &given) : status;
}

weft_status weft_run_on(weft_plan *plan, const weft_operands *operands, void *stream)
{
    weft_operands given;
    weft_status status = admit(plan, operands, WEFT_ENTRY_RUN_ON, &given);

    if (status == WEFT_OK)
        status = weft_reach_fit(plan, &given, &plan);
    return status == WEFT_OK ? weft_backend_of(plan->group)->run_on(plan, &given, stream) : status;
}

weft_status weft_run_wait(weft_plan *plan, void *stream)
{
    if (!plan)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "weft_run_wait: plan is NULL");
    return weft_backend_of(plan->group)->wait(plan, stream);
}

void weft_plan_destroy(weft_plan *plan)
{
    weft_group *group = plan ? plan->group : NULL;

    weft_program_destroy(plan);
    if (group)
        weft_hold_drop(group);
}

const weft_problem *weft_plan_problem(const weft_plan *plan)
{
    return plan ? &plan->part.problem : NULL;
}
