/*
 * Broadcast: recv of every rank is the root's send. With `pull` every rank reads the root's buffer, each
 * starting at another chunk; with `push` the root stores to all.
 */
#include "plan/generate.h"

static void pull(weft_collective *c)
{
    weft_builder *b = c->builder;
    int64_t chunks = weft_cut_count(b->problem->count, c->tile);

    for (int64_t i = 0; i < chunks; i++) {
        int64_t chunk = (i + b->rank * chunks / b->world) % chunks;
        weft_span cols = weft_cut(weft_whole(b->problem->count), c->tile, chunk);

        weft_builder_copy(b, weft_collective_lane(c), weft_row(c->recv, b->rank, 0, cols),
                          weft_row(c->send, b->problem->root, 0, cols));
    }
}

static void push(weft_collective *c)
{
    weft_builder *b = c->builder;

    if (b->rank != b->problem->root)
        return;
    for (int64_t i = 0; i < weft_cut_count(b->problem->count, c->tile); i++) {
        weft_span cols = weft_cut(weft_whole(b->problem->count), c->tile, i);

        for (int step = 0; step < b->world; step++)
            weft_builder_copy(b, weft_collective_lane(c),
                              weft_row(c->recv, weft_rotate(b->rank, step, b->world), 0, cols),
                              weft_row(c->send, b->rank, 0, cols));
    }
}

void weft_generate_broadcast(weft_builder *builder)
{
    weft_collective c = weft_collective_begin(builder);

    if (builder->problem->schedule == WEFT_SCHEDULE_PUSH)
        push(&c);
    else
        pull(&c);
}
