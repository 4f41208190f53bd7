/* The phases of exchanges over nodes; see two_level.h. */
#include "plan/two_level.h"

#include "core/round.h"

#include <stdlib.h>

static int node_of(const weft_builder *b, int rank)
{
    return b->domain ? b->domain[rank] : 0;
}

int weft_two_level_count(const int32_t *domain, int world)
{
    int nodes = 1;

    for (int rank = 0; rank < world && domain; rank++)
        nodes = domain[rank] >= nodes ? domain[rank] + 1 : nodes;
    return nodes;
}

int weft_two_level_nodes(const weft_builder *b)
{
    return weft_two_level_count(b->domain, b->world);
}

weft_two_level weft_two_level_begin(weft_builder *b, weft_two_level_map map)
{
    weft_two_level t = {.builder = b,
                        .map = map,
                        .nodes = weft_two_level_nodes(b),
                        .me = b->rank,
                        .lanes = weft_compute_lanes(b->problem)};
    int at = 0, most = 1;

    t.members = malloc((size_t)b->world * sizeof(int));
    t.local = malloc((size_t)b->world * sizeof(int));
    t.first = malloc(((size_t)t.nodes + 1) * sizeof(int));
    t.told = calloc((size_t)b->world, sizeof(int64_t));
    if (!t.members || !t.local || !t.first || !t.told) {
        b->failed = true;
        return t;
    }
    for (int node = 0; node < t.nodes; node++) {
        t.first[node] = at;
        for (int rank = 0; rank < b->world; rank++) {
            if (node_of(b, rank) != node)
                continue;
            t.local[rank] = at - t.first[node];
            t.members[at++] = rank;
        }
        most = at - t.first[node] > most ? at - t.first[node] : most;
    }
    t.first[t.nodes] = at;
    if (t.nodes > 1) {
        t.relay = weft_builder_lanes(b, WEFT_LANE_COPY, 1);
        t.wire = weft_builder_lanes(b, WEFT_LANE_COPY, 1);
        t.shared = weft_builder_signals(b, most);
        t.ready = weft_builder_signals(b, t.lanes);
    }
    t.summed = weft_builder_signals(b, (int64_t)most * t.lanes);
    if (b->problem->tuning.staged)
        t.copied = weft_builder_signals(b, (int64_t)most * t.lanes);
    return t;
}

void weft_two_level_end(weft_two_level *t)
{
    free(t->members);
    free(t->local);
    free(t->first);
    free(t->told);
}

int weft_two_level_size(const weft_two_level *t, int node)
{
    return t->first[node + 1] - t->first[node];
}

int weft_two_level_node(const weft_two_level *t, int rank)
{
    return node_of(t->builder, rank);
}

int weft_two_level_keeper(const weft_two_level *t, int node, int owner)
{
    return node == node_of(t->builder, owner)
               ? owner
               : t->members[t->first[node] + t->local[owner] % weft_two_level_size(t, node)];
}

int weft_two_level_slot(const weft_two_level *t, int node, int owner)
{
    int size = weft_two_level_size(t, node), mine = t->local[owner] % size, slot = t->local[owner] / size;

    for (int other = 0; other < weft_two_level_node(t, owner); other++)
        slot += other == node ? 0 : (weft_two_level_size(t, other) + size - 1 - mine) / size;
    return slot;
}

int weft_two_level_slots(const weft_builder *b)
{
    int nodes = weft_two_level_nodes(b), slots = 0;
    int *sizes = calloc((size_t)nodes, sizeof(int));

    for (int rank = 0; rank < b->world && sizes; rank++)
        sizes[node_of(b, rank)]++;
    /* The first rank of a node keeps most: of each other node, every owner whose number the size divides. */
    for (int node = 0; node < nodes && sizes; node++) {
        int kept = 0;

        for (int other = 0; other < nodes; other++)
            kept += other == node ? 0 : (sizes[other] + sizes[node] - 1) / sizes[node];
        slots = kept > slots ? kept : slots;
    }
    free(sizes);
    return slots;
}

/* The node `step` places before mine: what it sends in its step comes to mine. */
int weft_two_level_sender(const weft_two_level *t, int step)
{
    return (node_of(t->builder, t->me) - step + t->nodes) % t->nodes;
}

int weft_two_level_receiver(const weft_two_level *t, int step)
{
    return (node_of(t->builder, t->me) + step) % t->nodes;
}

int weft_two_level_lane(weft_two_level *t)
{
    return (int)weft_remainder(t->dealt++, t->lanes);
}

int weft_two_level_unit_lane(const weft_two_level *t, int owner, int64_t unit)
{
    return (int)weft_remainder(unit + (t->map.turn ? t->map.turn(t->map.context, owner) : 0), t->lanes);
}

