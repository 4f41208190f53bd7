/* Shards as units of two_level.h: where they come from, where they land, and their products; or all of A
 * gathered before it is multiplied. */
#include "plan/ag_gemm_nodes.h"

#include "core/dtype.h"
#include "plan/staged.h"

#include <stdio.h>

/* Units of two_level.h are pieces of a shard, batch by batch. */
static int64_t shard_units(void *context, int owner)
{
    const weft_ag_gen *ag = context;

    return ag->gen.local_k.count
               ? ag->gen.problem->l * weft_ag_piece_count(ag, weft_ag_shard(ag, owner).count)
               : 0;
}

static weft_region unit_origin(void *context, int owner, int64_t unit)
{
    const weft_ag_gen *ag = context;
    int64_t extent = weft_ag_shard(ag, owner).count, pieces = weft_ag_piece_count(ag, extent);

    return weft_ag_in_place(ag, owner, unit / pieces, weft_ag_piece(ag, extent, unit % pieces),
                            ag->gen.local_k);
}

/* Where it lands at its keeper on the node of `rank`. */
static weft_region unit_result(void *context, int rank, int owner, int64_t unit)
{
    weft_ag_gen there = *(const weft_ag_gen *)context;
    int64_t extent = weft_ag_shard(&there, owner).count, pieces = weft_ag_piece_count(&there, extent);

    there.gen.me = rank;
    return weft_ag_in_gathered(&there, owner, unit / pieces, weft_ag_piece(&there, extent, unit % pieces),
                               there.gen.local_k);
}

/* A copy lane fetches a piece that a peer of this node holds at `source`; then it is multiplied. */
static void fetch_and_multiply(weft_ag_gen *ag, int owner, int64_t batch, int64_t index, weft_region source,
                               weft_wait when)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int copy = (int)(ag->bands++ % ag->copy_lanes);
    uint32_t signal = ag->signal + (uint32_t)copy;
    weft_span piece = weft_ag_piece(ag, weft_ag_shard(ag, owner).count, index);

    if (!weft_ag_local_extent(ag))
        return;
    weft_builder_task(b, gen->lanes + copy, WEFT_TASK_COPY, 0);
    weft_builder_to(b, weft_ag_in_near(ag, owner, batch, piece, gen->local_k));
    weft_builder_from(b, source);
    weft_builder_wait(b, when.signal, when.count);
    weft_builder_post(b, signal, gen->me);
    weft_builder_end(b);
    weft_builder_expect(b, signal, ++ag->fetched[copy]);
    weft_ag_multiply_raster(ag, owner, batch, (weft_span){index, 1}, WEFT_AG_FROM_NEAR, signal,
                            ag->fetched[copy]);
}

/* The shard of a peer of this node. */
static void multiply_peer(weft_ag_gen *ag, int owner)
{
    int64_t extent = weft_ag_shard(ag, owner).count;

    if (!ag->copy_lanes || owner == ag->gen.me || !ag->gen.local_k.count) {
        weft_ag_multiply_shard(ag, owner, WEFT_AG_FROM_PLACE, 0, 0);
        return;
    }
    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++)
        for (int64_t i = 0; i < weft_ag_piece_count(ag, extent); i++)
            fetch_and_multiply(
                ag, owner, batch, i,
                weft_ag_in_place(ag, owner, batch, weft_ag_piece(ag, extent, i), ag->gen.local_k),
                (weft_wait){0, 0});
}

/* A piece from another node is used when its keeper here has it. */
static void multiply_unit(void *context, int owner, int64_t unit)
{
    weft_ag_gen *ag = context;
    int64_t pieces = weft_ag_piece_count(ag, weft_ag_shard(ag, owner).count);
    int keeper = weft_two_level_keeper(ag->level, weft_two_level_node(ag->level, ag->gen.me), owner);
    weft_wait when = weft_two_level_comes(ag->level, owner);

    if (ag->copy_lanes && keeper != ag->gen.me)
        fetch_and_multiply(ag, owner, unit / pieces, unit % pieces, unit_result(ag, ag->gen.me, owner, unit),
                           when);
    else
        weft_ag_multiply_raster(ag, owner, unit / pieces, (weft_span){unit % pieces, 1},
                                WEFT_AG_FROM_GATHERED, when.signal, when.count);
}

static void declare_slots(weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;
    int64_t extent = weft_two_level_slots(ag->gen.builder) * weft_ag_shard(ag, 0).count;
    weft_operand operand = {.place = WEFT_PLACE_STAGING,
                            .dtype = p->dtype,
                            .rows = weft_ag_gathers_a(ag) ? extent : p->k,
                            .cols = weft_ag_gathers_a(ag) ? p->k : extent,
                            .transposed = weft_ag_gathers_a(ag) ? p->transa : p->transb,
                            .paired = !weft_ag_gathers_a(ag) && weft_problem_is_gated(p),
                            .batch = p->l};

    snprintf(operand.name, sizeof(operand.name), "gathered%c", weft_ag_gathers_a(ag) ? 'A' : 'B');
    ag->gathered = weft_builder_operand(ag->gen.builder, operand);
}

static void declare_near(weft_ag_gen *ag)
{
    const weft_problem *p = ag->gen.problem;
    bool by_rows = weft_ag_gathers_a(ag);

    ag->copy_lanes = p->tuning.copiers < WEFT_AG_COPY_LANES ? p->tuning.copiers : WEFT_AG_COPY_LANES;
    weft_builder_lanes(ag->gen.builder, WEFT_LANE_COPY, ag->copy_lanes);
    ag->signal = weft_builder_signals(ag->gen.builder, ag->copy_lanes);
    ag->near = weft_ag_private_operand(ag, by_rows ? "nearA" : "nearB", by_rows ? p->m : p->k,
                                       by_rows ? p->k : p->n, false);
}

