/*
 * All-to-all: row p of rank r's recv is row r of rank p's send. `pull` reads from the peers, `push` stores
 * to them. Send and recv must be different memory.
 */
#include "plan/generate.h"

void weft_generate_all_to_all(weft_builder *builder)
{
    weft_collective_exchange(builder);
}