int64_t weft_two_level_lane_units(const weft_two_level *t, int owner, int lane)
{
    int64_t later = weft_remainder(lane + t->lanes - weft_two_level_unit_lane(t, owner, 0), t->lanes);

    return weft_quotient(t->map.units(t->map.context, owner) + t->lanes - 1 - later, t->lanes);
}

/* The open task is one that the wire lane waits for; returns what for. */
weft_wait weft_two_level_tell_wire(weft_two_level *t, int lane)
{
    uint32_t signal = t->ready + (uint32_t)lane;

    weft_builder_post(t->builder, signal, t->me);
    return (weft_wait){signal, (uint32_t)weft_builder_expect_more(t->builder, signal)};
}

void weft_two_level_send(weft_two_level *t, weft_region to, weft_region from, weft_wait after)
{
    weft_builder_task(t->builder, t->wire, WEFT_TASK_COPY, 0);
    weft_builder_to(t->builder, to);
    weft_builder_from(t->builder, from);
    weft_builder_wait(t->builder, after.signal, after.count);
    weft_builder_end(t->builder);
}

void weft_two_level_tell(weft_two_level *t, uint32_t signal)
{
    int node = node_of(t->builder, t->me);

    for (int i = 1; i < weft_two_level_size(t, node); i++)
        weft_builder_post(t->builder, signal,
                          t->members[t->first[node] + (t->local[t->me] + i) % weft_two_level_size(t, node)]);
}

bool weft_two_level_has_others(const weft_two_level *t)
{
    return weft_two_level_size(t, node_of(t->builder, t->me)) > 1;
}

void weft_two_level_copy_for(weft_two_level *t, int reader, int lane, weft_region to, weft_region from)
{
    weft_builder_task(t->builder, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(t->builder, to);
    weft_builder_from(t->builder, from);
    weft_builder_post(t->builder, t->copied + (uint32_t)(t->local[t->me] * t->lanes + lane), reader);
    weft_builder_end(t->builder);
}

void weft_two_level_await_copy(weft_two_level *t, int rank, int lane)
{
    uint32_t signal = t->copied + (uint32_t)(t->local[rank] * t->lanes + lane);

    weft_builder_wait(t->builder, signal, weft_builder_expect_more(t->builder, signal));
}

/* Where the others of its node read a unit that `rank` has, as its owner or as its keeper. */
static weft_region held(const weft_two_level *t, int rank, int owner, int64_t unit)
{
    if (t->map.shared && weft_two_level_size(t, node_of(t->builder, rank)) > 1)
        return t->map.shared(t->map.context, rank, owner, unit);
    return rank == owner ? t->map.origin(t->map.context, owner, unit)
                         : t->map.result(t->map.context, rank, owner, unit);
}

/* ---- sums ---------------------------------------------------------------------------------------- */

static void add_parts(weft_two_level *t, int owner, int64_t unit)
{
    int node = node_of(t->builder, t->me);

    for (int i = t->first[node]; i < t->first[node + 1]; i++) {
        int rank = t->members[i];

        weft_builder_from(t->builder, (t->map.shared && rank != t->me ? t->map.shared : t->map.part)(
                                          t->map.context, rank, owner, unit));
    }
    for (int i = t->first[node]; i < t->first[node + 1] && t->map.shared; i++)
        if (t->members[i] != t->me)
            weft_two_level_await_copy(t, t->members[i], weft_two_level_unit_lane(t, owner, unit));
}

/* What the rank of this node that adds an owner's unit up, its keeper, reads of this rank's. */
static void copy_part(weft_two_level *t, int owner, int64_t unit)
{
    int keeper = weft_two_level_keeper(t, node_of(t->builder, t->me), owner);

    if (t->map.shared && keeper != t->me && unit < t->map.units(t->map.context, owner))
        weft_two_level_copy_for(t, keeper, weft_two_level_unit_lane(t, owner, unit),
                                t->map.shared(t->map.context, t->me, owner, unit),
                                t->map.part(t->map.context, t->me, owner, unit));
}

/* This node's part of the sum of a unit whose owner is elsewhere, if this rank keeps it. */
static void sum_for(weft_two_level *t, int owner, int64_t unit)
{
    weft_builder *b = t->builder;
    int mine = node_of(b, t->me), lane;
    weft_region kept, like;
    weft_wait after;

    if (weft_two_level_keeper(t, mine, owner) != t->me || unit >= t->map.units(t->map.context, owner))
        return;
    lane = weft_two_level_lane(t);
    kept = t->map.kept(t->map.context, t->me, weft_two_level_slot(t, mine, owner), unit);
    like = t->map.part(t->map.context, t->me, owner, unit);
    kept.rows = like.rows;
    kept.cols = like.cols;
    weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
    weft_builder_to(b, kept);
    add_parts(t, owner, unit);
    after = weft_two_level_tell_wire(t, lane);
    weft_builder_end(b);
    like = t->map.inbox(t->map.context, owner, mine, unit);
    like.rows = kept.rows;
    like.cols = kept.cols;
    weft_two_level_send(t, like, kept, after);
}

static int64_t most_units(const weft_two_level *t, int node)
{
    int64_t most = 0;

    for (int i = t->first[node]; i < t->first[node + 1]; i++) {
        int64_t units = t->map.units(t->map.context, t->members[i]);

        most = units > most ? units : most;
    }
    return most;
}

/* Of all units of a node's ranks: what others of this node add up is copied for them just before this rank
 * adds up its own, so that all of them go on together. */
static void sum_for_node(weft_two_level *t, int node)
{
    for (int64_t unit = 0; unit < most_units(t, node); unit++) {
        for (int i = t->first[node]; i < t->first[node + 1]; i++)
            copy_part(t, t->members[i], unit);
        for (int i = t->first[node]; i < t->first[node + 1] && node != node_of(t->builder, t->me); i++)
            sum_for(t, t->members[i], unit);
    }
}

void weft_two_level_sum(weft_two_level *t)
{
    weft_builder *b = t->builder;
    int mine = node_of(b, t->me);
    int64_t units = t->map.units(t->map.context, t->me);
    int64_t *landed = calloc((size_t)t->nodes, sizeof(int64_t));

    t->sums = true;
    if (!landed || b->failed) {
        b->failed = true;
        free(landed);
        return;
    }
    for (int step = 1; step <= t->nodes; step++) /* the own last */
        sum_for_node(t, weft_two_level_receiver(t, step));
    for (int64_t unit = 0; unit < units; unit++) {
        weft_region to = t->map.origin(t->map.context, t->me, unit);
        int lane = weft_two_level_unit_lane(t, t->me, unit);

        weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, to);
        if (t->map.shared && t->map.result && weft_two_level_has_others(t))
            weft_builder_to(b, held(t, t->me, t->me, unit));
        for (int node = 0; node < t->nodes; node++) {
            weft_region from;

            if (node == mine) {
                add_parts(t, t->me, unit);
                continue;
            }
            from = t->map.inbox(t->map.context, t->me, node, unit);
            from.rows = to.rows;
            from.cols = to.cols;
            weft_builder_from(b, from);
        }
        for (int node = 0; node < t->nodes; node++) {
            int from = weft_two_level_keeper(t, node, t->me);

            if (node == mine)
                continue;
            landed[node] = weft_builder_lands(b, from);
            weft_builder_wait(b, WEFT_SIGNAL_LANDED(b->world, from), landed[node]);
        }
        if (t->map.result) { /* they are spread next */
            weft_two_level_tell(t, weft_two_level_summed(t, t->me, lane));
            if (t->nodes > 1)
                weft_two_level_tell_wire(t, lane);
        }
        weft_builder_end(b);
    }
    free(landed);
}

