/*
 * All-gather + GEMM. Rank r holds rows part r of A and columns part r of B.
 *   gather a: D[m x part r of n], A travels.    gather b: D[part r of m x n], B travels.
 *
 *   direct      tasks read the peer's operand in place; where B is packed in the run, it is packed straight
 *               from the peer's memory
 *   rotating    copy lanes fetch the peers' shards chunk by chunk, and a task starts when its chunk is there
 *   unfused     everything is fetched first, then multiplied
 *
 * The own shard comes first, then the peers' in rotation. No sum crosses ranks: the order of every sum is
 * that of the local GEMM.
 */
#include "plan/gemm_parts.h"

typedef struct ag_gemm {
    weft_gemm_gen gen;
    uint32_t gathered;  /* operand the peers' shards are fetched into, plain or packed */
    int64_t slot;       /* columns between shards in a packed one; 0: shards lie at their global place */
    int copy_lanes;     /* lane gen.lanes is the first */
    uint32_t signal;    /* rotating: one per copy lane; unfused: the first */
    int64_t fetched[2]; /* by each copy lane so far */
    int64_t pieces;     /* fetched so far by all of them together */
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

    return weft_part(gathers_a(ag) ? p->m : p->n, ag->gen.world, rank);
}

/* The local extent of the other operand: columns of B, or rows of A. */
static int64_t local_extent(const ag_gemm *ag)
{
    const weft_problem *p = ag->gen.problem;

    return weft_part(gathers_a(ag) ? p->n : p->m, ag->gen.world, ag->gen.me).count;
}

static int64_t gathered_tile(const ag_gemm *ag)
{
    return gathers_a(ag) ? ag->gen.problem->tile_m : ag->gen.problem->tile_n;
}

/* Where piece `piece` of `rank`'s shard (counted from the shard's start) lies in the gathered operand. */
static weft_region in_gathered(const ag_gemm *ag, int rank, int64_t batch, weft_span piece)
{
    weft_span k = ag->gen.local_k;

    piece.begin += ag->slot ? rank * ag->slot : shard(ag, rank).begin;
    return gathers_a(ag) ? weft_region_make(ag->gathered, ag->gen.me, batch, piece, k)
                         : weft_region_make(ag->gathered, ag->gen.me, batch, k, piece);
}

/* The same piece in its owner's memory. */
static weft_region in_place(const ag_gemm *ag, int rank, int64_t batch, weft_span piece)
{
    weft_span k = ag->gen.local_k;

    return gathers_a(ag) ? weft_region_make(ag->gen.a, rank, batch, piece, k)
                         : weft_region_make(ag->gen.b, rank, batch, k, piece);
}

/*
 * All tasks that use one piece of one shard, `source` being where it is read. They are cut along the other
 * operand, and wait for `count` posts of `signal` when count is not 0.
 */
static void multiply_piece(ag_gemm *ag, int rank, int64_t batch, weft_span piece, weft_region source,
                           uint32_t signal, int64_t count)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    bool by_rows = gathers_a(ag);
    weft_span local = weft_whole(local_extent(ag));
    int64_t tile = by_rows ? gen->problem->tile_n : gen->problem->tile_m;
    weft_span global = {shard(ag, rank).begin + piece.begin, piece.count};

    for (int64_t i = 0; i < weft_cut_count(local.count, tile); i++) {
        weft_span cut = weft_cut(local, tile, i);
        weft_span rows = by_rows ? global : cut, cols = by_rows ? cut : global;

        weft_gemm_open(gen, weft_gemm_lane(gen), WEFT_TASK_GEMM, true, false);
        weft_builder_to(b, weft_region_make(gen->d, gen->me, batch, rows, cols));
        weft_builder_from(b, by_rows ? source : weft_region_make(gen->a, gen->me, batch, cut, gen->local_k));
        weft_builder_from(b, by_rows ? weft_region_make(gen->b_source, gen->me, batch, gen->local_k, cut)
                                     : source);
        weft_builder_wait(b, signal, count);
        weft_gemm_close(gen, true, batch, rows, cols);
    }
}

