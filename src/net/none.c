/* The engine of a build that found no headers of UCX. */
#include "net/engine.h"

weft_status weft_engine_find(const weft_engine **engine, weft_error_text *error)
{
    (void)engine;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "ranks on several nodes need UCX, and this weft was built without its headers "
                          "(Debian: libucx-dev)");
}
