/*
 * All-gather + GEMM. Rank r holds rows part r of A and columns part r of B.
 *   gather a: D[m x part r of n], A travels.    gather b: D[part r of m x n], B travels.
 *
 * - direct: tasks read the peer's operand in place; where B is packed in the run, it is packed straight from
 *   the peer's memory.
 * - rotating: copy lanes fetch the peers' shards piece by piece, and a task starts when its piece is there;
 *   with many copiers they fetch every piece together, in chunks of k, and a tile goes on with its sum as the
 *   chunks come.
 * - two_level: over nodes; see two_level.h. A shard goes to one rank of each other node, piece by piece, and
 *   all of that node read it there, those of the own node where they are; with copiers, copy lanes fetch both
 *   first, for machines where what is read again and again had better be near.
 * - unfused: everything is fetched first, then multiplied. Few rows of A are multiplied all at once: what
 *   their product takes is reading B, which for each shard by itself would be read as often as there are
 *   ranks.
 *
 * The own shard comes first, then the peers' in rotation. No sum crosses ranks: the order of every sum is
 * that of the local GEMM.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "plan/gemm_parts.h"
#include "plan/staged.h"
#include "plan/two_level.h"

#include <stdio.h>

typedef struct ag_gemm {
    weft_gemm_gen gen;
    uint32_t gathered;     /* operand the peers' shards are fetched into, plain or packed */
    int64_t slot;          /* columns between shards in a packed one; 0: shards lie at their global place */
    int copy_lanes;        /* lane gen.lanes is the first */
    uint32_t signal;       /* rotating: one per copy lane; unfused: the first */
    int64_t fetched[2];    /* by each copy lane so far */
    int64_t chunks;        /* of k, in which pieces come when all copy lanes fetch them together */
    uint32_t carry;        /* operand for a lane's sum between chunks */
    int64_t bands;         /* copy tasks dealt to the copy lanes so far */
    weft_two_level *level; /* two_level: where shards of other nodes are gathered */
    uint32_t near;         /* two_level with copiers: operand for what peers of the node hold */
} ag_gemm;

enum { COPY_LANES_USUAL = 2 };

static bool gathers_a(const ag_gemm *ag)
{
    return ag->gen.problem->layout == WEFT_LAYOUT_GATHER_A;
}

/* The extent that is gathered, and what of it lies on a rank. */
static weft_span shard(const ag_gemm *ag, int rank)
{
    const weft_problem *p = ag->gen.problem;

    return gathers_a(ag) ? weft_problem_part_m(p, ag->gen.world, rank)
                         : weft_problem_part_n(p, ag->gen.world, rank);
}

/* The local extent of the other operand: columns of B, or rows of A. */
static int64_t local_extent(const ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;

    return (gathers_a(ag) ? weft_problem_part_n(p, ag->gen.world, ag->gen.me)
                          : weft_problem_part_m(p, ag->gen.world, ag->gen.me))
        .count;
}

static int64_t gathered_tile(const ag_gemm *ag)
{
    return gathers_a(ag) ? ag->gen.problem->tuning.tile_m : ag->gen.problem->tuning.tile_n;
}

/* Pieces in which a shard is fetched and used: the i-th of `extent` rows or columns. */
static int64_t piece_count(const ag_gemm *ag, int64_t extent)
{
    return gathers_a(ag) ? weft_cut_count(extent, gathered_tile(ag))
                         : weft_cut_columns_count(extent, gathered_tile(ag), ag->gen.problem->tuning.grain_n);
}

static weft_span piece_of(const ag_gemm *ag, int64_t extent, int64_t index)
{
    return gathers_a(ag) ? weft_cut(weft_whole(extent), gathered_tile(ag), index)
                         : weft_cut_columns(weft_whole(extent), gathered_tile(ag),
                                            ag->gen.problem->tuning.grain_n, index);
}

/* Where `k` of piece `piece` of `rank`'s shard (counted from the shard's start) lies in the gathered operand.
 */
static weft_region in_gathered(const ag_gemm *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    int holder = ag->gen.me;

    if (ag->level) {
        int node = weft_two_level_node(ag->level, holder);

        holder = weft_two_level_keeper(ag->level, node, rank);
        piece.begin += weft_two_level_slot(ag->level, node, rank) * shard(ag, 0).count;
    } else {
        piece.begin += ag->slot ? rank * ag->slot : shard(ag, rank).begin;
    }
    return gathers_a(ag) ? weft_region_make(ag->gathered, holder, batch, piece, k)
                         : weft_region_make(ag->gathered, holder, batch, k, piece);
}

