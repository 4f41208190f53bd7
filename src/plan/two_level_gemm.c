/*
 * The products over nodes whose results travel, in two levels (two_level.h). A result is cut into units, each
 * with an owner: tiles of the owner's block in a gemm_rs, of the columns that it multiplies in a gemm_as,
 * every W-th tile in a gemm_ar.
 *
 *   gemm_rs   The sum of a unit over a node is handed on: it begins at the rank after the unit's keeper
 * there and goes from rank to rank, each product starting from the sums of the one before, to the keeper. The
 * keeper's sum travels to the owner, who adds up the nodes' sums and applies the epilogue. Units of other
 * nodes come first, those of the node after it before others; the own node's last. Of each node a share of
 * every owner's units at a time, so that what is summed first travels meanwhile.
 * Order of a sum: nodes in order; of a node, from the rank after its keeper around to the keeper. With two
 * nodes the other's sum goes to the rank after the owner, where the sum of the owner's node begins from it:
 * nobody only adds. Then, and with one node, the owner's product is the last. gemm_ar   The same, and the
 * owner stores what it has finished to its node and sends it to its keepers elsewhere, from whom the other
 * ranks fetch it. gemm_as   The owner multiplies alone, and its tiles go the same way.
 *
 * Staged, the owner leaves what it has finished in its own memory, too, and the others of its node fetch it.
 * Over nodes such memory has a unit in one piece, as it travels, and what comes from other nodes lands there
 * for all of the node.
 */
#include "core/round.h"
#include "plan/stream_k.h"
#include "plan/two_level.h"

#include <stdlib.h>

enum {
    SHARES = 4, /* of an owner's units: each more hides more of the network behind the node's links */
    SHARED_LANES = 8,
};

/* A tile of an owner's block. */
typedef struct tile {
    weft_span rows, cols;
} tile;

/* What an owner's units are cut from. Found once for all of them: plans for new sizes are made beside runs.
 */
typedef struct grid {
    weft_span block, rows;
    weft_column_cuts cols;
    int64_t inside, tiles, units; /* of a batch; of all: of a gemm_ar its owners take them in turn */
    tile *cut;                    /* [inside]; owners of blocks of one size share it */
} grid;

typedef struct across {
    weft_gemm_gen gen;
    weft_two_level t;
    weft_op op;
    bool by_rows;   /* a block is some of the rows */
    bool two_nodes; /* products start from the sums of the other; else they are added up in the end */
    int64_t tile_m, tile_n, grain_n;
    grid *grids;                  /* [owner] */
    int64_t most;                 /* units of an owner */
    int shares;                   /* of them, each summed over a node before the next is begun */
    int64_t slot_rows, slot_cols; /* of a unit kept somewhere */
    uint32_t partial, own, kept,
        inbox;        /* operands: sums handed on; a node's in the end, and where it travels */
    uint32_t arrived; /* [lane] sums of the predecessor */
    uint32_t left;    /* staged on one node: [owner][unit] a result that is left for the others */
    uint32_t results; /* staged over nodes: operand for finished units, by owner */
} across;

/* A unit: where it is in the product of this rank's A and B, and in D. */
typedef struct unit {
    int64_t batch;
    weft_span rows, cols;
    weft_span d_rows, d_cols;
} unit;

static weft_span block_of(const across *x, int owner)
{
    const weft_problem *p = x->gen.problem;

    if (x->op == WEFT_OP_GEMM_AR)
        return weft_whole(p->n);
    return x->by_rows ? weft_problem_part_m(p, x->gen.world, owner)
                      : weft_problem_part_n(p, x->gen.world, owner);
}

/* All tiles of a block, row by row: columns are divided for the first row alone. */
static tile *cut_block(const grid *g, int64_t tile_m)
{
    tile *cut = malloc((size_t)(g->inside + 1) * sizeof(*cut)), *next = cut;
    int64_t columns = g->cols.count;

    for (int64_t row = 0; cut && next < cut + g->inside; row++) {
        weft_span rows = weft_cut(g->rows, tile_m, row);

        for (int64_t col = 0; col < columns; col++)
            *next++ = (tile){rows, row ? cut[col].cols : weft_column_cut(&g->cols, col)};
    }
    return cut;
}