/* ---- spreading ----------------------------------------------------------------------------------- */

void weft_two_level_send_own(weft_two_level *t)
{
    int64_t units = t->map.units(t->map.context, t->me);

    for (int step = 1; step < t->nodes; step++) {
        int keeper = weft_two_level_keeper(t, weft_two_level_receiver(t, step), t->me);

        for (int64_t unit = 0; unit < units; unit++) {
            int lane = weft_two_level_unit_lane(t, t->me, unit);
            weft_wait after = {t->ready + (uint32_t)lane, 0};

            if (t->sums) /* they were the last that the lane told of */
                after.count =
                    t->builder->part.signal_posts[after.signal] -
                    (uint32_t)(weft_two_level_lane_units(t, t->me, lane) - weft_quotient(unit, t->lanes) - 1);
            weft_two_level_send(t, held(t, keeper, t->me, unit), t->map.origin(t->map.context, t->me, unit),
                                after);
        }
    }
}

/* The own units, for this rank and, staged, for the others of its node. Sums are there already. */
static void take_own(weft_two_level *t)
{
    weft_builder *b = t->builder;

    for (int64_t unit = 0; unit < t->map.units(t->map.context, t->me) && !t->sums; unit++) {
        weft_region from = t->map.origin(t->map.context, t->me, unit);
        int lane = weft_two_level_unit_lane(t, t->me, unit);

        if (t->map.shared && weft_two_level_has_others(t)) {
            weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
            weft_builder_to(b, held(t, t->me, t->me, unit));
            weft_builder_from(b, from);
            weft_two_level_tell(t, weft_two_level_summed(t, t->me, lane));
            weft_builder_end(b);
        }
        weft_builder_copy(b, t->map.shared ? lane : weft_two_level_lane(t),
                          t->map.result(t->map.context, t->me, t->me, unit), from);
    }
}