static void multiply_shard(ag_gemm *ag, int rank, bool gathered, uint32_t signal, int64_t count)
{
    int64_t tile = gathered_tile(ag), extent = shard(ag, rank).count;

    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++) {
        for (int64_t i = 0; i < weft_cut_count(extent, tile); i++) {
            weft_span piece = weft_cut(weft_whole(extent), tile, i);
            weft_region source =
                gathered ? in_gathered(ag, rank, batch, piece) : in_place(ag, rank, batch, piece);

            multiply_piece(ag, rank, batch, piece, source, signal, count);
        }
    }
}

/*
 * Fetches one shard into the gathered operand by tasks of the compute lanes, each posting `signal` here
 * when there are several lanes. Returns the number of tasks.
 */
static int64_t fetch_shard(ag_gemm *ag, int rank, uint32_t signal)
{
    weft_gemm_gen *gen = &ag->gen;
    int64_t tile = gathered_tile(ag), extent = shard(ag, rank).count, tasks = 0;

    for (int64_t batch = 0; batch < gen->problem->l && gen->local_k.count; batch++) {
        for (int64_t i = 0; i < weft_cut_count(extent, tile); i++, tasks++) {
            weft_span piece = weft_cut(weft_whole(extent), tile, i);

            weft_builder_task(gen->builder, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
            weft_builder_to(gen->builder, in_gathered(ag, rank, batch, piece));
            weft_builder_from(gen->builder, in_place(ag, rank, batch, piece));
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
                            .batch = p->l};

    for (int i = 0; name[i]; i++)
        operand.name[i] = name[i];
    return weft_builder_operand(ag->gen.builder, operand);
}

/* A packed operand that holds every rank's shard of B, each from a column where a window may start. */
static void declare_packed_shards(ag_gemm *ag)
{
    int64_t longest = shard(ag, 0).count;

    ag->slot = (longest + WEFT_PACK_COLUMNS - 1) / WEFT_PACK_COLUMNS * WEFT_PACK_COLUMNS;
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
    bool pack = !gathers_a(ag) && gen->problem->b_form == WEFT_B_PACK_IN_RUN;
    uint32_t fetched = weft_builder_signals(gen->builder, pack ? gen->world : 0);

    if (gathers_a(ag))
        weft_gemm_declare_packed(gen);
    else if (pack)
        declare_packed_shards(ag);
    weft_gemm_pack(gen);
    for (int step = 0; step < gen->world; step++) {
        int rank = weft_rotate(gen->me, step, gen->world);
        int64_t tasks = pack && local_extent(ag) ? fetch_shard(ag, rank, fetched + (uint32_t)step) : 0;

        if (gen->lanes == 1)
            tasks = 0;
        if (tasks)
            weft_builder_expect(gen->builder, fetched + (uint32_t)step, tasks);
        multiply_shard(ag, rank, pack, fetched + (uint32_t)step, tasks);
    }
}

/* One shard by a copy lane, each piece multiplied when it has arrived. */
static void rotate_shard(ag_gemm *ag, int rank, int copy)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int64_t tile = gathered_tile(ag), extent = shard(ag, rank).count;
    uint32_t signal = ag->signal + (uint32_t)copy;

    for (int64_t batch = 0; batch < gen->problem->l; batch++) {
        for (int64_t i = 0; i < weft_cut_count(extent, tile); i++) {
            weft_span piece = weft_cut(weft_whole(extent), tile, i);

            weft_builder_task(b, gen->lanes + copy, WEFT_TASK_COPY, 0);
            weft_builder_to(b, in_gathered(ag, rank, batch, piece));
            weft_builder_from(b, in_place(ag, rank, batch, piece));
            weft_builder_post(b, signal, gen->me);
            weft_builder_end(b);
            multiply_piece(ag, rank, batch, piece, in_gathered(ag, rank, batch, piece), signal,
                           ++ag->fetched[copy]);
        }
    }
}

/*
 * One shard by all copy lanes together: each fetches a band of every piece, so that pieces arrive one after
 * another, as fast as all lanes can, in the order in which they are used. A piece has its own signal.
 */
static void share_shard(ag_gemm *ag, int rank)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int64_t tile = gathered_tile(ag), extent = shard(ag, rank).count;

    for (int64_t batch = 0; batch < gen->problem->l; batch++) {
        for (int64_t i = 0; i < weft_cut_count(extent, tile); i++) {
            weft_span piece = weft_cut(weft_whole(extent), tile, i);
            int64_t band = (piece.count + ag->copy_lanes - 1) / ag->copy_lanes;
            uint32_t signal = ag->signal + (uint32_t)ag->pieces++;

            if (!gathers_a(ag)) /* bands of columns: keep their rows on whole vectors */
                band = (band + 15) / 16 * 16;
            for (int64_t copy = 0; copy < weft_cut_count(piece.count, band); copy++) {
                weft_span part = weft_cut(piece, band, copy);

                weft_builder_task(b, gen->lanes + (int)copy, WEFT_TASK_COPY, 0);
                weft_builder_to(b, in_gathered(ag, rank, batch, part));
                weft_builder_from(b, in_place(ag, rank, batch, part));
                weft_builder_post(b, signal, gen->me);
                weft_builder_end(b);
            }
            weft_builder_expect(b, signal, weft_cut_count(piece.count, band));
            multiply_piece(ag, rank, batch, piece, in_gathered(ag, rank, batch, piece), signal,
                           weft_cut_count(piece.count, band));
        }
    }
}

