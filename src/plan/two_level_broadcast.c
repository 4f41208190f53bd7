/*
 * A broadcast over nodes. It goes down strands: each is a share of the buffer that passes through one rank of
 * every node, from node to node as a pipeline or, where there are fewer chunks than nodes, down a tree; the
 * others of a node fetch it from that rank.
 */
#include "plan/two_level_across.h"

typedef struct strands {
    weft_across *x;
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
            weft_across_copy_when(t, lane, weft_row(s->x->c.recv, t->me, 0, cols), here, after);
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
    weft_across_copy_when(t, sent ? weft_two_level_lane(t) : lane, weft_row(s->x->c.recv, t->me, 0, cols),
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

void weft_across_broadcast(weft_across *x)
{
    strands s = {.x = x, .count = x->b->world, .staged = x->b->problem->tuning.staged};
    int root = x->b->problem->root;

    weft_across_copy(x, 1);
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