static grid grid_of(const across *x, int owner)
{
    const weft_problem *p = x->gen.problem;
    weft_span block = block_of(x, owner);
    grid g = {.block = block,
              .rows = weft_whole(x->by_rows ? block.count : p->m),
              .cols =
                  weft_column_cuts_of(weft_whole(x->by_rows ? p->n : block.count), x->tile_n, x->grain_n)};

    g.inside = weft_cut_count(g.rows.count, x->tile_m) * g.cols.count;
    g.tiles = p->l * g.inside;
    g.units = x->op == WEFT_OP_GEMM_AR ? weft_part(g.tiles, x->gen.world, owner).count : g.tiles;
    return g;
}

/* Owners of blocks of one size: neighbours, of which there are few kinds. */
static bool is_alike(const grid *one, const grid *other)
{
    return one->rows.count == other->rows.count && one->cols.span.count == other->cols.span.count;
}

static bool make_grids(across *x)
{
    x->grids = malloc((size_t)x->gen.world * sizeof(*x->grids));
    for (int owner = 0; owner < x->gen.world && x->grids; owner++) {
        grid *g = &x->grids[owner];

        *g = grid_of(x, owner);
        g->cut = owner && is_alike(g, g - 1) ? g[-1].cut : cut_block(g, x->tile_m);
        if (!g->cut)
            return false;
    }
    return x->grids;
}

static void free_grids(across *x)
{
    for (int owner = 0; owner < x->gen.world && x->grids && x->grids[owner].cut; owner++)
        if (owner + 1 == x->gen.world || x->grids[owner].cut != x->grids[owner + 1].cut)
            free(x->grids[owner].cut);
    free(x->grids);
}

static int64_t units(void *context, int owner)
{
    const across *x = context;

    return x->grids[owner].units;
}

static unit unit_at(const across *x, int owner, int64_t number)
{
    const grid *g = &x->grids[owner];
    int64_t of_all = x->op == WEFT_OP_GEMM_AR ? number * x->gen.world + owner : number;
    int64_t batch = g->inside == g->tiles ? 0 : weft_quotient(of_all, g->inside);
    const tile *cut = &g->cut[of_all - batch * g->inside];
    unit u = {.batch = batch, .d_rows = cut->rows, .d_cols = cut->cols};

    u.rows = u.d_rows;
    u.cols = u.d_cols;
    if (x->op == WEFT_OP_GEMM_AS)
        u.d_cols.begin += g->block.begin;
    else if (x->by_rows)
        u.rows.begin += g->block.begin;
    else
        u.cols.begin += g->block.begin;
    return u;
}

/* The units of earlier owners, about: those with few do not all begin with the same lane. */
static int64_t turn(void *context, int owner)
{
    const across *x = context;

    if (x->op == WEFT_OP_GEMM_AR)
        return weft_part(x->grids[owner].tiles, x->gen.world, owner).begin;
    return owner * units(context, owner);
}

static weft_region in_result(const across *x, int rank, const unit *u)
{
    return weft_region_make(x->gen.d, rank, u->batch, u->d_rows, u->d_cols);
}

static weft_region origin(void *context, int owner, int64_t number)
{
    const across *x = context;
    unit u = unit_at(x, owner, number);

    return in_result(x, owner, &u);
}

static weft_region result(void *context, int rank, int owner, int64_t number)
{
    const across *x = context;
    unit u = unit_at(x, owner, number);

    return in_result(x, rank, &u);
}

/* Unit `number` of slot `slot` of scratch memory: units lie one below the other. */
static weft_region in_slot(const across *x, uint32_t operand, int rank, int64_t slot, int64_t number,
                           const unit *u)
{
    weft_span rows = {(slot * x->most + number) * x->slot_rows, u->rows.count};

    return weft_region_make(operand, rank, 0, rows, weft_whole(u->cols.count));
}

static weft_region shared(void *context, int rank, int owner, int64_t number)
{
    const across *x = context;
    unit u = unit_at(x, owner, number);

    return in_slot(x, x->results, rank, owner, number, &u);
}

static uint32_t declare_slots(across *x, const char *name, int64_t slots)
{
    return weft_gemm_staging(&x->gen, name, slots * x->most * x->slot_rows, x->slot_cols, 1);
}

static void add_product(across *x, const unit *u)
{
    weft_gemm_gen *gen = &x->gen;

    weft_builder_from(gen->builder, weft_region_make(gen->a, gen->me, u->batch, u->rows, gen->local_k));
    weft_builder_from(gen->builder,
                      weft_region_make(gen->b_source, gen->me, u->batch, gen->local_k, u->cols));
}

