/* Messages between two ranks: the entry points of weft.h. */
#include "api/no_group.h"
#include "core/dtype.h"
#include "run/backend.h"

#define COUNT_MOST (INT64_MAX >> 8) /* as a message says it */

static weft_status check(weft_group *group, weft_entry entry, const void *buffer, int64_t count,
                         weft_dtype dtype, int peer)
{
    const char *call = weft_entry_name(entry);
    weft_status status;

    if (!group)
        return weft_no_group(call);
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    group->entry = (unsigned char)entry;
    if (!weft_backend_of(group)->send)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED, "%s: a group on %s has no messages", call,
                              weft_backend_of(group)->where);
    if (!weft_dtype_size(dtype) || count < 0 || count > COUNT_MOST || (count && !buffer))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s of %lld elements of %s: count must not be negative, buffer not NULL", call,
                              (long long)count, weft_dtype_name(dtype));
    if (peer < 0 || peer >= group->size || peer == group->rank)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s: %d is not another rank than rank %d of %d", call, peer, group->rank,
                              group->size);
    return WEFT_OK;
}

weft_status weft_send(weft_group *group, const void *buffer, int64_t count, weft_dtype dtype, int to)
{
    weft_status status = check(group, WEFT_ENTRY_SEND, buffer, count, dtype, to);

    return status == WEFT_OK ? weft_backend_of(group)->send(group, buffer, count, dtype, to) : status;
}

weft_status weft_recv(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int from)
{
    weft_status status = check(group, WEFT_ENTRY_RECV, buffer, count, dtype, from);

    return status == WEFT_OK ? weft_backend_of(group)->recv(group, buffer, count, dtype, from) : status;
}
