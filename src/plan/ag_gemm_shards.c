/* What the schedules of all-gather + GEMM are made of: pieces of shards, where they lie, and their products.
 */
#include "plan/ag_gemm_shards.h"

#include "core/round.h"
#include "plan/staged.h"

weft_span weft_ag_shard(const weft_ag_gen *ag, int rank)
{
    const weft_problem *p = ag->gen.problem;

    return weft_ag_gathers_a(ag) ? weft_problem_part_m(p, ag->gen.world, rank)
                                 : weft_problem_part_n(p, ag->gen.world, rank);
}

int64_t weft_ag_local_extent(const weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;

    return (weft_ag_gathers_a(ag) ? weft_problem_part_n(p, ag->gen.world, ag->gen.me)
                                  : weft_problem_part_m(p, ag->gen.world, ag->gen.me))
        .count;
}

static int64_t gathered_tile(const weft_ag_gen *ag)
{
    return weft_ag_gathers_a(ag) ? ag->gen.problem->tuning.tile_m : ag->gen.problem->tuning.tile_n;
}

int64_t weft_ag_piece_count(const weft_ag_gen *ag, int64_t extent)
{
    return weft_ag_gathers_a(ag)
               ? weft_cut_count(extent, gathered_tile(ag))
               : weft_cut_columns_count(extent, gathered_tile(ag), ag->gen.problem->tuning.grain_n);
}

weft_span weft_ag_piece(const weft_ag_gen *ag, int64_t extent, int64_t index)
{
    return weft_ag_gathers_a(ag) ? weft_cut(weft_whole(extent), gathered_tile(ag), index)
                                 : weft_cut_columns(weft_whole(extent), gathered_tile(ag),
                                                    ag->gen.problem->tuning.grain_n, index);
}

weft_region weft_ag_in_gathered(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    int holder = ag->gen.me;

    if (ag->level) {
        int node = weft_two_level_node(ag->level, holder);

        holder = weft_two_level_keeper(ag->level, node, rank);
        piece.begin += weft_two_level_slot(ag->level, node, rank) * weft_ag_shard(ag, 0).count;
    } else {
        piece.begin += ag->slot ? rank * ag->slot : weft_ag_shard(ag, rank).begin;
    }
    return weft_ag_gathers_a(ag) ? weft_region_make(ag->gathered, holder, batch, piece, k)
                                 : weft_region_make(ag->gathered, holder, batch, k, piece);
}

weft_region weft_ag_in_place(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    return weft_ag_gathers_a(ag) ? weft_region_make(ag->gen.a, rank, batch, piece, k)
                                 : weft_region_make(ag->gen.b, rank, batch, k, piece);
}

weft_region weft_ag_in_near(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k)
{
    piece.begin += weft_ag_shard(ag, rank).begin;
    return weft_ag_gathers_a(ag) ? weft_region_make(ag->near, ag->gen.me, batch, piece, k)
                                 : weft_region_make(ag->near, ag->gen.me, batch, k, piece);
}

int64_t weft_ag_cut_count(const weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;

    return weft_ag_gathers_a(ag)
               ? weft_cut_columns_count(weft_ag_local_extent(ag), p->tuning.tile_n, p->tuning.grain_n)
               : weft_cut_count(weft_ag_local_extent(ag), p->tuning.tile_m);
}

/* The pieces of a raster lie side by side, so that neighbours in time share both operands. */
weft_ag_tile weft_ag_tile_at(const weft_ag_gen *ag, int rank, int64_t batch, weft_span raster, int64_t number)
{
    const weft_problem *p = ag->gen.problem;
    weft_span other = weft_whole(weft_ag_local_extent(ag));

    return (weft_ag_tile){
        rank, batch, weft_ag_piece(ag, weft_ag_shard(ag, rank).count, raster.begin + number % raster.count),
        weft_ag_gathers_a(ag)
            ? weft_cut_columns(other, p->tuning.tile_n, p->tuning.grain_n, number / raster.count)
            : weft_cut(other, p->tuning.tile_m, number / raster.count)};
}

weft_span weft_ag_raster(const weft_ag_gen *ag, int rank, int64_t index)
{
    int64_t size = ag->gen.problem->tuning.raster > 0 ? ag->gen.problem->tuning.raster : 1;

    return weft_cut(weft_whole(weft_ag_piece_count(ag, weft_ag_shard(ag, rank).count)), size, index);
}

int64_t weft_ag_raster_count(const weft_ag_gen *ag, int rank)
{
    int64_t size = ag->gen.problem->tuning.raster > 0 ? ag->gen.problem->tuning.raster : 1;

    return weft_cut_count(weft_ag_piece_count(ag, weft_ag_shard(ag, rank).count), size);
}

void weft_ag_multiply(weft_ag_gen *ag, int lane, const weft_ag_tile *t, weft_region source, weft_span k,
                      bool first, bool last, uint32_t signal, int64_t count)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    bool by_rows = weft_ag_gathers_a(ag);
    weft_span global = {weft_ag_shard(ag, t->rank).begin + t->piece.begin, t->piece.count};
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

