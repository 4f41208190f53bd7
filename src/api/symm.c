/* Symmetric memory: the entry points of weft.h. */
#include "api/no_group.h"
#include "run/backend.h"

weft_status weft_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    if (!group)
        return weft_no_group("weft_alloc");
    group->entry = WEFT_ENTRY_ALLOC;
    if (!pointer) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "weft_alloc: pointer is NULL");
        return weft_group_reject(group, WEFT_SYNC_ALLOC);
    }
    return weft_backend_of(group)->alloc(group, bytes, alignment, pointer);
}

weft_status weft_free(weft_group *group, void *pointer)
{
    if (!group)
        return weft_no_group("weft_free");
    return weft_backend_of(group)->release(group, pointer);
}

weft_status weft_memcpy(weft_group *group, void *to, const void *from, size_t bytes)
{
    weft_status status;

    if (!group)
        return weft_no_group("weft_memcpy");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (bytes && (!to || !from))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "weft_memcpy: %s is NULL",
                              to ? "from" : "to");
    return weft_backend_of(group)->copy(group, to, from, bytes);
}

void *weft_peer(const weft_group *group, const void *pointer, int rank)
{
    if (!group || rank < 0 || rank >= group->size)
        return NULL;
    return weft_backend_of(group)->peer(group, pointer, rank);
}