/* The same piece in its owner's memory. */
static weft_region in_place(const ag_gemm *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    return gathers_a(ag) ? weft_region_make(ag->gen.a, rank, batch, piece, k)
                         : weft_region_make(ag->gen.b, rank, batch, k, piece);
}

/* And in the operand for what peers of the node hold. */
static weft_region in_near(const ag_gemm *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    piece.begin += shard(ag, rank).begin;
    return gathers_a(ag) ? weft_region_make(ag->near, ag->gen.me, batch, piece, k)
                         : weft_region_make(ag->near, ag->gen.me, batch, k, piece);
}

/* Where a shard is read. */
typedef enum ag_source { FROM_PLACE, FROM_GATHERED, FROM_NEAR } ag_source;

/* A tile of the result: a piece of a shard with a cut of the other operand. */
typedef struct ag_tile {
    int rank;
    int64_t batch;
    weft_span piece, cut;
} ag_tile;

static int64_t cut_count(const ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;

    return gathers_a(ag) ? weft_cut_columns_count(local_extent(ag), p->tuning.tile_n, p->tuning.grain_n)
                         : weft_cut_count(local_extent(ag), p->tuning.tile_m);
}

/* Tile `number` of a group: the group's pieces side by side, so that neighbours in time share both operands.
 */
static ag_tile tile_of(const ag_gemm *ag, int rank, int64_t batch, weft_span group, int64_t number)
{
    const weft_problem *p = ag->gen.problem;
    weft_span other = weft_whole(local_extent(ag));

    return (ag_tile){rank, batch, piece_of(ag, shard(ag, rank).count, group.begin + number % group.count),
                     gathers_a(ag)
                         ? weft_cut_columns(other, p->tuning.tile_n, p->tuning.grain_n, number / group.count)
                         : weft_cut(other, p->tuning.tile_m, number / group.count)};
}

/* Pieces are taken in groups: the i-th of a shard. */
static weft_span group_of(const ag_gemm *ag, int rank, int64_t index)
{
    int64_t size = ag->gen.problem->tuning.raster > 0 ? ag->gen.problem->tuning.raster : 1;

    return weft_cut(weft_whole(piece_count(ag, shard(ag, rank).count)), size, index);
}

static int64_t group_count(const ag_gemm *ag, int rank)
{
    int64_t size = ag->gen.problem->tuning.raster > 0 ? ag->gen.problem->tuning.raster : 1;

    return weft_cut_count(piece_count(ag, shard(ag, rank).count), size);
}

/* The product of one tile over `k`, `source` being where the shard is read; to D, or to the lane's carry. */
static void multiply(ag_gemm *ag, int lane, const ag_tile *t, weft_region source, weft_span k, bool first,
                     bool last, uint32_t signal, int64_t count)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    bool by_rows = gathers_a(ag);
    weft_span global = {shard(ag, t->rank).begin + t->piece.begin, t->piece.count};
    weft_span rows = by_rows ? global : t->cut, cols = by_rows ? t->cut : global;
    int64_t slot = gen->problem->tuning.tile_m ? gen->problem->tuning.tile_m : gen->problem->m;
    weft_region carry =
        weft_region_make(ag->carry, gen->me, 0, (weft_span){lane * slot, rows.count}, weft_whole(cols.count));

    weft_gemm_open(gen, lane, WEFT_TASK_GEMM, last, !first);
    if (!last)
        weft_builder_carries(b);
    weft_builder_to(b, last ? weft_region_make(gen->d, gen->me, t->batch, rows, cols) : carry);
    weft_builder_from(b, by_rows ? source : weft_region_make(gen->a, gen->me, t->batch, t->cut, k));
    weft_builder_from(b, by_rows ? weft_region_make(gen->b_source, gen->me, t->batch, k, t->cut) : source);
    if (!first)
        weft_builder_from(b, carry);
    weft_builder_wait(b, signal, count);
    weft_gemm_close(gen, last, t->batch, rows, cols);
}

