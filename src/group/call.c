#include "group/call.h"

const char *weft_call_name(unsigned call)
{
    switch (call) {
    case WEFT_CALL_BARRIER:
        return "barrier";
    case WEFT_CALL_AGREE:
        return "agreement";
    case WEFT_CALL_BROADCAST:
        return "broadcast";
    case WEFT_CALL_SPLIT:
        return "weft_group_split";
    case WEFT_CALL_ALLOC:
        return "weft_alloc";
    case WEFT_CALL_GPU:
        return "weft_group_use_gpu";
    case WEFT_CALL_COUNTED:
        return "a collective with counts or a root";
    default:
        return "another call";
    }
}
