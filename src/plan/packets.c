/*
 * Packets: every rank stores what a peer needs into that peer's inbox, and everyone finishes from its own.
 * One hop, and no rank touches a peer's send or recv, so they may lie anywhere. It moves as much as one_shot
 * and twice through memory: for messages whose time is latency. A backend may carry each post inside the
 * packets of its COPY, doubled by parity; then ENTER and DONE cost it nothing.
 *
 * Signal (p, lane) tells how many chunks that lane of rank p has delivered: chunk i belongs to lane
 * i mod lanes on every rank, so one lane makes all of its posts, in order.
 */
#include "plan/generate.h"

typedef struct packets {
    weft_collective c;
    uint32_t inbox, arrived;
    int64_t chunks;
    bool parted;  /* send has a row for every rank */
    bool reduces; /* recv is one row, made of all ranks' */
} packets;

static bool sends(const weft_builder *b, int rank)
{
    return b->problem->op != WEFT_OP_BROADCAST || rank == b->problem->root;
}

static weft_region own(const packets *p, int to, weft_span cols)
{
    return weft_row(p->c.send, p->c.builder->rank, p->parted ? to : 0, cols);
}

static void send_chunk(packets *p, int64_t chunk)
{
    weft_builder *b = p->c.builder;
    int lane = (int)(chunk % p->c.lanes);
    weft_span cols = weft_cut(weft_whole(b->problem->count), p->c.tile, chunk);

    for (int step = 1; step < b->world && sends(b, b->rank); step++) {
        int to = weft_rotate(b->rank, step, b->world);

        weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
        weft_builder_to(b, weft_row(p->inbox, to, b->rank, cols));
        weft_builder_from(b, own(p, to, cols));
        weft_builder_post(b, p->arrived + (uint32_t)(b->rank * p->c.lanes + lane), to);
        weft_builder_end(b);
    }
}

/* From where a rank's part of the result comes, once it has arrived. */
static weft_region source(packets *p, int from, weft_span cols)
{
    weft_builder *b = p->c.builder;

    return from == b->rank ? own(p, from, cols) : weft_row(p->inbox, b->rank, from, cols);
}

static void await(packets *p, int from, int64_t chunk)
{
    weft_builder *b = p->c.builder;
    int lane = (int)(chunk % p->c.lanes);

    if (from != b->rank)
        weft_builder_wait(b, p->arrived + (uint32_t)(from * p->c.lanes + lane), chunk / p->c.lanes + 1);
}

static void receive_chunk(packets *p, int64_t chunk)
{
    weft_builder *b = p->c.builder;
    int lane = (int)(chunk % p->c.lanes);
    weft_span cols = weft_cut(weft_whole(b->problem->count), p->c.tile, chunk);

    if (p->reduces) {
        weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, weft_row(p->c.recv, b->rank, 0, cols));
        for (int from = 0; from < b->world; from++)
            weft_builder_from(b, source(p, from, cols));
        for (int from = 0; from < b->world; from++)
            await(p, from, chunk);
        weft_builder_end(b);
        return;
    }
    for (int step = 0; step < b->world; step++) {
        int from = weft_rotate(b->rank, step, b->world);

        if (!sends(b, from))
            continue;
        weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
        weft_builder_to(b,
                        weft_row(p->c.recv, b->rank, b->problem->op == WEFT_OP_BROADCAST ? 0 : from, cols));
        weft_builder_from(b, source(p, from, cols));
        await(p, from, chunk);
        weft_builder_end(b);
    }
}

void weft_generate_packets(weft_builder *b)
{
    weft_op op = b->problem->op;
    bool parted = op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL;
    packets p = {.c = weft_collective_begin(b),
                 .parted = parted,
                 .reduces = op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER};

    p.chunks = weft_cut_count(b->problem->count, p.c.tile);
    p.arrived = weft_builder_signals(b, (int64_t)b->world * p.c.lanes);
    p.inbox = weft_builder_operand(b, (weft_operand){.name = "inbox",
                                                     .place = WEFT_PLACE_STAGING,
                                                     .dtype = b->problem->dtype,
                                                     .rows = b->world,
                                                     .cols = b->problem->count,
                                                     .batch = 1});
    for (int from = 0; from < b->world; from++)
        for (int lane = 0; lane < p.c.lanes && from != b->rank && sends(b, from); lane++)
            weft_builder_expect(b, p.arrived + (uint32_t)(from * p.c.lanes + lane),
                                (p.chunks + p.c.lanes - 1 - lane) / p.c.lanes);
    for (int64_t i = 0; i < p.chunks; i++)
        send_chunk(&p, i);
    for (int64_t i = 0; i < p.chunks; i++)
        receive_chunk(&p, i);
}
