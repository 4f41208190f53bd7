/* Messages between two ranks: the entry points of weft.h. */
#include "api/no_group.h"
#include "core/dtype.h"
#include "run/backend.h"

/* The bytes of the message, or the error. */
static weft_status check(weft_group *group, const char *call, const void *buffer, int64_t count,
                         weft_dtype dtype, int peer, size_t *bytes)
{
    size_t element = weft_dtype_size(dtype);
    weft_status status;

    if (!group)
        return weft_no_group(call);
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!weft_backend_of(group)->send)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED, "%s: a group on GPUs has no messages",
                              call);
    if (!element || count < 0 || count > INT64_MAX / 8 || (count && !buffer))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s of %lld elements of %s: count must not be negative, buffer not NULL", call,
                              (long long)count, weft_dtype_name(dtype));
    if (peer < 0 || peer >= group->size || peer == group->rank)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s: %d is not another rank than rank %d of %d", call, peer, group->rank,
                              group->size);
    *bytes = (size_t)count * element;
    return WEFT_OK;
}

weft_status weft_send(weft_group *group, const void *buffer, int64_t count, weft_dtype dtype, int to)
{
    size_t bytes = 0;
    weft_status status = check(group, "weft_send", buffer, count, dtype, to, &bytes);

    return status == WEFT_OK ? weft_backend_of(group)->send(group, buffer, bytes, to) : status;
}

weft_status weft_recv(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int from)
{
    size_t bytes = 0;
    weft_status status = check(group, "weft_recv", buffer, count, dtype, from, &bytes);

    return status == WEFT_OK ? weft_backend_of(group)->recv(group, buffer, bytes, from) : status;
}