/* All tiles of one group, each a task that waits for `count` posts of `signal` when count is not 0. */
static void multiply_group(ag_gemm *ag, int rank, int64_t batch, weft_span group, ag_source from,
                           uint32_t signal, int64_t count)
{
    weft_span k = ag->gen.local_k;

    for (int64_t i = 0; i < group.count * cut_count(ag); i++) {
        ag_tile t = tile_of(ag, rank, batch, group, i);

        if (rank == ag->gen.me)
            weft_staged_next(ag->gen.builder);
        weft_region source = from == FROM_GATHERED ? in_gathered(ag, rank, batch, t.piece, k)
                             : from == FROM_NEAR   ? in_near(ag, rank, batch, t.piece, k)
                                                   : in_place(ag, rank, batch, t.piece, k);

        multiply(ag, weft_gemm_lane(&ag->gen), &t, source, k, true, true, signal, count);
    }
}

static void multiply_shard(ag_gemm *ag, int rank, ag_source from, uint32_t signal, int64_t count)
{
    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++)
        for (int64_t i = 0; i < group_count(ag, rank); i++)
            multiply_group(ag, rank, batch, group_of(ag, rank, i), from, signal, count);
}

/*
 * Fetches one shard into the gathered operand by tasks of the compute lanes, each posting `signal` here
 * when there are several lanes. Returns the number of tasks.
 */
static int64_t fetch_shard(ag_gemm *ag, int rank, uint32_t signal)
{
    weft_gemm_gen *gen = &ag->gen;
    int64_t extent = shard(ag, rank).count, tile = gathered_tile(ag), tasks = 0;
    bool packs = gen->builder->failed || gen->builder->part.operands[ag->gathered].packed;
    weft_shares shares = gathers_a(ag)
                             ? weft_shares_of(gen->problem, weft_whole(extent), gen->local_k, tile, 0)
                             : weft_shares_of(gen->problem, gen->local_k, weft_whole(extent), 0, tile);
    int64_t count = packs ? piece_count(ag, extent) : weft_shares_count(&shares);

    for (int64_t batch = 0; batch < gen->problem->l && gen->local_k.count; batch++) {
        for (int64_t i = 0; i < count; i++, tasks++) {
            weft_span piece = weft_whole(extent), k = gen->local_k;

            if (packs)
                piece = piece_of(ag, extent, i);
            else
                weft_share(&shares, i, gathers_a(ag) ? &piece : &k, gathers_a(ag) ? &k : &piece);
            weft_builder_task(gen->builder, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
            weft_builder_to(gen->builder, in_gathered(ag, rank, batch, piece, k));
            weft_builder_from(gen->builder, in_place(ag, rank, batch, piece, k));
            if (gen->lanes > 1)
                weft_builder_post(gen->builder, signal, gen->me);
            weft_builder_end(gen->builder);
        }
    }
    return tasks;
}

static uint32_t private_operand(ag_gemm *ag, const char *name, int64_t rows, int64_t cols, bool packed)
{
    const weft_problem *p = ag->gen.problem;
    weft_operand operand = {.place = WEFT_PLACE_PRIVATE,
                            .dtype = p->dtype,
                            .rows = rows,
                            .cols = cols,
                            .transposed = !packed && (gathers_a(ag) ? p->transa : p->transb),
                            .packed = packed,
                            .paired = !gathers_a(ag) && weft_problem_is_gated(p),
                            .batch = p->l};

    for (int i = 0; name[i]; i++)
        operand.name[i] = name[i];
    return weft_builder_operand(ag->gen.builder, operand);
}

/* A packed operand that holds every rank's shard of B, each from a column where a window may start. */
static void declare_packed_shards(ag_gemm *ag)
{
    int64_t longest = shard(ag, 0).count;

    ag->slot = weft_round_up(longest, WEFT_PACK_COLUMNS);
    ag->gathered = private_operand(ag, "packedB", ag->gen.problem->k, ag->slot * ag->gen.world, true);
}

/* Declares where fetched shards go; true when fetching a shard of B packs it. */
static bool declare_gathered(ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;

    if (gathers_a(ag)) {
        weft_gemm_declare_packed(&ag->gen);
        ag->gathered = private_operand(ag, "gatheredA", p->m, p->k, false);
    } else if (p->b_form == WEFT_B_PACK_IN_RUN) {
        declare_packed_shards(ag);
        return true;
    } else {
        ag->gathered = private_operand(ag, "gatheredB", p->k, p->n, false);
    }
    return false;
}

static void direct(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    bool pack = !gathers_a(ag) && gen->problem->b_form == WEFT_B_PACK_IN_RUN,
         copied = gen->problem->tuning.staged && weft_staged_by_copiers(gen->problem);
    uint32_t fetched = weft_builder_signals(gen->builder, pack ? gen->world : 0);

    if (gathers_a(ag))
        weft_gemm_declare_packed(gen);
    else if (pack)
        declare_packed_shards(ag);
    if (copied) {
        weft_gemm_declare_copiers(gen);
        weft_staged_rest(gen->builder);
    }
    weft_gemm_pack(gen);
    for (int step = 0; step < gen->world; step++) {
        int rank = weft_rotate(gen->me, step, gen->world);
        int64_t tasks = pack && local_extent(ag) ? fetch_shard(ag, rank, fetched + (uint32_t)step) : 0;

        if (gen->lanes == 1)
            tasks = 0;
        if (tasks)
            weft_builder_expect(gen->builder, fetched + (uint32_t)step, tasks);
        multiply_shard(ag, rank, pack ? FROM_GATHERED : FROM_PLACE, fetched + (uint32_t)step, tasks);
        weft_staged_rest(gen->builder);
    }
}

/* One shard, piece by piece, which the copy lanes take in turn: so they come in the order in which they are
 * needed. Each is multiplied when it has arrived. */
static void rotate_shard(ag_gemm *ag, int rank)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int64_t extent = shard(ag, rank).count;

    for (int64_t batch = 0; batch < gen->problem->l; batch++) {
        for (int64_t i = 0; i < piece_count(ag, extent); i++) {
            weft_span piece = piece_of(ag, extent, i);
            int copy = (int)(ag->bands++ % ag->copy_lanes);
            uint32_t signal = ag->signal + (uint32_t)copy;

            weft_builder_task(b, gen->lanes + copy, WEFT_TASK_COPY, 0);
            weft_builder_to(b, in_gathered(ag, rank, batch, piece, gen->local_k));
            weft_builder_from(b, in_place(ag, rank, batch, piece, gen->local_k));
            weft_builder_post(b, signal, gen->me);
            weft_builder_end(b);
            multiply_group(ag, rank, batch, (weft_span){i, 1}, FROM_GATHERED, signal, ++ag->fetched[copy]);
        }
    }
}

