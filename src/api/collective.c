/* Collectives: the entry points of weft.h. */
#include "api/no_group.h"
#include "core/dtype.h"
#include "run/program.h"
#include "run/reach.h"

static bool reduces(const weft_problem *p)
{
    return p->op == WEFT_OP_ALL_REDUCE || p->op == WEFT_OP_REDUCE_SCATTER;
}

/* Cheap enough for every call: what small messages go through. The plan checks the rest. */
static bool acceptable(const weft_problem *p, int world, const weft_backend *backend)
{
    return p->count >= 0 && weft_dtype_size(p->dtype) != 0 && p->root >= 0 && p->root < world &&
           (unsigned)p->reduction <= WEFT_AVERAGE &&
           (!reduces(p) || backend->reduces(p->dtype, p->reduction));
}

static weft_status reject(weft_group *group, const char *call, const weft_problem *p, const char *why)
{
    weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s of %lld elements of %s: %s", call,
                   (long long)p->count, weft_dtype_name(p->dtype), why);
    return weft_program_reject(group, p, WEFT_ERR_ARGUMENT);
}

/* What is not acceptable in it. */
static const char *fault_of(const weft_problem *p, int world)
{
    if (p->count < 0)
        return "count must not be negative";
    if (weft_dtype_size(p->dtype) == 0)
        return "there is no such type";
    if (p->root < 0 || p->root >= world)
        return "root must be a rank";
    if ((unsigned)p->reduction > WEFT_AVERAGE)
        return "there is no such reduction";
    return "bytes and fp8 are not reduced, and only floats have an average";
}

/* Apart, so that small messages do not clear what they do not need. */
static weft_status __attribute__((noinline))
issue(const weft_backend *backend, weft_plan *plan, const void *send, void *recv)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    weft_status status = weft_reach_fit(plan, &operands, &plan);

    return status == WEFT_OK ? backend->issue(plan, &operands) : status;
}

/* Whether there is a way without a plan, which run_small then goes. */
static bool take_small(weft_group *group, const weft_problem *p)
{
    const weft_backend *backend = weft_backend_of(group);

    return backend->small_take && backend->small_take(group, p);
}

static weft_status run_small(weft_group *group, const void *send, void *recv)
{
    const weft_small_call *small = &group->session->small;

    if (small->bytes && (!send || !recv))
        return reject(group, weft_entry_name(group->entry), &small->problem, "a buffer is NULL");
    if (small->bytes && ((uintptr_t)send | (uintptr_t)recv) & (small->element_bytes - 1))
        return reject(group, weft_entry_name(group->entry), &small->problem,
                      "a buffer is not aligned for its type");
    return weft_backend_of(group)->small_run(group, send, recv);
}

static weft_status run(weft_group *group, weft_entry entry, const weft_problem *p, const void *send,
                       void *recv)
{
    const char *call = weft_entry_name(entry);
    const weft_backend *backend;
    weft_session *session;
    weft_plan *plan;
    weft_status status;

    if (!group)
        return weft_no_group(call);
    group->entry = entry;
    status = weft_session_of(group, &session);
    if (status != WEFT_OK)
        return status;
    backend = weft_backend_of(group);
    if (!acceptable(p, group->size, backend)) {
        status = weft_group_check(group);
        return status != WEFT_OK ? status : reject(group, call, p, fault_of(p, group->size));
    }
    if (take_small(group, p))
        return run_small(group, send, recv);
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    status = weft_program_cached(session, p, &plan);
    return status == WEFT_OK ? issue(backend, plan, send, recv) : status;
}

/* Problems of collectives are made here, and differ in nothing but these. */
static bool asks(const weft_problem *p, weft_op op, int64_t count, weft_dtype dtype, weft_reduction reduction,
                 int root)
{
    return p->op == op && p->count == count && p->dtype == dtype && p->reduction == reduction &&
           p->root == root;
}

/* The plan of the call before, if this is the same once more. */
static weft_plan *repeated(const weft_group *group, weft_op op, int64_t count, weft_dtype dtype,
                           weft_reduction reduction, int root)
{
    const weft_session *session = group->session;
    weft_plan *last = weft_session_age(session) == session->cached_age ? session->cached : NULL;

    return last && asks(&last->asked, op, count, dtype, reduction, root) ? last : NULL;
}

static weft_status collective(weft_group *group, weft_entry entry, const void *send, void *recv, weft_op op,
                              int64_t count, weft_dtype dtype, weft_reduction reduction, int root)
{
    const weft_session *session = group ? group->session : NULL;
    weft_problem p;

    if (session) { /* the same as before needs no second look at what was asked */
        weft_plan *last;

        group->entry = entry;
        if (asks(&session->small.problem, op, count, dtype, reduction, root) &&
            session->small.reach == session->reach[op])
            return run_small(group, send, recv);
        last = repeated(group, op, count, dtype, reduction, root);
        if (last && session->reach[op] == WEFT_REACH_BEYOND && take_small(group, &last->asked))
            return run_small(group, send, recv);
        if (last)
            return issue(weft_backend_of(group), last, send, recv);
    }
    weft_problem_init(&p, op);
    p.count = count;
    p.dtype = dtype;
    p.reduction = reduction;
    p.root = root;
    return run(group, entry, &p, send, recv);
}

weft_status weft_all_reduce(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype,
                            weft_reduction reduction)
{
    return collective(group, WEFT_ENTRY_ALL_REDUCE, send, recv, WEFT_OP_ALL_REDUCE, count, dtype, reduction,
                      0);
}

weft_status weft_all_gather(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype)
{
    return collective(group, WEFT_ENTRY_ALL_GATHER, send, recv, WEFT_OP_ALL_GATHER, count, dtype, WEFT_SUM,
                      0);
}

weft_status weft_reduce_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                weft_dtype dtype, weft_reduction reduction)
{
    return collective(group, WEFT_ENTRY_REDUCE_SCATTER, send, recv, WEFT_OP_REDUCE_SCATTER, count, dtype,
                      reduction, 0);
}

weft_status weft_all_to_all(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype)
{
    return collective(group, WEFT_ENTRY_ALL_TO_ALL, send, recv, WEFT_OP_ALL_TO_ALL, count, dtype, WEFT_SUM,
                      0);
}

weft_status weft_broadcast(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int root)
{
    return collective(group, WEFT_ENTRY_BROADCAST, buffer, buffer, WEFT_OP_BROADCAST, count, dtype, WEFT_SUM,
                      root);
}
