#include "net/find.h"

#include <string.h>

#include "core/env.h"
#include "net/fabric.h"
#include "net/tcp.h"
#include "net/ucx.h"

weft_status weft_engine_find(const weft_engine **engine, weft_error_text *error)
{
    const char *asked = weft_env_word(WEFT_ENV_NET);
    bool by_itself = strcmp(asked, "auto") == 0;

    if (strcmp(asked, "ucx") == 0 || (by_itself && weft_fabric_infiniband()))
        return weft_engine_ucx(engine, error);
    if (!by_itself && strcmp(asked, "tcp") != 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "WEFT_NET is '%s'; it may be auto, tcp or ucx",
                              asked);
    *engine = weft_engine_tcp();
    return WEFT_OK;
}
