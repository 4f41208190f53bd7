/* Groups: the doors of weft.h. */
#include "api/hold.h"
#include "core/env.h"
#include "group/enter.h"
#include "group/split.h"
#include "run/backend.h"

#include <stdio.h>

static weft_status no_group(const char *call)
{
    return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: group is NULL", call);
}

weft_status weft_init(weft_group **group)
{
    weft_error_text *error = weft_error_thread();

    if (!group)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_init: group is NULL; it receives the handle");
    return weft_enter_launched(group, error);
}

weft_status weft_group_threads(int size, weft_group **groups)
{
    weft_error_text *error = weft_error_thread();

    if (size < 1 || size > WEFT_RANKS_MAX)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_group_threads: size is %d; it may be 1 to %d",
                              size, WEFT_RANKS_MAX);
    if (!groups)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_group_threads: groups is NULL; it receives %d handles", size);
    return weft_enter_threads(size, groups, error);
}

weft_status weft_id_create(weft_id *id)
{
    weft_error_text *error = weft_error_thread();

    return id ? weft_enter_make_id(id, error)
              : weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_id_create: id is NULL; it receives the id");
}

static weft_status check_member(const char *call, const void *given, int rank, int size, weft_group **group)
{
    weft_error_text *error = weft_error_thread();

    if (!given || !group)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: %s is NULL", call,
                              group ? "how the ranks meet" : "group, which receives the handle,");
    if (size < 1 || size > WEFT_RANKS_MAX || rank < 0 || rank >= size)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: rank %d of %d; a group has 1 to %d ranks, counted from 0", call, rank,
                              size, WEFT_RANKS_MAX);
    return WEFT_OK;
}

weft_status weft_group_create(const weft_id *id, int rank, int size, weft_group **group)
{
    weft_status status = check_member("weft_group_create", id, rank, size, group);

    return status == WEFT_OK ? weft_enter_id(id, rank, size, group, weft_error_thread()) : status;
}

weft_status weft_group_create_from(weft_allgather_fn allgather, void *context, int rank, int size,
                                   weft_group **group)
{
    weft_status status =
        check_member("weft_group_create_from", allgather ? &allgather : NULL, rank, size, group);

    return status == WEFT_OK ? weft_enter_gathered(allgather, context, rank, size, group, weft_error_thread())
                             : status;
}

void weft_group_free(weft_group *group)
{
    if (group)
        weft_hold_end(group);
}

weft_status weft_group_abort(weft_group *group, const char *why)
{
    char text[WEFT_ERROR_TEXT_BYTES];

    if (!group)
        return no_group("weft_group_abort");
    snprintf(text, sizeof(text), "rank %d aborted the group%s%.400s", group->rank, why ? ": " : "",
             why ? why : "");
    weft_group_end(group, WEFT_ERR_ABORTED, text);
    return WEFT_OK;
}

weft_status weft_finalize(weft_group *group)
{
    if (!group)
        return no_group("weft_finalize");
    weft_group_free(group);
    return WEFT_OK;
}

weft_status weft_group_split(weft_group *parent, int colour, int key, weft_group **sub)
{
    if (!parent)
        return no_group("weft_group_split");
    if (!sub) {
        weft_error_set(&parent->error, WEFT_ERR_ARGUMENT,
                       "weft_group_split: sub is NULL; it receives the handle");
        return weft_group_reject(parent, WEFT_CALL_SPLIT);
    }
    return weft_group_divide(parent, colour, key, sub);
}

weft_status weft_group_use_gpu(weft_group *group, int device)
{
    weft_status status;

    if (!group)
        return no_group("weft_group_use_gpu");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (group->backend || group->session)
        return weft_error_set(&group->error, WEFT_ERR_STATE,
                              "weft_group_use_gpu: the group %s; it comes before plans and collectives",
                              group->backend ? "is on GPUs already" : "has been used on the CPU");
    if (group->spread)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "weft_group_use_gpu: the ranks are on several nodes, and GPUs need one");
    return weft_backend_attach(group, device);
}

weft_status weft_group_set_stream(weft_group *group, int ordered, void *stream)
{
    if (!group)
        return no_group("weft_group_set_stream");
    if (!weft_backend_of(group)->set_stream)
        return weft_error_set(&group->error, WEFT_ERR_STATE,
                              "weft_group_set_stream: the group is on the CPU, which has no streams");
    return weft_backend_of(group)->set_stream(group, ordered != 0, stream);
}

weft_status weft_group_wait(weft_group *group)
{
    return group ? weft_backend_of(group)->settle(group) : no_group("weft_group_wait");
}

int weft_rank(const weft_group *group)
{
    return group ? group->rank : -1;
}

int weft_size(const weft_group *group)
{
    return group ? group->size : 0;
}

const char *weft_error(const weft_group *group)
{
    return group ? group->error.text : weft_error_thread()->text;
}

weft_status weft_set_deadlines(weft_group *group, double enter_seconds, double progress_seconds)
{
    const double most = WEFT_SECONDS_MAX;

    if (!group)
        return no_group("weft_set_deadlines");
    if (!(enter_seconds > 0 && enter_seconds <= most && progress_seconds > 0 && progress_seconds <= most))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_set_deadlines: %g and %g seconds; both must be above 0 and at most %g",
                              enter_seconds, progress_seconds, most);
    group->enter_ns = (int64_t)(enter_seconds * 1e9);
    group->progress_ns = (int64_t)(progress_seconds * 1e9);
    return WEFT_OK;
}

weft_status weft_barrier(weft_group *group)
{
    return group ? weft_group_barrier(group) : no_group("weft_barrier");
}
