/*
 * Reduce-scatter: recv of rank r is the sum of row r of every rank's send, added in rank order.
 *   pull  rank r reads row r of every rank
 *   push  every rank stores its rows into their owners' inboxes; the owner adds when a chunk is complete
 */
#include "plan/generate.h"

static void pull(weft_collective *c)
{
    weft_builder *b = c->builder;
    int64_t count = b->problem->count;

    for (int64_t i = 0; i < weft_cut_count(count, c->tile); i++) {
        weft_span cols = weft_cut(weft_whole(count), c->tile, i);

        weft_builder_task(b, weft_collective_lane(c), WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, weft_row(c->recv, b->rank, 0, cols));
        for (int rank = 0; rank < b->world; rank++)
            weft_builder_from(b, weft_row(c->send, rank, b->rank, cols));
        weft_builder_end(b);
    }
}

static void push(weft_collective *c)
{
    weft_builder *b = c->builder;
    int64_t count = b->problem->count, chunks = weft_cut_count(count, c->tile);
    uint32_t arrived = weft_builder_signals(b, chunks);
    uint32_t inbox = weft_builder_operand(b, (weft_operand){.name = "inbox",
                                                            .place = WEFT_PLACE_STAGING,
                                                            .dtype = b->problem->dtype,
                                                            .rows = b->world,
                                                            .cols = count,
                                                            .batch = 1});

    for (int64_t i = 0; i < chunks; i++)
        weft_builder_expect(b, arrived + (uint32_t)i, b->world - 1);
    for (int step = 1; step < b->world; step++) {
        int to = weft_rotate(b->rank, step, b->world);

        for (int64_t i = 0; i < chunks; i++) {
            weft_span cols = weft_cut(weft_whole(count), c->tile, i);

            weft_builder_task(b, weft_collective_lane(c), WEFT_TASK_COPY, 0);
            weft_builder_to(b, weft_row(inbox, to, b->rank, cols));
            weft_builder_from(b, weft_row(c->send, b->rank, to, cols));
            weft_builder_post(b, arrived + (uint32_t)i, to);
            weft_builder_end(b);
        }
    }
    for (int64_t i = 0; i < chunks; i++) {
        weft_span cols = weft_cut(weft_whole(count), c->tile, i);

        weft_builder_task(b, weft_collective_lane(c), WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, weft_row(c->recv, b->rank, 0, cols));
        for (int rank = 0; rank < b->world; rank++)
            weft_builder_from(b, rank == b->rank ? weft_row(c->send, rank, rank, cols)
                                                 : weft_row(inbox, b->rank, rank, cols));
        weft_builder_wait(b, arrived + (uint32_t)i, b->world - 1);
        weft_builder_end(b);
    }
}

void weft_generate_reduce_scatter(weft_builder *builder)
{
    weft_collective c = weft_collective_begin(builder);

    if (builder->problem->schedule == WEFT_SCHEDULE_PUSH)
        push(&c);
    else
        pull(&c);
}
