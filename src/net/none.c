/* Instead of UCX in a build that found no headers of it. */
#include "net/ucx.h"

weft_status weft_engine_ucx(const weft_engine **engine, weft_error_text *error)
{
    (void)engine;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "messages between nodes go by UCX here, and this weft was built without its "
                          "headers (Debian: libucx-dev)");
}