/* ---- all copy lanes together ------------------------------------------------------------------------- */

static weft_span chunk_of(const ag_gemm *ag, int64_t chunk)
{
    return ag->chunks == 1 ? ag->gen.local_k
                           : weft_cut(ag->gen.local_k, ag->gen.problem->tuning.chunk_k, chunk);
}

/* The signal that says how much of a chunk of a piece is there; pieces are numbered by rank, batch, place. */
static uint32_t chunk_signal(const ag_gemm *ag, int rank, int64_t batch, int64_t piece, int64_t chunk)
{
    int64_t most = piece_count(ag, shard(ag, 0).count);

    return ag->signal + (uint32_t)(((rank * ag->gen.problem->l + batch) * most + piece) * ag->chunks + chunk);
}

static int64_t chunk_signals(const ag_gemm *ag)
{
    int64_t most = piece_count(ag, shard(ag, 0).count);

    return ag->gen.world * ag->gen.problem->l * most * ag->chunks;
}

/* Copies are cut along the lines in memory, into bands; those that pack are not. */
static int64_t band_lines(const ag_gemm *ag, weft_span piece, weft_span k)
{
    if (ag->slot)
        return k.count;

    return weft_band_lines((gathers_a(ag) ? k.count : piece.count) *
                           (int64_t)weft_dtype_size(ag->gen.problem->dtype));
}

