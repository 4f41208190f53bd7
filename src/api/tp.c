/* Tensor-parallel products in one call: the entry points of weft.h. */
#include "api/least.h"
#include "api/no_group.h"
#include "run/program.h"
#include "run/reach.h"

static bool is_away(const weft_group *group, const float *value)
{
    const weft_backend *backend = weft_backend_of(group);

    return value && backend->device_reads && backend->device_reads(group, value);
}

static weft_status multiply(weft_group *group, weft_op op, weft_entry entry, const weft_problem *problem,
                            const weft_operands *operands)
{
    weft_session *session;
    weft_operands given;
    weft_problem asked;
    float alpha = 2, beta = 1; /* where nobody here knows them */
    bool away_alpha, away_beta;
    weft_plan *plan;
    weft_status status;

    if (!group)
        return weft_no_group(weft_entry_name(entry));
    group->entry = entry;
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!weft_sized_read(&asked, sizeof(asked), problem, WEFT_PROBLEM_LEAST) ||
        !weft_sized_read(&given, sizeof(given), operands, WEFT_OPERANDS_LEAST)) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                       "%s: problem and operands must be given, with their size fields set",
                       weft_entry_name(entry));
        return weft_session_reject(group, NULL, WEFT_ERR_ARGUMENT);
    }
    status = weft_session_of(group, &session);
    if (status != WEFT_OK)
        return status;
    asked.op = op;
    /* values of the run: the plan knows only whether they do anything */
    away_alpha = is_away(group, given.alpha);
    away_beta = is_away(group, given.beta);
    if (!away_alpha)
        alpha = given.alpha ? *given.alpha : asked.alpha;
    if (!away_beta)
        beta = given.beta ? *given.beta : asked.beta;
    asked.alpha = alpha == 1 ? 1 : 2;
    asked.beta = beta != 0;
    if (!away_alpha)
        given.alpha = alpha == asked.alpha ? NULL : &alpha;
    if (!away_beta)
        given.beta = beta == asked.beta ? NULL : &beta;
    status = weft_program_cached(session, &asked, &plan);
    if (status == WEFT_OK)
        status = weft_reach_fit(plan, &given, &plan);
    return status == WEFT_OK ? weft_backend_of(group)->issue(plan, &given) : status;
}

weft_status weft_ag_gemm(weft_group *group, const weft_problem *problem, const weft_operands *operands)
{
    return multiply(group, WEFT_OP_AG_GEMM, WEFT_ENTRY_AG_GEMM, problem, operands);
}

weft_status weft_gemm_rs(weft_group *group, const weft_problem *problem, const weft_operands *operands)
{
    return multiply(group, WEFT_OP_GEMM_RS, WEFT_ENTRY_GEMM_RS, problem, operands);
}

weft_status weft_gemm_ar(weft_group *group, const weft_problem *problem, const weft_operands *operands)
{
    return multiply(group, WEFT_OP_GEMM_AR, WEFT_ENTRY_GEMM_AR, problem, operands);
}

weft_status weft_gemm_as(weft_group *group, const weft_problem *problem, const weft_operands *operands)
{
    return multiply(group, WEFT_OP_GEMM_AS, WEFT_ENTRY_GEMM_AS, problem, operands);
}
