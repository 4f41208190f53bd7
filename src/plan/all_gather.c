/* All-gather: row r of recv is rank r's send. `pull` reads the peers' shares, `push` stores one's own. */
#include "plan/generate.h"

void weft_generate_all_gather(weft_builder *builder)
{
    weft_collective_exchange(builder);
}