/* One chunk of a piece, its bands dealt to the copy lanes in turn. Returns how many bands there are. */
static int64_t fetch_chunk(ag_gemm *ag, int rank, int64_t batch, weft_span piece, weft_span k,
                           uint32_t signal)
{
    weft_builder *b = ag->gen.builder;
    weft_span lines = gathers_a(ag) ? piece : k;
    int64_t band = band_lines(ag, piece, k), bands = weft_cut_count(lines.count, band);

    for (int64_t i = 0; i < bands; i++) {
        weft_span cut = weft_cut(lines, band, i);
        weft_span part = gathers_a(ag) ? cut : piece, depth = gathers_a(ag) ? k : cut;

        weft_builder_task(b, ag->gen.lanes + (int)(ag->bands++ % ag->copy_lanes), WEFT_TASK_COPY, 0);
        weft_builder_to(b, in_gathered(ag, rank, batch, part, depth));
        weft_builder_from(b, in_place(ag, rank, batch, part, depth));
        weft_builder_post(b, signal, ag->gen.me);
        weft_builder_end(b);
    }
    weft_builder_expect(b, signal, bands);
    return bands;
}

/* A place in the order of use: groups of the peers' shards one after another. */
typedef struct ag_place {
    int step;
    int64_t batch, group;
} ag_place;

static bool place_valid(const ag_gemm *ag, const ag_place *at)
{
    return at->step < ag->gen.world;
}

static int place_rank(const ag_gemm *ag, const ag_place *at)
{
    return weft_rotate(ag->gen.me, at->step, ag->gen.world);
}

static void place_settle(const ag_gemm *ag, ag_place *at)
{
    while (place_valid(ag, at) && at->group >= group_count(ag, place_rank(ag, at))) {
        at->group = 0;
        if (++at->batch == ag->gen.problem->l) {
            at->batch = 0;
            at->step++;
        }
    }
}

static void place_next(const ag_gemm *ag, ag_place *at)
{
    at->group++;
    place_settle(ag, at);
}

/* The chunks of all pieces of one group. */
static void fetch_group(ag_gemm *ag, const ag_place *at, int64_t chunk)
{
    int rank = place_rank(ag, at);
    weft_span group = group_of(ag, rank, at->group), k = chunk_of(ag, chunk);

    for (int64_t i = 0; i < group.count; i++) {
        ag_tile t = tile_of(ag, rank, at->batch, group, i);

        fetch_chunk(ag, rank, at->batch, t.piece, k,
                    chunk_signal(ag, rank, at->batch, group.begin + i, chunk));
    }
}

/* The tiles of one group, each going on from chunk to chunk. */
static void carry_group(ag_gemm *ag, const ag_place *at)
{
    int rank = place_rank(ag, at);
    weft_span group = group_of(ag, rank, at->group);

    for (int64_t i = 0; i < group.count * cut_count(ag); i++) {
        ag_tile t = tile_of(ag, rank, at->batch, group, i);
        int lane = weft_gemm_lane(&ag->gen);

        for (int64_t chunk = 0; chunk < ag->chunks; chunk++) {
            weft_span k = chunk_of(ag, chunk), lines = gathers_a(ag) ? t.piece : k;

            multiply(ag, lane, &t, in_gathered(ag, rank, at->batch, t.piece, k), k, chunk == 0,
                     chunk == ag->chunks - 1,
                     chunk_signal(ag, rank, at->batch, group.begin + i % group.count, chunk),
                     weft_cut_count(lines.count, band_lines(ag, t.piece, k)));
        }
    }
}

/*
 * All peers' shards by all copy lanes together. Tiles that start at about the same time need their pieces at
 * the same time: those are fetched side by side, chunk by chunk of k, so that all of them can start with the
 * first chunk and none waits for a whole piece.
 */
static void share_all(ag_gemm *ag)
{
    int64_t lanes = ag->gen.lanes;
    ag_place from = {.step = 1}, at;

    place_settle(ag, &from);
    while (place_valid(ag, &from)) {
        int64_t dealt = ag->gen.dealt, round = (dealt / lanes + 1) * lanes;

        for (int64_t chunk = 0; chunk < ag->chunks; chunk++) {
            dealt = ag->gen.dealt;
            for (at = from; place_valid(ag, &at) && dealt < round; place_next(ag, &at)) {
                fetch_group(ag, &at, chunk);
                dealt += group_of(ag, place_rank(ag, &at), at.group).count * cut_count(ag);
            }
        }
        for (ag_place use = from; use.step != at.step || use.batch != at.batch || use.group != at.group;
             place_next(ag, &use))
            carry_group(ag, &use);
        from = at;
    }
}

