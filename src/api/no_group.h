/* What calls that need a group say to NULL: there is no handle that could keep the sentence. */
#ifndef WEFT_API_NO_GROUP_H
#define WEFT_API_NO_GROUP_H

#include "core/status.h"

static inline weft_status weft_no_group(const char *call)
{
    return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: group is NULL", call);
}

#endif
