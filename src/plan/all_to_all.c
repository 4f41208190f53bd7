/*
 * All-to-all: row p of rank r's recv is row r of rank p's send. `pull` reads from the peers, `push` stores
 * to them. Send and recv must be different memory.
 */
#include "plan/generate.h"

void weft_generate_all_to_all(weft_builder *b)
{
    weft_collective c = weft_collective_begin(b, b->world, b->world);
    int64_t count = b->problem->count;
    bool push = b->problem->schedule == WEFT_SCHEDULE_PUSH;

    for (int step = 0; step < b->world; step++) {
        int peer = weft_rotate(b->rank, step, b->world);
        int from = push ? b->rank : peer, to = push ? peer : b->rank;

        for (int64_t i = 0; i < weft_cut_count(count, c.tile); i++) {
            weft_span cols = weft_cut(weft_whole(count), c.tile, i);

            weft_builder_copy(b, weft_collective_lane(&c), weft_row(c.recv, to, from, cols),
                              weft_row(c.send, from, to, cols));
        }
    }
}