/* Declares what share_all needs, signals apart. */
static void declare_chunks(ag_gemm *ag, bool pack_b)
{
    const weft_problem *p = ag->gen.problem;

    ag->chunks = pack_b ? 1 : weft_cut_count(ag->gen.local_k.count, p->tuning.chunk_k);
    if (ag->chunks > 1)
        ag->carry = weft_builder_operand(
            ag->gen.builder,
            (weft_operand){.name = "carry",
                           .place = WEFT_PLACE_PRIVATE,
                           .dtype = weft_dtype_accumulator(p->dtype),
                           .rows = ag->gen.lanes * (p->tuning.tile_m ? p->tuning.tile_m : p->m),
                           .cols = p->tuning.tile_n ? weft_widest(p->tuning.tile_n, p->tuning.grain_n) : p->n,
                           .paired = weft_problem_is_gated(p),
                           .batch = 1});
}

static void rotating(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    bool share = gen->problem->tuning.copiers > 0 && gen->world > 1;
    uint32_t own;
    int64_t tasks = 0;
    bool pack_b;

    ag->copy_lanes = gen->world - 1 < COPY_LANES_USUAL ? gen->world - 1 : COPY_LANES_USUAL;
    if (share)
        ag->copy_lanes = gen->problem->tuning.copiers;
    weft_builder_lanes(gen->builder, WEFT_LANE_COPY, ag->copy_lanes);
    pack_b = declare_gathered(ag);
    if (share)
        declare_chunks(ag, pack_b);
    ag->signal = weft_builder_signals(gen->builder, share ? chunk_signals(ag) : ag->copy_lanes);
    own = weft_builder_signals(gen->builder, 1);
    if (share)
        weft_staged_rest(gen->builder);
    weft_gemm_pack(gen);
    if (pack_b && local_extent(ag))
        tasks = fetch_shard(ag, gen->me, own);
    if (gen->lanes == 1)
        tasks = 0;
    weft_builder_expect(gen->builder, own, tasks);
    multiply_shard(ag, gen->me, pack_b ? FROM_GATHERED : FROM_PLACE, own, tasks);
    weft_staged_rest(gen->builder);
    /* Nothing to fetch when k is 0, nobody to use it when this rank's part of D is empty. */
    for (int step = 1; step < gen->world && !(gen->local_k.count && local_extent(ag)); step++)
        multiply_shard(ag, weft_rotate(gen->me, step, gen->world), FROM_GATHERED, 0, 0);
    for (int step = 1; step < gen->world && !share && gen->local_k.count && local_extent(ag); step++)
        rotate_shard(ag, weft_rotate(gen->me, step, gen->world));
    if (share && gen->local_k.count && local_extent(ag))
        share_all(ag);
    for (int i = 0; i < ag->copy_lanes && !share; i++)
        weft_builder_expect(gen->builder, ag->signal + (uint32_t)i, ag->fetched[i]);
}

/* ---- over nodes --------------------------------------------------------------------------------------- */

/* Units of two_level.h are pieces of a shard, batch by batch. */
static int64_t shard_units(void *context, int owner)
{
    const ag_gemm *ag = context;

    return ag->gen.local_k.count ? ag->gen.problem->l * piece_count(ag, shard(ag, owner).count) : 0;
}

static weft_region unit_origin(void *context, int owner, int64_t unit)
{
    const ag_gemm *ag = context;
    int64_t extent = shard(ag, owner).count, pieces = piece_count(ag, extent);

    return in_place(ag, owner, unit / pieces, piece_of(ag, extent, unit % pieces), ag->gen.local_k);
}

/* Where it lands at its keeper on the node of `rank`. */
static weft_region unit_result(void *context, int rank, int owner, int64_t unit)
{
    ag_gemm there = *(const ag_gemm *)context;
    int64_t extent = shard(&there, owner).count, pieces = piece_count(&there, extent);

    there.gen.me = rank;
    return in_gathered(&there, owner, unit / pieces, piece_of(&there, extent, unit % pieces),
                       there.gen.local_k);
}

