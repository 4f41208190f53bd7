#include "group/sync_kind.h"

const char *weft_sync_name(unsigned kind)
{
    switch (kind) {
    case WEFT_SYNC_BARRIER:
        return "weft_barrier";
    case WEFT_SYNC_AGREE:
        return "weft_moe_create";
    case WEFT_SYNC_BROADCAST:
        return "weft_plan_create, or the first call of a product or collective";
    case WEFT_SYNC_SPLIT:
        return "weft_group_split";
    case WEFT_SYNC_ALLOC:
        return "weft_alloc, or a call that needs memory for the first time";
    case WEFT_SYNC_GPU:
        return "weft_group_use_gpu";
    case WEFT_SYNC_COUNTED:
        return "weft_all_gather_v, weft_reduce_scatter_v, weft_all_to_all_v, weft_gather, weft_scatter or "
               "weft_reduce";
    default:
        return "another call";
    }
}
