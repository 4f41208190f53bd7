#include "group/sync_kind.h"

const char *weft_sync_name(unsigned kind)
{
    switch (kind) {
    case WEFT_SYNC_BARRIER:
        return "barrier";
    case WEFT_SYNC_AGREE:
        return "agreement";
    case WEFT_SYNC_BROADCAST:
        return "broadcast";
    case WEFT_SYNC_SPLIT:
        return "weft_group_split";
    case WEFT_SYNC_ALLOC:
        return "weft_alloc, or the first call that needs memory";
    case WEFT_SYNC_GPU:
        return "weft_group_use_gpu";
    case WEFT_SYNC_COUNTED:
        return "a collective with counts or a root";
    default:
        return "another call";
    }
}