/* A copy lane fetches a piece that a peer of this node holds at `source`; then it is multiplied. */
static void fetch_and_multiply(ag_gemm *ag, int owner, int64_t batch, int64_t index, weft_region source,
                               weft_wait when)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int copy = (int)(ag->bands++ % ag->copy_lanes);
    uint32_t signal = ag->signal + (uint32_t)copy;
    weft_span piece = piece_of(ag, shard(ag, owner).count, index);

    if (!local_extent(ag))
        return;
    weft_builder_task(b, gen->lanes + copy, WEFT_TASK_COPY, 0);
    weft_builder_to(b, in_near(ag, owner, batch, piece, gen->local_k));
    weft_builder_from(b, source);
    weft_builder_wait(b, when.signal, when.count);
    weft_builder_post(b, signal, gen->me);
    weft_builder_end(b);
    weft_builder_expect(b, signal, ++ag->fetched[copy]);
    multiply_group(ag, owner, batch, (weft_span){index, 1}, FROM_NEAR, signal, ag->fetched[copy]);
}

/* The shard of a peer of this node. */
static void multiply_peer(ag_gemm *ag, int owner)
{
    int64_t extent = shard(ag, owner).count;

    if (!ag->copy_lanes || owner == ag->gen.me || !ag->gen.local_k.count) {
        multiply_shard(ag, owner, FROM_PLACE, 0, 0);
        return;
    }
    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++)
        for (int64_t i = 0; i < piece_count(ag, extent); i++)
            fetch_and_multiply(ag, owner, batch, i,
                               in_place(ag, owner, batch, piece_of(ag, extent, i), ag->gen.local_k),
                               (weft_wait){0, 0});
}

/* A piece from another node is used when its keeper here has it. */
static void multiply_unit(void *context, int owner, int64_t unit)
{
    ag_gemm *ag = context;
    int64_t pieces = piece_count(ag, shard(ag, owner).count);
    int keeper = weft_two_level_keeper(ag->level, weft_two_level_node(ag->level, ag->gen.me), owner);
    weft_wait when;

    if (keeper == ag->gen.me)
        when = (weft_wait){WEFT_SIGNAL_LANDED(ag->gen.world, owner),
                           (uint32_t)weft_two_level_relay(ag->level, owner)};
    else
        when = weft_two_level_told(ag->level, keeper);
    if (ag->copy_lanes && keeper != ag->gen.me)
        fetch_and_multiply(ag, owner, unit / pieces, unit % pieces, unit_result(ag, ag->gen.me, owner, unit),
                           when);
    else
        multiply_group(ag, owner, unit / pieces, (weft_span){unit % pieces, 1}, FROM_GATHERED, when.signal,
                       when.count);
}

static void declare_slots(ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;
    int64_t extent = weft_two_level_slots(ag->gen.builder) * shard(ag, 0).count;
    weft_operand operand = {.place = WEFT_PLACE_STAGING,
                            .dtype = p->dtype,
                            .rows = gathers_a(ag) ? extent : p->k,
                            .cols = gathers_a(ag) ? p->k : extent,
                            .transposed = gathers_a(ag) ? p->transa : p->transb,
                            .paired = !gathers_a(ag) && weft_problem_is_gated(p),
                            .batch = p->l};

    snprintf(operand.name, sizeof(operand.name), "gathered%c", gathers_a(ag) ? 'A' : 'B');
    ag->gathered = weft_builder_operand(ag->gen.builder, operand);
}

static void declare_near(ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;
    bool by_rows = gathers_a(ag);

    ag->copy_lanes = p->tuning.copiers < COPY_LANES_USUAL ? p->tuning.copiers : COPY_LANES_USUAL;
    weft_builder_lanes(ag->gen.builder, WEFT_LANE_COPY, ag->copy_lanes);
    ag->signal = weft_builder_signals(ag->gen.builder, ag->copy_lanes);
    ag->near =
        private_operand(ag, by_rows ? "nearA" : "nearB", by_rows ? p->m : p->k, by_rows ? p->k : p->n, false);
}

static void two_level(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_two_level_map map = {
        .units = shard_units, .origin = unit_origin, .result = unit_result, .context = ag};
    weft_two_level level;
    int mine, size;

    if (gathers_a(ag))
        weft_gemm_declare_packed(gen);
    if (weft_two_level_nodes(gen->builder) > 1)
        declare_slots(ag);
    if (gen->problem->tuning.copiers && gen->world > 1)
        declare_near(ag);
    level = weft_two_level_begin(gen->builder, map);
    ag->level = &level;
    if (!gen->builder->failed) {
        mine = weft_two_level_node(&level, gen->me);
        size = weft_two_level_size(&level, mine);
        weft_two_level_send_own(&level);
        weft_gemm_pack(gen);
        for (int i = 0; i < size; i++)
            multiply_peer(ag, level.members[level.first[mine] + (level.local[gen->me] + i) % size]);
        for (int step = 1; step < level.nodes; step++) {
            int node = weft_two_level_sender(&level, step);

            weft_two_level_for_node(&level, node, multiply_unit, ag);
            for (int i = level.first[node]; i < level.first[node + 1] && !gen->local_k.count; i++)
                multiply_shard(ag, level.members[i], FROM_GATHERED, 0, 0); /* k is 0: nothing travels */
        }
    }
    weft_two_level_end(&level);
    ag->level = NULL;
}

