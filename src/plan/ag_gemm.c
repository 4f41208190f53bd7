/*
 * All-gather + GEMM. Rank r holds rows part r of A and columns part r of B.
 *   gather a: D[m x part r of n], A travels.    gather b: D[part r of m x n], B travels.
 *
 * - direct: tasks read the peer's operand in place; where B is packed in the run, it is packed straight from
 *   the peer's memory.
 * - rotating: copy lanes fetch the peers' shards piece by piece, and a task starts when its piece is there;
 *   with many copiers they fetch every piece together, in chunks of k, and a tile goes on with its sum as the
 *   chunks come (ag_gemm_chunks.c).
 * - two_level: over nodes (ag_gemm_nodes.c).
 * - unfused: everything is fetched first, then multiplied. Few rows of A are multiplied all at once: what
 *   their product takes is reading B, which for each shard by itself would be read as often as there are
 *   ranks. Over nodes A is gathered in two levels (ag_gemm_nodes.c).
 *
 * The own shard comes first, then the peers' in rotation. No sum crosses ranks: the order of every sum is
 * that of the local GEMM.
 */
#include "plan/ag_gemm_chunks.h"
#include "plan/ag_gemm_nodes.h"
#include "plan/staged.h"

static void direct(weft_ag_gen *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    bool pack = !weft_ag_gathers_a(ag) && gen->problem->b_form == WEFT_B_PACK_IN_RUN,
         copied = gen->problem->tuning.staged && weft_staged_by_copiers(gen->problem);
    uint32_t fetched = weft_builder_signals(gen->builder, pack ? gen->world : 0);

    if (weft_ag_gathers_a(ag))
        weft_gemm_declare_packed(gen);
    else if (pack)
        weft_ag_declare_packed_shards(ag);
    if (copied) {
        weft_gemm_declare_copiers(gen);
        weft_staged_rest(gen->builder);
    }
    weft_gemm_pack(gen);
    for (int step = 0; step < gen->world; step++) {
        int rank = weft_rotate(gen->me, step, gen->world);
        int64_t tasks =
            pack && weft_ag_local_extent(ag) ? weft_ag_fetch_shard(ag, rank, fetched + (uint32_t)step) : 0;

        if (gen->lanes == 1)
            tasks = 0;
        if (tasks)
            weft_builder_expect(gen->builder, fetched + (uint32_t)step, tasks);
        weft_ag_multiply_shard(ag, rank, pack ? WEFT_AG_FROM_GATHERED : WEFT_AG_FROM_PLACE,
                               fetched + (uint32_t)step, tasks);
        weft_staged_rest(gen->builder);
    }
}

/* One shard, piece by piece, which the copy lanes take in turn: so they come in the order in which they are
 * needed. Each is multiplied when it has arrived. */
static void rotate_shard(weft_ag_gen *ag, int rank)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int64_t extent = weft_ag_shard(ag, rank).count;

    for (int64_t batch = 0; batch < gen->problem->l; batch++) {
        for (int64_t i = 0; i < weft_ag_piece_count(ag, extent); i++) {
            weft_span piece = weft_ag_piece(ag, extent, i);
            int copy = (int)(ag->bands++ % ag->copy_lanes);
            uint32_t signal = ag->signal + (uint32_t)copy;

            weft_builder_task(b, gen->lanes + copy, WEFT_TASK_COPY, 0);
            weft_builder_to(b, weft_ag_in_gathered(ag, rank, batch, piece, gen->local_k));
            weft_builder_from(b, weft_ag_in_place(ag, rank, batch, piece, gen->local_k));
            weft_builder_post(b, signal, gen->me);
            weft_builder_end(b);
            weft_ag_multiply_raster(ag, rank, batch, (weft_span){i, 1}, WEFT_AG_FROM_GATHERED, signal,
                                    ++ag->fetched[copy]);
        }
    }
}

