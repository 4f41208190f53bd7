/*
 * All-reduce by packets in two hops: every rank stores slice r of its send into rank r's inbox, rank r adds
 * up what it has and stores the result to all, and everyone finishes from its own memory. It moves what
 * two_shot moves; as with packets no rank touches a peer's send or recv, and a backend may carry each post
 * inside of what it posts, so that ENTER and DONE cost it nothing. recv may be send: a chunk is read by the
 * lane that overwrites it, before.
 *
 * Signals (p, lane) tell how many chunks that lane of rank p has delivered of what is added up here, and of
 * slice p's results: chunk i of every slice belongs to lane i mod lanes on every rank.
 */
#include "core/dtype.h"
#include "plan/generate.h"

#include <stdio.h>

typedef struct shots {
    weft_collective c;
    uint32_t inbox, results, arrived, told;
} shots;

weft_span weft_lines_slice(const weft_problem *problem, int world, int rank)
{
    enum { GRAIN_BYTES = 16 };

    return weft_part_granular(problem->count, GRAIN_BYTES / (int64_t)weft_dtype_size(problem->dtype), world,
                              rank);
}

static weft_span slice_of(const weft_builder *b, int rank)
{
    return weft_lines_slice(b->problem, b->world, rank);
}

static int64_t chunks_of(const shots *s, int rank)
{
    return weft_cut_count(slice_of(s->c.builder, rank).count, s->c.tile);
}

static uint32_t signal_of(const shots *s, uint32_t first, int rank, int64_t chunk)
{
    return first + (uint32_t)(rank * s->c.lanes + chunk % s->c.lanes);
}

/* Chunk i of `owner`'s slice where each rank has a row for it, and where it lies in send and recv. */
static weft_span chunk_of(const shots *s, int owner, int64_t chunk)
{
    return weft_cut(weft_whole(slice_of(s->c.builder, owner).count), s->c.tile, chunk);
}

static weft_span place_of(const shots *s, int owner, int64_t chunk)
{
    weft_span cols = chunk_of(s, owner, chunk);

    cols.begin += slice_of(s->c.builder, owner).begin;
    return cols;
}

static void send_chunk(const shots *s, int to, int64_t chunk)
{
    weft_builder *b = s->c.builder;

    weft_builder_task(b, (int)(chunk % s->c.lanes), WEFT_TASK_COPY, 0);
    weft_builder_to(b, weft_row(s->inbox, to, b->rank, chunk_of(s, to, chunk)));
    weft_builder_from(b, weft_row(s->c.send, b->rank, 0, place_of(s, to, chunk)));
    weft_builder_post(b, signal_of(s, s->arrived, b->rank, chunk), to);
    weft_builder_end(b);
}

static void add_up(const shots *s, int64_t chunk)
{
    weft_builder *b = s->c.builder;
    weft_span cols = chunk_of(s, b->rank, chunk), place = place_of(s, b->rank, chunk);

    weft_builder_task(b, (int)(chunk % s->c.lanes), WEFT_TASK_REDUCE, 0);
    weft_builder_to(b, weft_row(s->c.recv, b->rank, 0, place));
    for (int step = 1; step < b->world; step++)
        weft_builder_to(b, weft_row(s->results, weft_rotate(b->rank, step, b->world), b->rank, cols));
    for (int from = 0; from < b->world; from++)
        weft_builder_from(b, from == b->rank ? weft_row(s->c.send, from, 0, place)
                                             : weft_row(s->inbox, b->rank, from, cols));
    for (int from = 0; from < b->world; from++)
        if (from != b->rank)
            weft_builder_wait(b, signal_of(s, s->arrived, from, chunk), chunk / s->c.lanes + 1);
    for (int step = 1; step < b->world; step++)
        weft_builder_post(b, signal_of(s, s->told, b->rank, chunk), weft_rotate(b->rank, step, b->world));
    weft_builder_end(b);
}

static void take_result(const shots *s, int from, int64_t chunk)
{
    weft_builder *b = s->c.builder;

    weft_builder_task(b, (int)(chunk % s->c.lanes), WEFT_TASK_COPY, 0);
    weft_builder_to(b, weft_row(s->c.recv, b->rank, 0, place_of(s, from, chunk)));
    weft_builder_from(b, weft_row(s->results, b->rank, from, chunk_of(s, from, chunk)));
    weft_builder_wait(b, signal_of(s, s->told, from, chunk), chunk / s->c.lanes + 1);
    weft_builder_end(b);
}

/* A row for every rank. */
static weft_operand inbox_of(const weft_builder *b)
{
    return (weft_operand){.name = "inbox",
                          .place = WEFT_PLACE_STAGING,
                          .dtype = b->problem->dtype,
                          .rows = b->world,
                          .cols = slice_of(b, 0).count, /* the longest */
                          .batch = 1};
}

static void expect(const shots *s, uint32_t first, int from, int64_t chunks)
{
    for (int lane = 0; lane < s->c.lanes; lane++)
        weft_builder_expect(s->c.builder, first + (uint32_t)(from * s->c.lanes + lane),
                            (chunks + s->c.lanes - 1 - lane) / s->c.lanes);
}

void weft_generate_two_shot_packets(weft_builder *b)
{
    shots s = {.c = weft_collective_begin(b)};
    weft_operand inbox = inbox_of(b), results = inbox;
    int64_t mine = chunks_of(&s, b->rank);

    s.arrived = weft_builder_signals(b, (int64_t)b->world * s.c.lanes);
    s.told = weft_builder_signals(b, (int64_t)b->world * s.c.lanes);
    s.inbox = weft_builder_operand(b, inbox);
    snprintf(results.name, sizeof(results.name), "results");
    s.results = weft_builder_operand(b, results);
    for (int from = 0; from < b->world; from++)
        if (from != b->rank) {
            expect(&s, s.arrived, from, mine);
            expect(&s, s.told, from, chunks_of(&s, from));
        }
    for (int64_t i = 0; i < chunks_of(&s, 0); i++)
        for (int step = 1; step < b->world; step++) {
            int to = weft_rotate(b->rank, step, b->world);

            if (i < chunks_of(&s, to))
                send_chunk(&s, to, i);
        }
    for (int64_t i = 0; i < mine; i++)
        add_up(&s, i);
    for (int64_t i = 0; i < chunks_of(&s, 0); i++)
        for (int step = 1; step < b->world; step++) {
            int from = weft_rotate(b->rank, step, b->world);

            if (i < chunks_of(&s, from))
                take_result(&s, from, i);
        }
}