void weft_ag_multiply_raster(weft_ag_gen *ag, int rank, int64_t batch, weft_span raster, weft_ag_source from,
                             uint32_t signal, int64_t count)
{
    weft_span k = ag->gen.local_k;

    for (int64_t i = 0; i < raster.count * weft_ag_cut_count(ag); i++) {
        weft_ag_tile t = weft_ag_tile_at(ag, rank, batch, raster, i);

        if (rank == ag->gen.me)
            weft_staged_next(ag->gen.builder);
        weft_region source = from == WEFT_AG_FROM_GATHERED ? weft_ag_in_gathered(ag, rank, batch, t.piece, k)
                             : from == WEFT_AG_FROM_NEAR   ? weft_ag_in_near(ag, rank, batch, t.piece, k)
                                                           : weft_ag_in_place(ag, rank, batch, t.piece, k);

        weft_ag_multiply(ag, weft_gemm_lane(&ag->gen), &t, source, k, true, true, signal, count);
    }
}

void weft_ag_multiply_shard(weft_ag_gen *ag, int rank, weft_ag_source from, uint32_t signal, int64_t count)
{
    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++)
        for (int64_t i = 0; i < weft_ag_raster_count(ag, rank); i++)
            weft_ag_multiply_raster(ag, rank, batch, weft_ag_raster(ag, rank, i), from, signal, count);
}

int64_t weft_ag_fetch_shard(weft_ag_gen *ag, int rank, uint32_t signal)
{
    weft_gemm_gen *gen = &ag->gen;
    int64_t extent = weft_ag_shard(ag, rank).count, tile = gathered_tile(ag), tasks = 0;
    bool packs = gen->builder->failed || gen->builder->part.operands[ag->gathered].packed;
    weft_shares shares = weft_ag_gathers_a(ag)
                             ? weft_shares_of(gen->problem, weft_whole(extent), gen->local_k, tile, 0)
                             : weft_shares_of(gen->problem, gen->local_k, weft_whole(extent), 0, tile);
    int64_t count = packs ? weft_ag_piece_count(ag, extent) : weft_shares_count(&shares);

    for (int64_t batch = 0; batch < gen->problem->l && gen->local_k.count; batch++) {
        for (int64_t i = 0; i < count; i++, tasks++) {
            weft_span piece = weft_whole(extent), k = gen->local_k;

            if (packs)
                piece = weft_ag_piece(ag, extent, i);
            else
                weft_share(&shares, i, weft_ag_gathers_a(ag) ? &piece : &k,
                           weft_ag_gathers_a(ag) ? &k : &piece);
            weft_builder_task(gen->builder, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
            weft_builder_to(gen->builder, weft_ag_in_gathered(ag, rank, batch, piece, k));
            weft_builder_from(gen->builder, weft_ag_in_place(ag, rank, batch, piece, k));
            if (gen->lanes > 1)
                weft_builder_post(gen->builder, signal, gen->me);
            weft_builder_end(gen->builder);
        }
    }
    return tasks;
}

uint32_t weft_ag_private_operand(weft_ag_gen *ag, const char *name, int64_t rows, int64_t cols, bool packed)
{
    const weft_problem *p = ag->gen.problem;
    weft_operand operand = {.place = WEFT_PLACE_PRIVATE,
                            .dtype = p->dtype,
                            .rows = rows,
                            .cols = cols,
                            .transposed = !packed && (weft_ag_gathers_a(ag) ? p->transa : p->transb),
                            .packed = packed,
                            .paired = !weft_ag_gathers_a(ag) && weft_problem_is_gated(p),
                            .batch = p->l};

    for (int i = 0; name[i]; i++)
        operand.name[i] = name[i];
    return weft_builder_operand(ag->gen.builder, operand);
}

void weft_ag_declare_packed_shards(weft_ag_gen *ag)
{
    int64_t longest = weft_ag_shard(ag, 0).count;

    ag->slot = weft_round_up(longest, WEFT_PACK_COLUMNS);
    ag->gathered = weft_ag_private_operand(ag, "packedB", ag->gen.problem->k, ag->slot * ag->gen.world, true);
}

bool weft_ag_declare_gathered(weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;

    if (weft_ag_gathers_a(ag)) {
        weft_gemm_declare_packed(&ag->gen);
        ag->gathered = weft_ag_private_operand(ag, "gatheredA", p->m, p->k, false);
        if (ag->gen.builder->domain && !ag->gen.builder->failed) /* a keeper's is read by its node */
            ag->gen.builder->part.operands[ag->gathered].place = WEFT_PLACE_STAGING;
    } else if (p->b_form == WEFT_B_PACK_IN_RUN) {
        weft_ag_declare_packed_shards(ag);
        return true;
    } else {
        ag->gathered = weft_ag_private_operand(ag, "gatheredB", p->k, p->n, false);
    }
    return false;
}