static void rotating(weft_ag_gen *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    bool share = gen->problem->tuning.copiers > 0 && gen->world > 1;
    uint32_t own;
    int64_t tasks = 0;
    bool pack_b;

    ag->copy_lanes = gen->world - 1 < WEFT_AG_COPY_LANES ? gen->world - 1 : WEFT_AG_COPY_LANES;
    if (share)
        ag->copy_lanes = gen->problem->tuning.copiers;
    weft_builder_lanes(gen->builder, WEFT_LANE_COPY, ag->copy_lanes);
    pack_b = weft_ag_declare_gathered(ag);
    if (share)
        weft_ag_declare_chunks(ag, pack_b);
    ag->signal = weft_builder_signals(gen->builder, share ? weft_ag_chunk_signals(ag) : ag->copy_lanes);
    own = weft_builder_signals(gen->builder, 1);
    if (share)
        weft_staged_rest(gen->builder);
    weft_gemm_pack(gen);
    if (pack_b && weft_ag_local_extent(ag))
        tasks = weft_ag_fetch_shard(ag, gen->me, own);
    if (gen->lanes == 1)
        tasks = 0;
    weft_builder_expect(gen->builder, own, tasks);
    weft_ag_multiply_shard(ag, gen->me, pack_b ? WEFT_AG_FROM_GATHERED : WEFT_AG_FROM_PLACE, own, tasks);
    weft_staged_rest(gen->builder);
    /* Nothing to fetch when k is 0, nobody to use it when this rank's part of D is empty. */
    for (int step = 1; step < gen->world && !(gen->local_k.count && weft_ag_local_extent(ag)); step++)
        weft_ag_multiply_shard(ag, weft_rotate(gen->me, step, gen->world), WEFT_AG_FROM_GATHERED, 0, 0);
    for (int step = 1; step < gen->world && !share && gen->local_k.count && weft_ag_local_extent(ag); step++)
        rotate_shard(ag, weft_rotate(gen->me, step, gen->world));
    if (share && gen->local_k.count && weft_ag_local_extent(ag))
        weft_ag_share_all(ag);
    for (int i = 0; i < ag->copy_lanes && !share; i++)
        weft_builder_expect(gen->builder, ag->signal + (uint32_t)i, ag->fetched[i]);
}

/* All rows of A, fetched, whoever they came from. */
static void multiply_rows(weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;
    weft_span cols = weft_whole(weft_ag_local_extent(ag)), k = ag->gen.local_k;
    int64_t down = weft_cut_count(p->m, p->tuning.tile_m), tiles = p->l * weft_ag_cut_count(ag) * down;

    for (int64_t i = 0; i < tiles; i++) {
        int64_t batch = i / down / weft_ag_cut_count(ag), across = i / down % weft_ag_cut_count(ag);
        weft_ag_tile t = {0, batch, weft_cut(weft_whole(p->m), p->tuning.tile_m, i % down),
                          weft_cut_columns(cols, p->tuning.tile_n, p->tuning.grain_n, across)};

        weft_ag_multiply(ag, weft_gemm_lane(&ag->gen), &t, weft_ag_in_gathered(ag, 0, batch, t.piece, k), k,
                         true, true, 0, 0);
    }
}

/* One task of all that was gathered, for a library. */
static void multiply_at_once(weft_ag_gen *ag, int64_t batch)
{
    weft_gemm_gen *gen = &ag->gen;
    bool by_rows = weft_ag_gathers_a(ag);
    weft_span all = weft_whole(by_rows ? gen->problem->m : gen->problem->n),
              own = weft_whole(weft_ag_local_extent(ag)), rows = by_rows ? all : own,
              cols = by_rows ? own : all;

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
static void unfused(weft_ag_gen *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    uint32_t fetched = weft_builder_signals(gen->builder, 1);
    bool pack_b = weft_ag_declare_gathered(ag), library = !pack_b && weft_gemm_by_library(gen);
    bool at_once = weft_ag_gemm_at_once(gen->problem, gen->world);
    int64_t tasks = gen->builder->domain ? weft_ag_gather_over_nodes(ag, at_once, fetched) : 0;

    weft_staged_rest(gen->builder);
    for (int step = !pack_b && !at_once && !library;
         step < gen->world && weft_ag_local_extent(ag) && !gen->builder->domain; step++)
        tasks += weft_ag_fetch_shard(ag, weft_rotate(gen->me, step, gen->world), fetched);
    if (gen->lanes > 1) {
        weft_builder_expect(gen->builder, fetched, tasks);
        weft_builder_gate(gen->builder, fetched, tasks);
    }
    weft_gemm_pack(gen);
    for (int64_t batch = 0; library && batch < gen->problem->l && weft_ag_local_extent(ag); batch++)
        multiply_at_once(ag, batch);
    if (at_once)
        multiply_rows(ag);
    for (int step = 0; step < gen->world && !at_once && !library; step++)
        weft_ag_multiply_shard(ag, weft_rotate(gen->me, step, gen->world),
                               pack_b || step > 0 ? WEFT_AG_FROM_GATHERED : WEFT_AG_FROM_PLACE, 0, 0);
}

void weft_generate_ag_gemm(weft_builder *builder)
{
    weft_ag_gen ag = {.gen = weft_gemm_begin(builder)};

    if (builder->problem->schedule == WEFT_SCHEDULE_DIRECT)
        direct(&ag);
    else if (builder->problem->schedule == WEFT_SCHEDULE_UNFUSED)
        unfused(&ag);
    else if (builder->problem->schedule == WEFT_SCHEDULE_TWO_LEVEL)
        weft_ag_two_level(&ag);
    else
        rotating(&ag);
}
