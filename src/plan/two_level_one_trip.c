/*
 * An all_reduce over nodes of one size in one trip, where that sends no more than two (two nodes) or little
 * (few bytes): the ranks with the same number in their nodes exchange their nodes' sums of a slice, and each
 * adds up all of them, in the order of the nodes. By `multimem`, which goes so over two nodes, it stores that
 * to all of its node, where others fetch it: adding up and spreading are for a switch that can.
 */
#include "plan/two_level_across.h"

#include "core/dtype.h"

enum { ONE_TRIP_BYTES = 64 << 10, ONE_TRIP_NODES = 8 };

bool weft_two_level_takes_one_trip(const weft_problem *p, const int32_t *domain, int world)
{
    int64_t bytes = p->count * (int64_t)weft_dtype_size(p->dtype);
    int nodes = weft_two_level_count(domain, world);

    if (p->op != WEFT_OP_ALL_REDUCE || nodes < 2 || world % nodes ||
        (nodes > 2 && (bytes > ONE_TRIP_BYTES || nodes > ONE_TRIP_NODES)))
        return false;
    for (int node = 0; node < nodes; node++) {
        int size = 0;

        for (int rank = 0; rank < world; rank++)
            size += domain[rank] == node;
        if (size != world / nodes)
            return false;
    }
    return true;
}

bool weft_two_level_takes_multimem(const weft_problem *p, const int32_t *domain, int world)
{
    return p->schedule == WEFT_SCHEDULE_MULTIMEM && world > 2 && weft_two_level_count(domain, world) == 2 &&
           weft_two_level_takes_one_trip(p, domain, world);
}

typedef struct trip {
    weft_across *x;
    weft_two_level t;
    int mine, size; /* this rank's node; ranks of every node */
    bool staged;    /* and there are others on this node */
    bool stores;    /* what it adds up to all of its node */
} trip;

/* Slices belong to the numbers that ranks have in their nodes. */
static weft_span slice_unit(const trip *r, int number, int64_t unit)
{
    return weft_cut(weft_part(r->x->b->problem->count, r->size, number), r->x->c.tile, unit);
}

static int64_t slice_units(const trip *r, int number)
{
    return weft_cut_count(weft_part(r->x->b->problem->count, r->size, number).count, r->x->c.tile);
}

static int64_t lane_units(const trip *r, int number, int lane)
{
    return (slice_units(r, number) + r->t.lanes - 1 - lane) / r->t.lanes;
}

static int node_rank(const trip *r, int node, int number)
{
    return r->t.members[r->t.first[node] + number];
}

/* This node's sum of a unit, which is the rank's own part where it is alone there. */
static weft_region node_sum(const trip *r, int64_t unit, weft_span cols)
{
    weft_region kept = weft_across_at(r->x, r->x->kept, r->t.me, 0, unit);

    if (r->size == 1)
        return weft_row(r->x->c.send, r->t.me, 0, cols);
    kept.cols = cols.count;
    return kept;
}

/* What the others of the node add up of this rank's, in chunks of their slices. */
static void copy_for_others(trip *r, int64_t unit)
{
    for (int i = 1; i < r->size && r->staged; i++) {
        int number = (r->t.local[r->t.me] + i) % r->size;
        weft_span cols = slice_unit(r, number, unit);

        if (unit < slice_units(r, number))
            weft_two_level_copy_for(&r->t, node_rank(r, r->mine, number), (int)(unit % r->t.lanes),
                                    weft_row(r->x->copy, r->t.me, 0, cols),
                                    weft_row(r->x->c.send, r->t.me, 0, cols));
    }
}

static void send_sum(trip *r, int64_t unit)
{
    weft_builder *b = r->x->b;
    int number = r->t.local[r->t.me], lane = (int)(unit % r->t.lanes);
    weft_span cols = slice_unit(r, number, unit);
    weft_region sum = node_sum(r, unit, cols);
    weft_wait after = {0};

    if (r->size > 1) {
        weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, sum);
        for (int i = 0; i < r->size; i++) {
            int rank = node_rank(r, r->mine, i);

            weft_builder_from(
                b, weft_row(r->staged && rank != r->t.me ? r->x->copy : r->x->c.send, rank, 0, cols));
        }
        for (int i = 1; i < r->size && r->staged; i++)
            weft_two_level_await_copy(&r->t, node_rank(r, r->mine, (number + i) % r->size), lane);
        after = weft_two_level_tell_wire(&r->t, lane);
        weft_builder_end(b);
    }
    for (int step = 1; step < r->t.nodes; step++) {
        int there = node_rank(r, weft_two_level_receiver(&r->t, step), number);
        weft_region to = weft_across_at(r->x, r->x->inbox, there, r->mine, unit);

        to.cols = cols.count;
        weft_two_level_send(&r->t, to, sum, after);
    }
}