static void fetch_near(weft_two_level *t, int owner)
{
    weft_builder *b = t->builder;
    bool told = t->sums || t->map.shared; /* by the owner, unit by unit */

    for (int lane = 0; lane < t->lanes && told; lane++)
        weft_builder_expect(b, weft_two_level_summed(t, owner, lane),
                            weft_two_level_lane_units(t, owner, lane));
    for (int64_t unit = 0; unit < t->map.units(t->map.context, owner); unit++) {
        int lane = weft_two_level_unit_lane(t, owner, unit);

        weft_builder_task(b, told ? lane : weft_two_level_lane(t), WEFT_TASK_COPY, 0);
        weft_builder_to(b, t->map.result(t->map.context, t->me, owner, unit));
        weft_builder_from(b, held(t, owner, owner, unit));
        if (told)
            weft_builder_wait(b, weft_two_level_summed(t, owner, lane), weft_quotient(unit, t->lanes) + 1);
        weft_builder_end(b);
    }
}

int64_t weft_two_level_relay(weft_two_level *t, int from)
{
    weft_builder *b = t->builder;
    int64_t number = weft_builder_lands(b, from);

    if (!weft_two_level_has_others(t))
        return number;
    weft_builder_task(b, t->relay, WEFT_TASK_COPY, 0);
    weft_builder_to(b, (weft_region){.rank = t->me});
    weft_builder_from(b, (weft_region){.rank = t->me});
    weft_builder_wait(b, WEFT_SIGNAL_LANDED(b->world, from), number);
    weft_two_level_tell(t, t->shared + (uint32_t)t->local[t->me]);
    weft_builder_end(b);
    return number;
}

weft_wait weft_two_level_told(weft_two_level *t, int keeper)
{
    uint32_t signal = t->shared + (uint32_t)t->local[keeper];

    weft_builder_expect(t->builder, signal, ++t->told[keeper]);
    return (weft_wait){signal, (uint32_t)t->told[keeper]};
}

weft_wait weft_two_level_comes(weft_two_level *t, int owner)
{
    int keeper = weft_two_level_keeper(t, node_of(t->builder, t->me), owner);

    return keeper == t->me ? (weft_wait){WEFT_SIGNAL_LANDED(t->builder->world, owner),
                                         (uint32_t)weft_two_level_relay(t, owner)}
                           : weft_two_level_told(t, keeper);
}

static void fetch_far(void *level, int owner, int64_t unit)
{
    weft_two_level *t = level;
    weft_builder *b = t->builder;
    int keeper = weft_two_level_keeper(t, node_of(b, t->me), owner);
    weft_wait told = weft_two_level_comes(t, owner);

    if (keeper == t->me && !(t->map.shared && weft_two_level_has_others(t)))
        return; /* it has landed in the result */
    weft_builder_task(b, weft_two_level_lane(t), WEFT_TASK_COPY, 0);
    weft_builder_to(b, t->map.result(t->map.context, t->me, owner, unit));
    weft_builder_from(b, held(t, keeper, owner, unit));
    weft_builder_wait(b, told.signal, told.count);
    weft_builder_end(b);
}

/*
 * What a node sends in one step, in the order in which it lands: its ranks send at the same time. Ranks begin
 * with different keepers; of one keeper all of them, and its relay, have the same order.
 */
void weft_two_level_for_node(weft_two_level *t, int node, weft_two_level_visit visit, void *context)
{
    int mine = node_of(t->builder, t->me), keepers = weft_two_level_size(t, mine);

    for (int64_t unit = 0; unit < most_units(t, node); unit++) {
        for (int i = 0; i < keepers; i++) {
            for (int j = (t->local[t->me] + i) % keepers; j < weft_two_level_size(t, node); j += keepers) {
                int owner = t->members[t->first[node] + j];

                if (unit < t->map.units(t->map.context, owner))
                    visit(context, owner, unit);
            }
        }
    }
}

void weft_two_level_spread(weft_two_level *t)
{
    int mine = node_of(t->builder, t->me);

    if (t->builder->failed)
        return;
    weft_two_level_send_own(t);
    if (!t->map.stored)
        take_own(t);
    for (int i = 1; i < weft_two_level_size(t, mine) && !t->map.stored; i++)
        fetch_near(t, t->members[t->first[mine] + (t->local[t->me] + i) % weft_two_level_size(t, mine)]);
    for (int step = 1; step < t->nodes; step++)
        weft_two_level_for_node(t, weft_two_level_sender(t, step), fetch_far, t);
}