void weft_ag_two_level(weft_ag_gen *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_two_level_map map = {
        .units = shard_units, .origin = unit_origin, .result = unit_result, .context = ag};
    weft_two_level level;
    int mine, size;

    if (weft_ag_gathers_a(ag))
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
        for (int i = 0; i < size; i++) {
            multiply_peer(ag, level.members[level.first[mine] + (level.local[gen->me] + i) % size]);
            weft_staged_rest(gen->builder);
        }
        for (int step = 1; step < level.nodes; step++) {
            int node = weft_two_level_sender(&level, step);

            weft_two_level_for_node(&level, node, multiply_unit, ag);
            for (int i = level.first[node]; i < level.first[node + 1] && !gen->local_k.count; i++)
                weft_ag_multiply_shard(ag, level.members[i], WEFT_AG_FROM_GATHERED, 0,
                                       0); /* k is 0: nothing travels */
        }
    }
    weft_two_level_end(&level);
    ag->level = NULL;
}

/* ---- all of A, before the product --------------------------------------------------------------------- */

enum { UNIT_BYTES = 256 << 10 }; /* of a message: longer ones are passed on while the next is on its way */

typedef struct gathering {
    weft_ag_gen *ag;
    weft_two_level *level;
    uint32_t signal;
    int64_t tasks;
} gathering;

static int64_t unit_rows(const weft_ag_gen *ag)
{
    int64_t row_bytes = ag->gen.local_k.count * (int64_t)weft_dtype_size(ag->gen.problem->dtype);

    return row_bytes < UNIT_BYTES ? UNIT_BYTES / row_bytes : 1;
}

static int64_t rows_units(void *context, int owner)
{
    const weft_ag_gen *ag = ((gathering *)context)->ag;

    return ag->gen.local_k.count
               ? ag->gen.problem->l * weft_cut_count(weft_ag_shard(ag, owner).count, unit_rows(ag))
               : 0;
}

/* Rows of a unit, counted from its owner's first; the matrix it is of. */
static weft_span rows_of(const weft_ag_gen *ag, int owner, int64_t unit, int64_t *batch)
{
    weft_span shard = weft_whole(weft_ag_shard(ag, owner).count);
    int64_t units = weft_cut_count(shard.count, unit_rows(ag));

    *batch = unit / units;
    return weft_cut(shard, unit_rows(ag), unit % units);
}

static weft_region rows_origin(void *context, int owner, int64_t unit)
{
    const weft_ag_gen *ag = ((gathering *)context)->ag;
    int64_t batch;
    weft_span rows = rows_of(ag, owner, unit, &batch);

    return weft_ag_in_place(ag, owner, batch, rows, ag->gen.local_k);
}

static weft_region rows_result(void *context, int rank, int owner, int64_t unit)
{
    weft_ag_gen there = *((gathering *)context)->ag;
    int64_t batch;
    weft_span rows = rows_of(&there, owner, unit, &batch);

    there.gen.me = rank;
    return weft_ag_in_gathered(&there, owner, batch, rows, there.gen.local_k);
}

/* What has landed here is where it belongs; the rest is fetched from its keeper. */
static void take_unit(void *context, int owner, int64_t unit)
{
    gathering *g = context;
    weft_gemm_gen *gen = &g->ag->gen;
    weft_builder *b = gen->builder;
    int keeper = weft_two_level_keeper(g->level, weft_two_level_node(g->level, gen->me), owner);
    weft_region here = {.rank = gen->me};
    weft_wait when = weft_two_level_comes(g->level, owner);

    if (!weft_ag_local_extent(g->ag))
        return;
    weft_builder_task(b, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
    weft_builder_to(b, keeper == gen->me ? here : rows_result(g, gen->me, owner, unit));
    weft_builder_from(b, keeper == gen->me ? here : rows_result(g, keeper, owner, unit));
    weft_builder_wait(b, when.signal, when.count);
    if (gen->lanes > 1)
        weft_builder_post(b, g->signal, gen->me);
    weft_builder_end(b);
    g->tasks++;
}

int64_t weft_ag_gather_over_nodes(weft_ag_gen *ag, bool own_too, uint32_t signal)
{
    weft_gemm_gen *gen = &ag->gen;
    gathering g = {.ag = ag, .signal = signal};
    weft_two_level level = weft_two_level_begin(
        gen->builder, (weft_two_level_map){
                          .units = rows_units, .origin = rows_origin, .result = rows_result, .context = &g});
    int mine, size;

    g.level = &level;
    if (!gen->builder->failed) {
        mine = weft_two_level_node(&level, gen->me);
        size = weft_two_level_size(&level, mine);
        weft_two_level_send_own(&level);
        weft_staged_rest(gen->builder);
        for (int i = own_too ? 0 : 1; i < size && weft_ag_local_extent(ag); i++)
            g.tasks += weft_ag_fetch_shard(
                ag, level.members[level.first[mine] + (level.local[gen->me] + i) % size], signal);
        for (int step = 1; step < level.nodes; step++)
            weft_two_level_for_node(&level, weft_two_level_sender(&level, step), take_unit, &g);
    }
    weft_two_level_end(&level);
    return g.tasks;
}
