/* Groups: the entry points of weft.h. */
#include "api/hold.h"
#include "api/no_group.h"
#include "core/env.h"
#include "group/enter.h"
#include "group/split.h"
#include "run/backend.h"

#include <stdio.h>

/* For a rank that is to have no handle: `nothing` in its place, and why. */
static const weft_error_text *without_handle(const char *call, weft_group **nothing, weft_group ***group,
                                             weft_error_text *why)
{
    if (*group)
        return NULL;
    *group = nothing;
    weft_error_set(why, WEFT_ERR_ARGUMENT, "%s: group is NULL; it receives the handle", call);
    *weft_error_thread() = *why;
    return why;
}

weft_status weft_init(weft_group **group)
{
    weft_group *nothing;
    weft_error_text why;
    const weft_error_text *refusal = without_handle("weft_init", &nothing, &group, &why);

    return weft_enter_launched(refusal, group, weft_error_thread());
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

static weft_status check_member(const char *call, const void *given, int rank, int size)
{
    weft_error_text *error = weft_error_thread();

    if (!given)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: how the ranks meet is NULL", call);
    if (size < 1 || size > WEFT_RANKS_MAX || rank < 0 || rank >= size)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: rank %d of %d; a group has 1 to %d ranks, counted from 0", call, rank,
                              size, WEFT_RANKS_MAX);
    return WEFT_OK;
}

weft_status weft_group_create(const weft_id *id, int rank, int size, weft_group **group)
{
    weft_status status = check_member("weft_group_create", id, rank, size);
    const weft_error_text *refusal;
    weft_group *nothing;
    weft_error_text why;

    if (status != WEFT_OK)
        return status;
    refusal = without_handle("weft_group_create", &nothing, &group, &why);
    return weft_enter_id(id, rank, size, refusal, group, weft_error_thread());
}

weft_status weft_group_create_from(weft_allgather_fn allgather, void *context, int rank, int size,
                                   weft_group **group)
{
    const char *call = "weft_group_create_from";
    weft_status status = check_member(call, allgather ? &allgather : NULL, rank, size);
    weft_error_text why = *weft_error_thread();
    const weft_error_text *refusal = status == WEFT_OK ? NULL : &why;
    weft_group *nothing;

    /* A rank that says wrongly which it is can still be heard. */
    if (status != WEFT_OK && (!allgather || size < 1 || size > WEFT_RANKS_MAX))
        return status;
    if (!refusal)
        refusal = without_handle(call, &nothing, &group, &why);
    return weft_enter_gathered(allgather, context, rank, size, refusal, group, weft_error_thread());
}

void weft_group_free(weft_group *group)
{
    if (group)
        weft_hold_end(group);
}

/* Whether the handle is no rank's any more. */
static bool is_nobodys(const weft_group *group)
{
    return atomic_load(&group->poison->state) == 2 && group->poison->status == WEFT_ERR_STATE;
}

weft_status weft_group_abort(weft_group *group, const char *why)
{
    char text[WEFT_ERROR_TEXT_BYTES];

    if (!group)
        return weft_no_group("weft_group_abort");
    if (is_nobodys(group))
        return weft_group_check(group);
    snprintf(text, sizeof(text), "rank %d aborted the group%s%.400s", group->rank, why ? ": " : "",
             why ? why : "");
    weft_group_end(group, WEFT_ERR_ABORTED, text);
    return WEFT_OK;
}

weft_status weft_group_check_peer(weft_group *group, int rank)
{
    int others = 0, left = 0;

    if (!group)
        return weft_no_group("weft_group_check_peer");
    if (is_nobodys(group))
        return weft_group_check(group);
    if (rank < -1 || rank >= group->size)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_group_check_peer: there is no rank %d among %d", rank, group->size);
    for (int peer = 0; peer < group->size; peer++) {
        if (peer == group->rank || (rank >= 0 && peer != rank))
            continue;
        if (weft_group_dead(group, peer))
            return weft_error_set(&group->error, WEFT_ERR_PEER_DIED, "rank %d (process %d) died", peer,
                                  weft_group_pid(group, peer));
        others++;
        left += weft_group_absent(group, peer);
    }
    if (others == 0 || left < others)
        return WEFT_OK;
    if (rank >= 0)
        return weft_error_set(&group->error, WEFT_ERR_PEER_DIED, "rank %d has left the group", rank);
    return weft_error_set(&group->error, WEFT_ERR_PEER_DIED, "every other rank has left the group");
}

weft_status weft_finalize(weft_group *group)
{
    if (!group)
        return weft_no_group("weft_finalize");
    weft_group_free(group);
    return WEFT_OK;
}

weft_status weft_group_split(weft_group *parent, int colour, int key, weft_group **sub)
{
    if (!parent)
        return weft_no_group("weft_group_split");
    parent->entry = WEFT_ENTRY_GROUP_SPLIT;
    if (!sub) {
        weft_error_set(&parent->error, WEFT_ERR_ARGUMENT,
                       "weft_group_split: sub is NULL; it receives the handle");
        return weft_group_reject(parent, WEFT_SYNC_SPLIT);
    }
    return weft_group_divide(parent, colour, key, sub);
}

weft_status weft_group_use_gpu(weft_group *group, int device)
{
    weft_status status;

    if (!group)
        return weft_no_group("weft_group_use_gpu");
    group->entry = WEFT_ENTRY_GROUP_USE_GPU;
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (group->backend || group->session) {
        weft_error_set(&group->error, WEFT_ERR_STATE,
                       "weft_group_use_gpu: the group %s on %s; it comes before plans and collectives",
                       group->backend ? "is already" : "has been used", weft_backend_of(group)->where);
        return weft_group_reject(group, WEFT_SYNC_GPU);
    }
    return weft_backend_attach(group, device);
}

weft_status weft_group_set_stream(weft_group *group, int ordered, void *stream)
{
    weft_status status;

    if (!group)
        return weft_no_group("weft_group_set_stream");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!weft_backend_of(group)->set_stream)
        return weft_error_set(&group->error, WEFT_ERR_STATE,
                              "weft_group_set_stream: the group is on %s, which has no streams",
                              weft_backend_of(group)->where);
    return weft_backend_of(group)->set_stream(group, ordered != 0, stream);
}

weft_status weft_group_wait(weft_group *group)
{
    return group ? weft_backend_of(group)->settle(group) : weft_no_group("weft_group_wait");
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
    weft_status status;

    if (!group)
        return weft_no_group("weft_set_deadlines");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
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
    return group ? weft_group_barrier(group) : weft_no_group("weft_barrier");
}