/* All rows of A, fetched, whoever they came from. */
static void multiply_rows(ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;
    weft_span cols = weft_whole(local_extent(ag)), k = ag->gen.local_k;
    int64_t down = weft_cut_count(p->m, p->tuning.tile_m), tiles = p->l * cut_count(ag) * down;

    for (int64_t i = 0; i < tiles; i++) {
        int64_t batch = i / down / cut_count(ag), across = i / down % cut_count(ag);
        ag_tile t = {0, batch, weft_cut(weft_whole(p->m), p->tuning.tile_m, i % down),
                     weft_cut_columns(cols, p->tuning.tile_n, p->tuning.grain_n, across)};

        multiply(ag, weft_gemm_lane(&ag->gen), &t, in_gathered(ag, 0, batch, t.piece, k), k, true, true, 0,
                 0);
    }
}

/* One task of all that was gathered, for a library. */
static void multiply_at_once(ag_gemm *ag, int64_t batch)
{
    weft_gemm_gen *gen = &ag->gen;
    bool by_rows = gathers_a(ag);
    weft_span all = weft_whole(by_rows ? gen->problem->m : gen->problem->n),
              own = weft_whole(local_extent(ag)), rows = by_rows ? all : own, cols = by_rows ? own : all;

    weft_gemm_open(gen, 0, WEFT_TASK_GEMM, true, false);
    weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, batch, rows, cols));
    weft_builder_from(gen->builder,
                      weft_region_make(by_rows ? ag->gathered : gen->a, gen->me, batch, rows, gen->local_k));
    weft_builder_from(gen->builder, weft_region_make(by_rows ? gen->b_source : ag->gathered, gen->me, batch,
                                                     gen->local_k, cols));
    weft_gemm_close(gen, true, batch, rows, cols);
}

/*
 * A plain own shard is used where it lies, as after an in-place all-gather. Where B travels and is packed in
 * the run, fetching packs it, the own shard included; few rows of A are fetched with it too, and a library
 * wants all of it in one piece.
 */
static void unfused(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    uint32_t fetched = weft_builder_signals(gen->builder, 1);
    bool pack_b = declare_gathered(ag), library = !pack_b && weft_gemm_by_library(gen);
    bool at_once = !library && weft_ag_gemm_at_once(gen->problem, gen->world);
    int64_t tasks = 0;

    weft_staged_rest(gen->builder);
    for (int step = !pack_b && !at_once && !library; step < gen->world && local_extent(ag); step++)
        tasks += fetch_shard(ag, weft_rotate(gen->me, step, gen->world), fetched);
    if (gen->lanes > 1) {
        weft_builder_expect(gen->builder, fetched, tasks);
        weft_builder_gate(gen->builder, fetched, tasks);
    }
    weft_gemm_pack(gen);
    for (int64_t batch = 0; library && batch < gen->problem->l && local_extent(ag); batch++)
        multiply_at_once(ag, batch);
    if (at_once)
        multiply_rows(ag);
    for (int step = 0; step < gen->world && !at_once && !library; step++)
        multiply_shard(ag, weft_rotate(gen->me, step, gen->world),
                       pack_b || step > 0 ? FROM_GATHERED : FROM_PLACE, 0, 0);
}

void weft_generate_ag_gemm(weft_builder *builder)
{
    ag_gemm ag = {.gen = weft_gemm_begin(builder)};

    if (builder->problem->schedule == WEFT_SCHEDULE_DIRECT)
        direct(&ag);
    else if (builder->problem->schedule == WEFT_SCHEDULE_UNFUSED)
        unfused(&ag);
    else if (builder->problem->schedule == WEFT_SCHEDULE_TWO_LEVEL)
        two_level(&ag);
    else
        rotating(&ag);
}
