/*
 * The collectives over nodes, as phases of two_level.h: all_gather spreads, reduce_scatter sums, all_reduce
 * does both with a slice a rank, or takes one trip (two_level_one_trip.c). In an all_to_all a rank's rows for
 * a node travel together to their keeper there, from whom each rank of the node fetches its own. A broadcast
 * goes down strands (two_level_broadcast.c).
 *
 * Staged, an all_to_all by `push` is made here too: rows for ranks elsewhere go straight to them.
 */
#include "plan/two_level_across.h"

static weft_span unit_cols(const weft_across *x, int owner, int64_t unit)
{
    int64_t count = x->b->problem->count;
    weft_span whole =
        x->b->problem->op == WEFT_OP_ALL_REDUCE ? weft_part(count, x->b->world, owner) : weft_whole(count);

    return weft_cut(whole, x->c.tile, unit);
}

static int64_t units(void *context, int owner)
{
    const weft_across *x = context;
    int64_t count = x->b->problem->count;

    return weft_cut_count(x->b->problem->op == WEFT_OP_ALL_REDUCE ? weft_part(count, x->b->world, owner).count
                                                                  : count,
                          x->c.tile);
}

static weft_region part(void *context, int rank, int owner, int64_t unit)
{
    const weft_across *x = context;

    return weft_row(x->c.send, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

static weft_region kept(void *context, int rank, int slot, int64_t unit)
{
    const weft_across *x = context;

    return weft_across_at(x, x->kept, rank, slot, unit);
}

static weft_region inbox(void *context, int owner, int node, int64_t unit)
{
    const weft_across *x = context;

    return weft_across_at(x, x->inbox, owner, node, unit);
}

static weft_region origin(void *context, int owner, int64_t unit)
{
    const weft_across *x = context;
    bool sent = x->b->problem->op == WEFT_OP_ALL_GATHER;

    return weft_row(sent ? x->c.send : x->c.recv, owner, 0, unit_cols(x, owner, unit));
}

static weft_region result(void *context, int rank, int owner, int64_t unit)
{
    const weft_across *x = context;

    return weft_row(x->c.recv, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

static weft_region shared(void *context, int rank, int owner, int64_t unit)
{
    const weft_across *x = context;

    return weft_row(x->copy, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

static void sum_and_spread(weft_across *x)
{
    weft_op op = x->b->problem->op;
    weft_two_level_map map = {.units = units,
                              .part = part,
                              .kept = kept,
                              .inbox = inbox,
                              .origin = origin,
                              .result = op == WEFT_OP_REDUCE_SCATTER ? NULL : result,
                              .shared = x->b->problem->tuning.staged ? shared : NULL,
                              .context = x};
    int64_t longest = op == WEFT_OP_ALL_REDUCE ? weft_part(x->b->problem->count, x->b->world, 0).count
                                               : x->b->problem->count;
    weft_two_level t;

    if (op != WEFT_OP_ALL_GATHER && x->nodes > 1) {
        x->kept = weft_across_scratch(x, "nodesums", x->slots, longest);
        x->inbox = weft_across_scratch(x, "inbox", x->nodes, longest);
    }
    weft_across_copy(x, op == WEFT_OP_ALL_REDUCE ? 1 : x->b->world);
    t = weft_two_level_begin(x->b, map);
    if (op != WEFT_OP_ALL_GATHER)
        weft_two_level_sum(&t);
    if (op != WEFT_OP_REDUCE_SCATTER)
        weft_two_level_spread(&t);
    weft_two_level_end(&t);
}

/* ---- all_to_all ---------------------------------------------------------------------------------- */

/* Ranks of a node that follow each other from its `at`-th on: their rows are one region. */
static int run_at(const weft_two_level *t, int node, int at)
{
    const int *members = &t->members[t->first[node]];
    int end = at + 1;

    while (end < weft_two_level_size(t, node) && members[end] == members[end - 1] + 1)
        end++;
    return end - at;
}

static int run_count(const weft_two_level *t, int node)
{
    int runs = 0;

    for (int at = 0; at < weft_two_level_size(t, node); at += run_at(t, node, at))
        runs++;
    return runs;
}

static void send_rows(const weft_across *x, weft_two_level *t, int node, int most, weft_span cols)
{
    int keeper = weft_two_level_keeper(t, node, t->me), slot = weft_two_level_slot(t, node, t->me);

    for (int at = 0; at < weft_two_level_size(t, node); at += run_at(t, node, at)) {
        weft_span rows = {t->members[t->first[node] + at], run_at(t, node, at)};
        weft_span there = {(int64_t)slot * most + at, rows.count};

        weft_two_level_send(t, weft_region_make(x->inbox, keeper, 0, there, cols),
                            weft_region_make(x->c.send, t->me, 0, rows, cols), (weft_wait){0});
    }
}

/* Rows that go straight to the ranks of a node, beginning with those that its others begin with last. */
static void send_straight(const weft_across *x, weft_two_level *t, int node, weft_span cols)
{
    int size = weft_two_level_size(t, node);

    for (int i = 0; i < size; i++) {
        int to = t->members[t->first[node] + (t->local[t->me] + i) % size];

        weft_two_level_send(t, weft_row(x->c.recv, to, t->me, cols), weft_row(x->c.send, t->me, to, cols),
                            (weft_wait){0});
    }
}

static void fetch_rows(const weft_across *x, weft_two_level *t, int owner, int most, weft_span cols)
{
    int mine = weft_two_level_node(t, t->me), keeper = weft_two_level_keeper(t, mine, owner);
    weft_wait when = {WEFT_SIGNAL_LANDED(x->b->world, owner), 0};

    for (int run = 0; run < run_count(t, mine); run++)
        when = weft_two_level_comes(t, owner);
    weft_across_copy_when(t, weft_two_level_lane(t), weft_row(x->c.recv, t->me, owner, cols),
                          weft_row(x->inbox, keeper,
                                   (int64_t)weft_two_level_slot(t, mine, owner) * most + t->local[t->me],
                                   cols),
                          when);
}

/* A chunk of what the ranks of this node send each other; staged, each copies it for the others first. */
static void exchange_near(const weft_across *x, weft_two_level *t, int64_t chunk)
{
    weft_span cols = weft_cut(weft_whole(x->b->problem->count), x->c.tile, chunk);
    int mine = weft_two_level_node(t, t->me), size = weft_two_level_size(t, mine);
    int lane = (int)(chunk % t->lanes);
    bool staged = x->b->problem->tuning.staged;

    for (int i = 1; i < size && staged; i++) {
        int to = t->members[t->first[mine] + (t->local[t->me] + i) % size];

        weft_two_level_copy_for(t, to, lane, weft_row(x->copy, t->me, to, cols),
                                weft_row(x->c.send, t->me, to, cols));
    }
    for (int i = 0; i < size; i++) {
        int from = t->members[t->first[mine] + (t->local[t->me] + i) % size];
        bool copied = staged && i;

        weft_builder_task(x->b, staged ? lane : weft_two_level_lane(t), WEFT_TASK_COPY, 0);
        weft_builder_to(x->b, weft_row(x->c.recv, t->me, from, cols));
        weft_builder_from(x->b, weft_row(copied ? x->copy : x->c.send, from, t->me, cols));
        if (copied)
            weft_two_level_await_copy(t, from, lane);
        weft_builder_end(x->b);
    }
}

/* What the ranks of a node send to this one. */
static void fetch_node(const weft_across *x, weft_two_level *t, int node, int most, int64_t chunks)
{
    for (int i = 0; i < weft_two_level_size(t, node); i++) {
        int from = t->members[t->first[node] + i];

        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            if (most)
                fetch_rows(x, t, from, most, weft_cut(weft_whole(x->b->problem->count), x->c.tile, chunk));
            else
                weft_builder_lands(x->b, from);
        }
    }
}

static void all_to_all(weft_across *x)
{
    int64_t count = x->b->problem->count, chunks = weft_cut_count(count, x->c.tile);
    bool straight = x->b->problem->schedule == WEFT_SCHEDULE_PUSH;
    int most = 0; /* ranks of a node, whose rows their keeper has */
    weft_two_level t;

    weft_across_copy(x, x->b->world);
    t = weft_two_level_begin(x->b, (weft_two_level_map){0});
    for (int node = 0; node < x->nodes && !straight && !x->b->failed; node++)
        most = weft_two_level_size(&t, node) > most ? weft_two_level_size(&t, node) : most;
    if (x->nodes > 1 && !straight)
        x->inbox = weft_across_scratch(x, "inbox", (int64_t)x->slots * most, count);
    for (int step = 1; step < x->nodes && !x->b->failed; step++) {
        int node = weft_two_level_receiver(&t, step);

        for (int64_t i = 0; i < chunks; i++) {
            weft_span cols = weft_cut(weft_whole(count), x->c.tile, i);

            if (straight)
                send_straight(x, &t, node, cols);
            else
                send_rows(x, &t, node, most, cols);
        }
    }
    for (int64_t i = 0; i < chunks && !x->b->failed; i++)
        exchange_near(x, &t, i);
    for (int step = 1; step < x->nodes && !x->b->failed; step++)
        fetch_node(x, &t, weft_two_level_sender(&t, step), most, chunks);
    weft_two_level_end(&t);
}

void weft_generate_two_level(weft_builder *b)
{
    weft_across x = {.b = b, .slots = weft_two_level_slots(b), .nodes = weft_two_level_nodes(b)};

    x.c = weft_collective_begin(b);
    if (b->problem->op == WEFT_OP_ALL_TO_ALL)
        all_to_all(&x);
    else if (b->problem->op == WEFT_OP_BROADCAST)
        weft_across_broadcast(&x);
    else if (weft_two_level_takes_one_trip(b->problem, b->domain, b->world))
        weft_across_one_trip(&x);
    else
        sum_and_spread(&x);
}