static void add_sums(trip *r, int64_t unit)
{
    weft_builder *b = r->x->b;
    int number = r->t.local[r->t.me], lane = (int)(unit % r->t.lanes);
    weft_span cols = slice_unit(r, number, unit);

    weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
    for (int i = 0; i < (r->stores ? r->size : 1); i++)
        weft_builder_to(b, weft_row(r->x->c.recv, node_rank(r, r->mine, (number + i) % r->size), 0, cols));
    if (r->staged)
        weft_builder_to(b, weft_row(r->x->copy, r->t.me, 0, cols));
    for (int node = 0; node < r->t.nodes; node++) {
        weft_region from = node == r->mine ? node_sum(r, unit, cols)
                                           : weft_across_at(r->x, r->x->inbox, r->t.me, node, unit);

        from.cols = cols.count;
        weft_builder_from(b, from);
    }
    for (int node = 0; node < r->t.nodes; node++) {
        int from = node_rank(r, node, number);

        if (node != r->mine)
            weft_builder_wait(b, WEFT_SIGNAL_LANDED(b->world, from), weft_builder_lands(b, from));
    }
    if (!r->stores)
        weft_two_level_tell(&r->t, weft_two_level_summed(&r->t, r->t.me, lane));
    weft_builder_end(b);
}

static void fetch_slice(trip *r, int number)
{
    int from = node_rank(r, r->mine, number);

    for (int lane = 0; lane < r->t.lanes; lane++)
        weft_builder_expect(r->x->b, weft_two_level_summed(&r->t, from, lane), lane_units(r, number, lane));
    for (int64_t unit = 0; unit < slice_units(r, number); unit++) {
        int lane = (int)(unit % r->t.lanes);
        weft_span cols = slice_unit(r, number, unit);

        weft_across_copy_when(
            &r->t, lane, weft_row(r->x->c.recv, r->t.me, 0, cols),
            weft_row(r->staged ? r->x->copy : r->x->c.recv, from, 0, cols),
            (weft_wait){weft_two_level_summed(&r->t, from, lane), (uint32_t)(unit / r->t.lanes + 1)});
    }
}

/* What is stored fills the links' other direction, so a lane stores a unit while later ones travel. */
enum { ROUNDS_BEHIND = 1 };

void weft_across_one_trip(weft_across *x)
{
    trip r = {.x = x,
              .size = x->b->world / x->nodes,
              .staged = x->b->problem->tuning.staged,
              .stores = x->b->problem->schedule == WEFT_SCHEDULE_MULTIMEM};
    int64_t longest = weft_part(x->b->problem->count, r.size, 0).count, behind;
    int number;

    if (r.size > 1)
        x->kept = weft_across_scratch(x, "nodesums", 1, longest);
    r.staged = r.staged && r.size > 1;
    if (r.staged)
        weft_across_copy(x, 1);
    x->inbox = weft_across_scratch(x, "inbox", x->nodes, longest);
    r.t = weft_two_level_begin(x->b, (weft_two_level_map){0});
    if (!x->b->failed) {
        r.mine = weft_two_level_node(&r.t, r.t.me);
        number = r.t.local[r.t.me];
        behind = r.stores ? (int64_t)ROUNDS_BEHIND * r.t.lanes : slice_units(&r, 0);
        for (int64_t unit = 0; unit < slice_units(&r, 0) + behind; unit++) { /* the longest */
            if (unit < slice_units(&r, 0))
                copy_for_others(&r, unit);
            if (unit < slice_units(&r, number))
                send_sum(&r, unit);
            if (unit >= behind && unit - behind < slice_units(&r, number))
                add_sums(&r, unit - behind);
        }
        for (int i = 1; i < r.size && !r.stores; i++)
            fetch_slice(&r, (number + i) % r.size);
    }
    weft_two_level_end(&r.t);
}