/* Pieces of all shards: as many on every rank, and more than any of them fetches. */
static int64_t piece_count(const ag_gemm *ag)
{
    int64_t pieces = 0;

    for (int rank = 0; rank < ag->gen.world; rank++)
        pieces += weft_cut_count(shard(ag, rank).count, gathered_tile(ag));
    return pieces * ag->gen.problem->l;
}

static void rotating(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    bool share = gen->problem->copiers > 0 && gen->world > 1;
    uint32_t own;
    int64_t tasks = 0;
    bool pack_b;

    ag->copy_lanes = gen->world - 1 < COPY_LANES_USUAL ? gen->world - 1 : COPY_LANES_USUAL;
    if (share)
        ag->copy_lanes = gen->problem->copiers;
    weft_builder_lanes(gen->builder, WEFT_LANE_COPY, ag->copy_lanes);
    ag->signal = weft_builder_signals(gen->builder, share ? piece_count(ag) : ag->copy_lanes);
    own = weft_builder_signals(gen->builder, 1);
    pack_b = declare_gathered(ag);
    weft_gemm_pack(gen);
    if (pack_b && local_extent(ag))
        tasks = fetch_shard(ag, gen->me, own);
    if (gen->lanes == 1)
        tasks = 0;
    weft_builder_expect(gen->builder, own, tasks);
    multiply_shard(ag, gen->me, pack_b, own, tasks);
    for (int step = 1; step < gen->world; step++) {
        int rank = weft_rotate(gen->me, step, gen->world);

        /* Nothing to fetch when k is 0, nobody to use it when this rank's part of D is empty. */
        if (!gen->local_k.count || !local_extent(ag))
            multiply_shard(ag, rank, true, 0, 0);
        else if (share)
            share_shard(ag, rank);
        else
            rotate_shard(ag, rank, (step - 1) % ag->copy_lanes);
    }
    for (int i = 0; i < ag->copy_lanes && !share; i++)
        weft_builder_expect(gen->builder, ag->signal + (uint32_t)i, ag->fetched[i]);
}

/*
 * A plain own shard is used where it lies, as after an in-place all-gather. Where B travels and is packed in
 * the run, fetching packs it, the own shard included.
 */
static void unfused(ag_gemm *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    uint32_t fetched = weft_builder_signals(gen->builder, 1);
    bool pack_b = declare_gathered(ag);
    int64_t tasks = 0;

    for (int step = !pack_b; step < gen->world && local_extent(ag); step++)
        tasks += fetch_shard(ag, weft_rotate(gen->me, step, gen->world), fetched);
    if (gen->lanes > 1) {
        weft_builder_expect(gen->builder, fetched, tasks);
        weft_builder_gate(gen->builder, fetched, tasks);
    }
    weft_gemm_pack(gen);
    for (int step = 0; step < gen->world; step++)
        multiply_shard(ag, weft_rotate(gen->me, step, gen->world), pack_b || step > 0, 0, 0);
}

void weft_generate_ag_gemm(weft_builder *builder)
{
    ag_gemm ag = {.gen = weft_gemm_begin(builder)};

    if (builder->problem->schedule == WEFT_SCHEDULE_DIRECT)
        direct(&ag);
    else if (builder->problem->schedule == WEFT_SCHEDULE_UNFUSED)
        unfused(&ag);
    else
        rotating(&ag);
}
