/* Memory for results that wait on their way. */
#include <stdlib.h>

#include "core/round.h"
#include "moe/moe.h"

weft_status weft_moe_scratch(weft_moe_lane *lane, size_t bytes)
{
    if (bytes <= lane->scratch_bytes)
        return WEFT_OK;
    free(lane->scratch);
    bytes = weft_round_up_bytes(bytes, WEFT_LINE_BYTES);
    lane->scratch_bytes = 0;
    lane->scratch = aligned_alloc(WEFT_LINE_BYTES, bytes);
    if (!lane->scratch)
        return weft_group_poison(lane->moe->group, WEFT_ERR_MEMORY, "moe: no memory for %zu bytes of results",
                                 bytes);
    lane->scratch_bytes = bytes;
    return WEFT_OK;
}
