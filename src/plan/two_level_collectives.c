/*
 * The collectives over nodes, as phases of two_level.h: all_gather spreads, reduce_scatter sums, all_reduce
 * does both with a slice a rank; or, where that sends no more (two nodes) or little (few bytes), and the
 * nodes are of one size, it takes one trip instead of two: the ranks with the same number in their nodes
 * exchange their nodes' sums of a slice, and each adds up all of them, in the order of the nodes. By
 * `multimem`, which goes so over two nodes, it stores that to all of its node, where others fetch it: adding
 * up and spreading are for a switch that can. In an all_to_all a rank's rows for a node travel together to
 * their keeper there, from whom each rank of the node fetches its own. A broadcast goes down strands: each is
 * a share of the buffer that passes through one rank of every node, from node to node as a pipeline or, where
 * there are fewer chunks than nodes, down a tree; the others of a node fetch it from that rank.
 *
 * Staged, an all_to_all by `push` is made here too: rows for ranks elsewhere go straight to them.
 */
#include "plan/two_level.h"

#include <stdlib.h>

#include "core/dtype.h"

typedef struct across {
    weft_collective c;
    weft_builder *b;
    uint32_t kept, inbox; /* operands: nodes' sums, at their keepers and at their owners */
    uint32_t copy;        /* staged: operand for what the others of a node read, shaped as SEND or RECV is; of
                             an all_reduce a rank has room there for its share of what others add up, and for
                             the sums of what it adds up or keeps itself */
    int slots, nodes;
} across;

static weft_span unit_cols(const across *x, int owner, int64_t unit)
{
    int64_t count = x->b->problem->count;
    weft_span whole =
        x->b->problem->op == WEFT_OP_ALL_REDUCE ? weft_part(count, x->b->world, owner) : weft_whole(count);

    return weft_cut(whole, x->c.tile, unit);
}

static int64_t units(void *context, int owner)
{
    const across *x = context;
    int64_t count = x->b->problem->count;

    return weft_cut_count(x->b->problem->op == WEFT_OP_ALL_REDUCE ? weft_part(count, x->b->world, owner).count
                                                                  : count,
                          x->c.tile);
}

