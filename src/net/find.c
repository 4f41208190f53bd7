#include "net/find.h"

#include <string.h>

#include "core/env.h"
#include "net/fabric.h"
#include "net/tcp.h"
#include "net/ucx.h"

weft_status weft_engine_find(const weft_engine **engine, weft_error_text *error)
{
    const char *asked = weft_env_word(WEFT_ENV_NET);

    if (strcmp(asked, "ucx") == 0 || (strcmp(asked, "auto") == 0 && weft_fabric_infiniband()))
        return weft_engine_ucx(engine, error);
    *engine = weft_engine_tcp();
    return WEFT_OK;
}
