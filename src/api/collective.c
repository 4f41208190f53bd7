/* Collectives: the doors of weft.h. */
#include "core/dtype.h"
#include "run/program.h"

/* Cheap enough for every call: what small messages go through. The plan checks the rest. */
static bool acceptable(const weft_problem *p, int world, const weft_backend *backend)
{
    bool reduces = p->op == WEFT_OP_ALL_REDUCE || p->op == WEFT_OP_REDUCE_SCATTER;

    return p->count >= 0 && weft_dtype_size(p->dtype) != 0 && p->root >= 0 && p->root < world &&
           (unsigned)p->reduction <= WEFT_AVERAGE && (!reduces || backend->reduces(p->dtype, p->reduction));
}

static weft_status reject(weft_group *group, const char *call, const weft_problem *p, const char *why)
{
    weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s of %lld elements of %s: %s", call,
                   (long long)p->count, weft_dtype_name(p->dtype), why);
    return weft_session_reject(group, p, WEFT_ERR_ARGUMENT);
}

static weft_status run(weft_group *group, const char *call, const weft_problem *p, const void *send,
                       void *recv)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    const weft_backend *backend;
    weft_session *session;
    weft_plan *plan;
    weft_status status;

    if (!group)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: group is NULL", call);
    status = weft_session_of(group, &session);
    if (status != WEFT_OK)
        return status;
    backend = weft_backend_of(group);
    if (!acceptable(p, group->size, backend)) {
        status = weft_group_check(group);
        return status != WEFT_OK
                   ? status
                   : reject(
                         group, call, p,
                         "count must not be negative, root a rank, bytes are not reduced, and only floats "
                         "have an average (on GPUs float32, float16, bfloat16, int32 and int64 are reduced, "
                         "not averaged)");
    }
    if (backend->small_fits && backend->small_fits(group, p)) {
        if (p->count && ((!send && (p->op != WEFT_OP_BROADCAST || group->rank == p->root)) || !recv))
            return reject(group, call, p, "a buffer is NULL");
        return backend->small_run(group, p, send, recv);
    }
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    status = weft_program_cached(session, p, &plan);
    return status == WEFT_OK ? backend->issue(plan, &operands) : status;
}

static weft_problem problem_of(weft_op op, int64_t count, weft_dtype dtype, weft_reduction reduction,
                               int root)
{
    weft_problem p;

    weft_problem_init(&p, op);
    p.count = count;
    p.dtype = dtype;
    p.reduction = reduction;
    p.root = root;
    return p;
}

weft_status weft_all_reduce(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype,
                            weft_reduction reduction)
{
    weft_problem p = problem_of(WEFT_OP_ALL_REDUCE, count, dtype, reduction, 0);

    return run(group, "weft_all_reduce", &p, send, recv);
}

weft_status weft_all_gather(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype)
{
    weft_problem p = problem_of(WEFT_OP_ALL_GATHER, count, dtype, WEFT_SUM, 0);

    return run(group, "weft_all_gather", &p, send, recv);
}

weft_status weft_reduce_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                weft_dtype dtype, weft_reduction reduction)
{
    weft_problem p = problem_of(WEFT_OP_REDUCE_SCATTER, count, dtype, reduction, 0);

    return run(group, "weft_reduce_scatter", &p, send, recv);
}

weft_status weft_all_to_all(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype)
{
    weft_problem p = problem_of(WEFT_OP_ALL_TO_ALL, count, dtype, WEFT_SUM, 0);

    return run(group, "weft_all_to_all", &p, send, recv);
}

weft_status weft_broadcast(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int root)
{
    weft_problem p = problem_of(WEFT_OP_BROADCAST, count, dtype, WEFT_SUM, root);

    return run(group, "weft_broadcast", &p, buffer, buffer);
}