static weft_region part(void *context, int rank, int owner, int64_t unit)
{
    const across *x = context;

    return weft_row(x->c.send, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

/* In scratch memory a unit lies at its number, whichever slice it is of. */
static weft_region scratch(const across *x, uint32_t operand, int rank, int row, int64_t unit)
{
    return (weft_region){operand, rank, 0, row, 1, x->c.tile > 0 ? unit * x->c.tile : 0, 0};
}

static weft_region kept(void *context, int rank, int slot, int64_t unit)
{
    const across *x = context;

    return scratch(x, x->kept, rank, slot, unit);
}

static weft_region inbox(void *context, int owner, int node, int64_t unit)
{
    const across *x = context;

    return scratch(x, x->inbox, owner, node, unit);
}

static weft_region origin(void *context, int owner, int64_t unit)
{
    const across *x = context;
    bool sent = x->b->problem->op == WEFT_OP_ALL_GATHER;

    return weft_row(sent ? x->c.send : x->c.recv, owner, 0, unit_cols(x, owner, unit));
}

static weft_region result(void *context, int rank, int owner, int64_t unit)
{
    const across *x = context;

    return weft_row(x->c.recv, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

static weft_region shared(void *context, int rank, int owner, int64_t unit)
{
    const across *x = context;

    return weft_row(x->copy, rank, x->b->problem->op == WEFT_OP_ALL_REDUCE ? 0 : owner,
                    unit_cols(x, owner, unit));
}

static uint32_t declare_scratch(across *x, const char *name, int64_t rows, int64_t cols)
{
    weft_operand operand = {
        .place = WEFT_PLACE_STAGING, .dtype = x->b->problem->dtype, .rows = rows, .cols = cols, .batch = 1};

    for (int i = 0; name[i]; i++)
        operand.name[i] = name[i];
    return weft_builder_operand(x->b, operand);
}

static void declare_copy(across *x, int64_t rows)
{
    if (x->b->problem->tuning.staged)
        x->copy = declare_scratch(x, "copy", rows, x->b->problem->count);
}

static void sum_and_spread(across *x)
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
        x->kept = declare_scratch(x, "nodesums", x->slots, longest);
        x->inbox = declare_scratch(x, "inbox", x->nodes, longest);
    }
    declare_copy(x, op == WEFT_OP_ALL_REDUCE ? 1 : x->b->world);
    t = weft_two_level_begin(x->b, map);
    if (op != WEFT_OP_ALL_GATHER)
        weft_two_level_sum(&t);
    if (op != WEFT_OP_REDUCE_SCATTER)
        weft_two_level_spread(&t);
    weft_two_level_end(&t);
}

static void copy_when(weft_two_level *t, int lane, weft_region to, weft_region from, weft_wait when)
{
    weft_builder_task(t->builder, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(t->builder, to);
    weft_builder_from(t->builder, from);
    weft_builder_wait(t->builder, when.signal, when.count);
    weft_builder_end(t->builder);
}

/* ---- all_reduce in one trip ----------------------------------------------------------------------- */

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
    across *x;
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
    weft_region kept = scratch(r->x, r->x->kept, r->t.me, 0, unit);

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
        weft_region to = scratch(r->x, r->x->inbox, there, r->mine, unit);

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
        weft_region from =
            node == r->mine ? node_sum(r, unit, cols) : scratch(r->x, r->x->inbox, r->t.me, node, unit);

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

        copy_when(&r->t, lane, weft_row(r->x->c.recv, r->t.me, 0, cols),
                  weft_row(r->staged ? r->x->copy : r->x->c.recv, from, 0, cols),
                  (weft_wait){weft_two_level_summed(&r->t, from, lane), (uint32_t)(unit / r->t.lanes + 1)});
    }
}

/* What is stored fills the links' other direction, so a lane stores a unit while later ones travel. */
enum { ROUNDS_BEHIND = 1 };

static void one_trip(across *x)
{
    trip r = {.x = x,
              .size = x->b->world / x->nodes,
              .staged = x->b->problem->tuning.staged,
              .stores = x->b->problem->schedule == WEFT_SCHEDULE_MULTIMEM};
    int64_t longest = weft_part(x->b->problem->count, r.size, 0).count, behind;
    int number;

    if (r.size > 1)
        x->kept = declare_scratch(x, "nodesums", 1, longest);
    r.staged = r.staged && r.size > 1;
    if (r.staged)
        declare_copy(x, 1);
    x->inbox = declare_scratch(x, "inbox", x->nodes, longest);
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

static void send_rows(const across *x, weft_two_level *t, int node, int most, weft_span cols)
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
static void send_straight(const across *x, weft_two_level *t, int node, weft_span cols)
{
    int size = weft_two_level_size(t, node);

    for (int i = 0; i < size; i++) {
        int to = t->members[t->first[node] + (t->local[t->me] + i) % size];

        weft_two_level_send(t, weft_row(x->c.recv, to, t->me, cols), weft_row(x->c.send, t->me, to, cols),
                            (weft_wait){0});
    }
}

static void fetch_rows(const across *x, weft_two_level *t, int owner, int most, weft_span cols)
{
    int mine = weft_two_level_node(t, t->me), keeper = weft_two_level_keeper(t, mine, owner);
    weft_wait when = {WEFT_SIGNAL_LANDED(x->b->world, owner), 0};

    for (int run = 0; run < run_count(t, mine); run++) {
        if (keeper == t->me)
            when.count = (uint32_t)weft_two_level_relay(t, owner);
        else
            when = weft_two_level_told(t, keeper);
    }
    copy_when(t, weft_two_level_lane(t), weft_row(x->c.recv, t->me, owner, cols),
              weft_row(x->inbox, keeper,
                       (int64_t)weft_two_level_slot(t, mine, owner) * most + t->local[t->me], cols),
              when);
}

/* A chunk of what the ranks of this node send each other; staged, each copies it for the others first. */
static void exchange_near(const across *x, weft_two_level *t, int64_t chunk)
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
static void fetch_node(const across *x, weft_two_level *t, int node, int most, int64_t chunks)
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

static void all_to_all(across *x)
{
    int64_t count = x->b->problem->count, chunks = weft_cut_count(count, x->c.tile);
    bool straight = x->b->problem->schedule == WEFT_SCHEDULE_PUSH;
    int most = 0; /* ranks of a node, whose rows their keeper has */
    weft_two_level t;

    declare_copy(x, x->b->world);
    t = weft_two_level_begin(x->b, (weft_two_level_map){0});
    for (int node = 0; node < x->nodes && !straight && !x->b->failed; node++)
        most = weft_two_level_size(&t, node) > most ? weft_two_level_size(&t, node) : most;
    if (x->nodes > 1 && !straight)
        x->inbox = declare_scratch(x, "inbox", (int64_t)x->slots * most, count);
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

/* ---- broadcast ----------------------------------------------------------------------------------- */

typedef struct strands {
    across *x;
    weft_two_level t;
    int root, mine; /* the root's node, this rank's */
    int count;      /* of strands: the ranks of the smallest node */
    bool tree;
    bool staged;
} strands;

/* Where a rank has what it holds of a strand for the others of its node: its RECV, or staged, if there are
 * others, its copy. */
static weft_region held(const strands *s, int rank, weft_span cols)
{
    bool copied = s->staged && weft_two_level_size(&s->t, weft_two_level_node(&s->t, rank)) > 1;

    return weft_row(copied ? s->x->copy : s->x->c.recv, rank, 0, cols);
}

static weft_span strand_chunk(const strands *s, int strand, int64_t chunk)
{
    return weft_cut(weft_part(s->x->b->problem->count, s->count, strand), s->x->c.tile, chunk);
}

static int64_t strand_chunks(const strands *s, int strand)
{
    return weft_cut_count(weft_part(s->x->b->problem->count, s->count, strand).count, s->x->c.tile);
}

/* The rank of a node that a strand passes through. */
static int holder(const strands *s, int node, int strand)
{
    return s->t.members[s->t.first[node] + strand];
}

/* The node that a node hears from, and the `child`-th that it sends to, or -1. Places are counted from the
 * root's node. */
static int parent_node(const strands *s, int node)
{
    int place = (node - s->root + s->t.nodes) % s->t.nodes;

    return (s->root + (s->tree ? (place - 1) / 2 : place - 1)) % s->t.nodes;
}

static int child_node(const strands *s, int node, int child)
{
    int place = (node - s->root + s->t.nodes) % s->t.nodes;
    int below = s->tree ? 2 * place + 1 + child : place + 1;

    return below < s->t.nodes && (s->tree || !child) ? (s->root + below) % s->t.nodes : -1;
}

static void pass_down(strands *s, int strand, weft_region from, weft_span cols, weft_wait after)
{
    for (int child = 0; child < 2; child++) {
        int node = child_node(s, s->mine, child);

        if (node >= 0)
            weft_two_level_send(&s->t, held(s, holder(s, node, strand), cols), from, after);
    }
}

/* Staged, the root copies every chunk for the others of its node, who need nobody else. */
static void copy_root(strands *s, int strand, int64_t chunk)
{
    weft_two_level *t = &s->t;
    weft_builder *b = s->x->b;
    int lane = (int)(chunk % t->lanes);
    weft_span cols = strand_chunk(s, strand, chunk);

    weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(b, held(s, t->me, cols));
    weft_builder_from(b, weft_row(s->x->c.send, t->me, 0, cols));
    weft_two_level_tell(t, weft_two_level_summed(t, t->me, lane));
    weft_builder_end(b);
}

/* A chunk that the root has copied; of the strand that this rank holds, if it does, for its wire too. */
static weft_wait take_root(strands *s, int strand, int64_t chunk, bool holds)
{
    weft_two_level *t = &s->t;
    weft_builder *b = s->x->b;
    int root = b->problem->root, lane = (int)(chunk % t->lanes);
    uint32_t signal = weft_two_level_summed(t, root, lane);
    weft_span cols = strand_chunk(s, strand, chunk);
    weft_wait after = {0};

    weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(b, weft_row(s->x->c.recv, t->me, 0, cols));
    weft_builder_from(b, held(s, root, cols));
    weft_builder_wait(b, signal, weft_builder_expect_more(b, signal));
    if (holds)
        after = weft_two_level_tell_wire(t, lane);
    weft_builder_end(b);
    return after;
}

/* This rank holds a strand: it gets a chunk, passes it down, and tells its node. */
static void hold(strands *s, int strand, int64_t chunk)
{
    weft_two_level *t = &s->t;
    weft_builder *b = s->x->b;
    int root = b->problem->root, lane = (int)(chunk % t->lanes), from;
    weft_span cols = strand_chunk(s, strand, chunk);
    weft_region here = weft_row(s->x->c.recv, t->me, 0, cols);
    weft_wait after = {0};

    if (s->mine != s->root) {
        here = held(s, t->me, cols);
        from = holder(s, parent_node(s, s->mine), strand);
        after = (weft_wait){WEFT_SIGNAL_LANDED(b->world, from), (uint32_t)weft_two_level_relay(t, from)};
        if (s->staged && weft_two_level_has_others(t))
            copy_when(t, lane, weft_row(s->x->c.recv, t->me, 0, cols), here, after);
    } else if (t->me == root) {
        here = weft_row(s->x->c.send, root, 0, cols);
    } else {
        weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
        weft_builder_to(b, here);
        weft_builder_from(b, weft_row(s->x->c.send, root, 0, cols));
        weft_two_level_tell(t, weft_two_level_summed(t, t->me, lane));
        if (t->nodes > 1)
            after = weft_two_level_tell_wire(t, lane);
        weft_builder_end(b);
    }
    pass_down(s, strand, here, cols, after);
}

/* A chunk of a strand from the rank of the node that holds it. */
static void fetch_strand(strands *s, int strand, int64_t chunk)
{
    weft_two_level *t = &s->t;
    int from = holder(s, s->mine, strand), root = s->x->b->problem->root, lane = (int)(chunk % t->lanes);
    bool sent = t->me == root || (s->mine == s->root && from == root);
    int64_t chunks = strand_chunks(s, strand);
    weft_span cols = strand_chunk(s, strand, chunk);
    weft_wait when = {weft_two_level_summed(t, from, lane), 0};

    if (s->mine != s->root) {
        when = weft_two_level_told(t, from);
    } else if (from != root && !s->staged) {
        weft_builder_expect(s->x->b, when.signal, (chunks + t->lanes - 1 - lane) / t->lanes);
        when.count = sent ? 0 : (uint32_t)(chunk / t->lanes + 1);
    }
    copy_when(t, sent ? weft_two_level_lane(t) : lane, weft_row(s->x->c.recv, t->me, 0, cols),
              sent ? weft_row(s->x->c.send, root, 0, cols) : held(s, from, cols), when);
}

/* A chunk of every strand, the own first; staged, on the root's node those of all in one order, in which the
 * root copies them. */
static void pass_chunk(strands *s, int64_t chunk)
{
    int strand = s->t.local[s->t.me], root = s->x->b->problem->root;
    bool copied = s->staged && s->mine == s->root && weft_two_level_has_others(&s->t);

    for (int i = 0; i < s->count && copied; i++) {
        int other = (s->t.local[root] + i) % s->count;
        weft_wait after;

        if (chunk >= strand_chunks(s, other))
            continue;
        if (s->t.me == root) {
            copy_root(s, other, chunk);
            continue;
        }
        after = take_root(s, other, chunk, other == strand);
        if (other == strand)
            pass_down(s, other, weft_row(s->x->c.recv, s->t.me, 0, strand_chunk(s, other, chunk)),
                      strand_chunk(s, other, chunk), after);
    }
    if (copied && s->t.me != root)
        return;
    if (strand < s->count && chunk < strand_chunks(s, strand))
        hold(s, strand, chunk);
    for (int i = 0; i < s->count; i++) {
        int other = (strand + i) % s->count;

        if ((other != strand || s->t.me == root) && chunk < strand_chunks(s, other))
            fetch_strand(s, other, chunk);
    }
}

static void broadcast(across *x)
{
    strands s = {.x = x, .count = x->b->world, .staged = x->b->problem->tuning.staged};
    int root = x->b->problem->root;

    declare_copy(x, 1);
    s.t = weft_two_level_begin(x->b, (weft_two_level_map){0});
    if (x->b->failed) {
        weft_two_level_end(&s.t);
        return;
    }
    s.root = weft_two_level_node(&s.t, root);
    s.mine = weft_two_level_node(&s.t, s.t.me);
    for (int node = 0; node < s.t.nodes; node++)
        s.count = weft_two_level_size(&s.t, node) < s.count ? weft_two_level_size(&s.t, node) : s.count;
    s.tree = strand_chunks(&s, 0) < s.t.nodes;
    for (int64_t chunk = 0; chunk < strand_chunks(&s, 0); chunk++)
        pass_chunk(&s, chunk);
    weft_two_level_end(&s.t);
}

void weft_generate_two_level(weft_builder *b)
{
    across x = {.b = b, .slots = weft_two_level_slots(b), .nodes = weft_two_level_nodes(b)};

    x.c = weft_collective_begin(b);
    if (b->problem->op == WEFT_OP_ALL_TO_ALL)
        all_to_all(&x);
    else if (b->problem->op == WEFT_OP_BROADCAST)
        broadcast(&x);
    else if (weft_two_level_takes_one_trip(b->problem, b->domain, b->world))
        one_trip(&x);
    else
        sum_and_spread(&x);
}