/* The destinations of a finished unit of this rank: D, of a result that all have everyone's in the node. */
static void to_result(across *x, int lane, int64_t number, const unit *u)
{
    weft_two_level *t = &x->t;
    int node = weft_two_level_node(t, t->me), size = weft_two_level_size(t, node);

    if (x->gen.problem->tuning.staged && t->nodes == 1) {
        weft_gemm_to_all(&x->gen, u->batch, u->d_rows, u->d_cols,
                         x->left + (uint32_t)(t->me * x->most + number));
        return;
    }
    if (x->gen.problem->tuning.staged && size > 1) {
        weft_builder_to(x->gen.builder, in_result(x, t->me, u));
        weft_builder_to(x->gen.builder, shared(x, t->me, t->me, number));
        weft_two_level_tell(t, weft_two_level_summed(t, t->me, lane));
        return;
    }
    for (int i = 0; i < (x->op == WEFT_OP_GEMM_RS ? 1 : size); i++) {
        int rank = t->members[t->first[node] + (t->local[t->me] + i) % size];

        weft_builder_to(x->gen.builder, in_result(x, rank, u));
    }
}

/* A finished unit that travels on. */
static void tell_of_result(across *x, int lane)
{
    if (x->op != WEFT_OP_GEMM_RS && x->t.nodes > 1)
        weft_two_level_tell_wire(&x->t, lane);
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* A slot of the inbox of ranks of node `mine` for the sums of `node`. */
static int inbox_slot(int mine, int node)
{
    return node < mine ? node : node - 1;
}

static int rank_after(const weft_two_level *t, int rank)
{
    int node = weft_two_level_node(t, rank);

    return t->members[t->first[node] + (t->local[rank] + 1) % weft_two_level_size(t, node)];
}

/* A node's sum of an owner's unit elsewhere, once it is kept. */
static void send_kept(across *x, int owner, int64_t number, const unit *u, weft_region kept, weft_wait after)
{
    weft_two_level *t = &x->t;
    int slot = inbox_slot(weft_two_level_node(t, owner), weft_two_level_node(t, t->me));

    weft_two_level_send(t, in_slot(x, x->inbox, x->two_nodes ? rank_after(t, owner) : owner, slot, number, u),
                        kept, after);
}

/*
 * What this rank adds to one owner's units, as the `place`-th of its node to do so. The predecessor goes
 * through the owners in the same order, one place behind, and has a unit in the same lane: so signal
 * `arrived` of a lane says how many of them are here.
 */
static void hand_on_units(across *x, int owner, int place, int slot, int share)
{
    weft_gemm_gen *gen = &x->gen;
    weft_two_level *t = &x->t;
    weft_builder *b = gen->builder;
    int mine = weft_two_level_node(t, t->me), size = weft_two_level_size(t, mine),
        next = rank_after(t, t->me);
    bool near = weft_two_level_node(t, owner) == mine, from_far = place == 0 && near && x->two_nodes;
    bool last = place == size - 1, finish = last && near && (t->nodes == 1 || x->two_nodes);
    weft_span mine_now = weft_part(units(x, owner), x->shares, share);
    int lane = weft_two_level_unit_lane(t, owner, mine_now.begin);

    for (int64_t i = mine_now.begin; i < mine_now.begin + mine_now.count;
         i++, lane = lane + 1 < t->lanes ? lane + 1 : 0) {
        unit u = unit_at(x, owner, i);
        weft_region kept =
            near ? in_slot(x, x->own, t->me, 0, i, &u) : in_slot(x, x->kept, t->me, slot, i, &u);
        weft_wait after = {0};

        weft_gemm_open(gen, lane, WEFT_TASK_GEMM, finish, place > 0 || from_far);
        if (finish)
            to_result(x, lane, i, &u);
        else
            weft_builder_to(b, last ? kept : in_slot(x, x->partial, next, owner, i, &u));
        add_product(x, &u);
        if (place > 0) {
            uint32_t signal = x->arrived + (uint32_t)lane;

            weft_builder_from(b, in_slot(x, x->partial, t->me, owner, i, &u));
            weft_builder_wait(b, signal, weft_builder_expect_more(b, signal));
        } else if (from_far) {
            int from = weft_two_level_keeper(t, 1 - mine, owner);

            weft_builder_from(b, in_slot(x, x->inbox, t->me, 0, i, &u));
            weft_builder_wait(b, WEFT_SIGNAL_LANDED(b->world, from), weft_builder_lands(b, from));
        }
        if (!last)
            weft_builder_post(b, x->arrived + (uint32_t)lane, next);
        else if (finish)
            tell_of_result(x, lane);
        else if (!near)
            after = weft_two_level_tell_wire(t, lane);
        weft_gemm_close(gen, finish, u.batch, u.d_rows, u.d_cols);
        if (after.count)
            send_kept(x, owner, i, &u, kept, after);
    }
}

/* To a share of the units of each of a node's ranks; `slot` is that of its first owner. Returns the next
 * node's. */
static int hand_on_share(across *x, int node, int slot, int share)
{
    weft_two_level *t = &x->t;
    int size = weft_two_level_size(t, weft_two_level_node(t, t->me));

    for (int place = 0; place < size; place++) {
        int keeper = (t->local[t->me] + 2 * size - 1 - place) % size;

        for (int i = keeper; i < weft_two_level_size(t, node); i += size) {
            int owner = t->members[t->first[node] + i];

            hand_on_units(x, owner, place, slot, share);
            slot += place == size - 1 && owner != t->me;
        }
    }
    return slot;
}

/* To all units of a node's ranks. */
static void hand_on_node(across *x, int node, int *slot)
{
    int next = *slot;

    for (int share = 0; share < x->shares; share++)
        next = hand_on_share(x, node, *slot, share);
    *slot = next;
}

/* The owner adds up the nodes' sums. */
static void add_nodes(across *x)
{
    weft_gemm_gen *gen = &x->gen;
    weft_two_level *t = &x->t;
    weft_builder *b = gen->builder;
    int mine = weft_two_level_node(t, t->me);
    int64_t count = units(x, t->me);

    for (int64_t i = 0; i < count; i++) {
        unit u = unit_at(x, t->me, i);
        int lane = weft_two_level_unit_lane(t, t->me, i);

        weft_gemm_open(gen, lane, WEFT_TASK_REDUCE, true, false);
        to_result(x, lane, i, &u);
        for (int node = 0; node < t->nodes; node++)
            weft_builder_from(b, node == mine ? in_slot(x, x->own, t->me, 0, i, &u)
                                              : in_slot(x, x->inbox, t->me, inbox_slot(mine, node), i, &u));
        for (int node = 0; node < t->nodes; node++) {
            int from = weft_two_level_keeper(t, node, t->me);

            if (node != mine)
                weft_builder_wait(b, WEFT_SIGNAL_LANDED(b->world, from), weft_builder_lands(b, from));
        }
        tell_of_result(x, lane);
        weft_gemm_close(gen, true, u.batch, u.d_rows, u.d_cols);
    }
}

static void declare_sums(across *x)
{
    const weft_problem *p = x->gen.problem;

    if (x->gen.world > 1) {
        x->partial = declare_slots(x, "partial", x->gen.world);
        if (x->by_rows || x->op == WEFT_OP_GEMM_AR) /* other blocks begin where panels of B do not */
            weft_gemm_hand_on(&x->gen, x->partial);
    }
    if (weft_two_level_nodes(x->gen.builder) == 1)
        return;
    x->kept = declare_slots(x, "nodesums", weft_two_level_slots(x->gen.builder));
    x->inbox = declare_slots(x, "inbox", weft_two_level_nodes(x->gen.builder) - 1);
    if (x->two_nodes)
        return;
    x->own =
        weft_builder_operand(x->gen.builder, (weft_operand){.name = "own", /* of the type it is added to */
                                                            .place = WEFT_PLACE_PRIVATE,
                                                            .dtype = p->wire_dtype,
                                                            .rows = x->most * x->slot_rows,
                                                            .cols = x->slot_cols,
                                                            .batch = 1});
}

static void sum(across *x)
{
    int slot = 0;

    for (int step = 1; step <= x->t.nodes; step++)
        hand_on_node(x, weft_two_level_receiver(&x->t, step), &slot);
    if (x->t.nodes > 1 && !x->two_nodes)
        add_nodes(x);
}

/* ---- what needs no sum --------------------------------------------------------------------------- */

static void multiply_own(across *x)
{
    weft_gemm_gen *gen = &x->gen;
    int64_t count = units(x, gen->me);

    for (int64_t i = 0; i < count; i++) {
        unit u = unit_at(x, gen->me, i);
        int lane = weft_two_level_unit_lane(&x->t, gen->me, i);

        weft_gemm_open(gen, lane, WEFT_TASK_GEMM, true, false);
        to_result(x, lane, i, &u);
        add_product(x, &u);
        tell_of_result(x, lane);
        weft_gemm_close(gen, true, u.batch, u.d_rows, u.d_cols);
    }
}

/* What the others of the one node have left, in the order in which they finish it. */
static void fetch_results(across *x)
{
    weft_gemm_gen *gen = &x->gen;

    for (int64_t number = 0; number < x->most; number++)
        for (int step = 1; step < gen->world; step++) {
            int owner = weft_rotate(gen->me, step, gen->world);
            unit u;

            if (number >= units(x, owner))
                continue;
            u = unit_at(x, owner, number);
            weft_gemm_fetch(gen, owner, u.batch, u.d_rows, u.d_cols,
                            x->left + (uint32_t)(owner * x->most + number));
        }
}

/* A rank keeps the sums to which it adds last. Were all units of one owner followed by all of the next, they
 * would come at the end, all at once: the network would have nothing to do until then, and what begins from
 * them would wait for it. Every lane has a unit of each share. Not with few lanes, as ranks have that share a
 * CPU's cores: there each share is one more time that a rank waits for the one before, and was not measured.
 */
static int shares_of(const across *x)
{
    int64_t rounds = x->most / x->gen.lanes;

    if (weft_two_level_nodes(x->gen.builder) == 1 || x->gen.lanes < SHARED_LANES)
        return 1;
    return (int)weft_max(1, weft_min(rounds, SHARES));
}

void weft_generate_two_level_gemm(weft_builder *builder)
{
    const weft_problem *p = builder->problem;
    across x = {.gen = weft_gemm_begin(builder),
                .op = p->op,
                .by_rows = p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_SCATTER_ROWS,
                .two_nodes = weft_two_level_nodes(builder) == 2,
                .tile_m = p->tuning.tile_m,
                .tile_n = p->tuning.tile_n,
                .grain_n = p->tuning.grain_n};
    bool leaves = p->tuning.staged && !builder->domain;

    if (x.op == WEFT_OP_GEMM_AR)
        x.tile_n = weft_stream_k_width(p, p->n, 2 * (int64_t)builder->world);
    if (!make_grids(&x)) {
        builder->failed = true;
        free_grids(&x);
        return;
    }
    x.most = units(&x, 0);
    x.shares = shares_of(&x);
    x.slot_rows = weft_cut(x.grids[0].rows, x.tile_m, 0).count;
    x.slot_cols = x.grids[0].cols.span.count;
    if (x.tile_n && weft_widest(x.tile_n, x.grain_n) < x.slot_cols)
        x.slot_cols = weft_widest(x.tile_n, x.grain_n);
    weft_gemm_declare_packed(&x.gen);
    if (x.op != WEFT_OP_GEMM_AS)
        declare_sums(&x);
    if (leaves) {
        weft_gemm_declare_copiers(&x.gen);
        x.left = weft_builder_signals(builder, builder->world * x.most);
    } else if (p->tuning.staged) {
        x.results =
            weft_builder_operand(builder, (weft_operand){.name = "results",
                                                         .place = WEFT_PLACE_STAGING,
                                                         .dtype = p->d_dtype,
                                                         .rows = builder->world * x.most * x.slot_rows,
                                                         .cols = x.slot_cols,
                                                         .batch = 1});
    }
    x.arrived = weft_builder_signals(builder, x.gen.lanes);
    x.t = weft_two_level_begin(builder, (weft_two_level_map){.units = units,
                                                             .turn = turn,
                                                             .origin = origin,
                                                             .result = result,
                                                             .shared = x.results ? shared : NULL,
                                                             .stored = !x.results,
                                                             .context = &x});
    if (!builder->failed) {
        weft_gemm_pack(&x.gen);
        if (x.op == WEFT_OP_GEMM_AS)
            multiply_own(&x);
        else
            sum(&x);
        x.t.sums = true;
        if (leaves)
            fetch_results(&x);
        else if (x.op != WEFT_OP_GEMM_RS)
            weft_two_level_spread(&x.t);
    }
    weft_two_level_end(&x.t);
    free_grids(&x);
}
