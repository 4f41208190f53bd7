/*
 * GEMM + reduce-scatter, and the ring of GEMM + all-reduce. Rank r holds columns part r of A and rows part r
 * of B. The result is scattered by rows (D[part r of m x n]) or by columns (D[m x part r of n]); a rank's
 * part of it is its block.
 *
 *   rotating C  The sum for the block of rank o starts at rank o+1 and travels o+2, o+3, ... to o. Each hop
 *               starts its accumulators from the partial sum that its predecessor stored here; the owner's
 *               own product is the last, with the epilogue. No pass only adds.
 *               Order of the sum: o+1, o+2, ..., o.
 *               With sums_stay they do not travel: the ranks add to them in the owner's memory, in the same
 *               order, each when its predecessor says that it has. For memory that adds by itself.
 *   direct      Every rank stores its raw tiles of a block in the owner's memory. With two ranks the owner's
 *               product starts from the peer's tile (order: peer, owner); with more the owner adds all in
 *               rank order.
 *   unfused     The whole product first; then every rank adds its block from all ranks, in rank order.
 *
 * For an all-reduce the blocks of rows go round in stripes of `raster` rows of tiles, all ranks' first
 * stripes, then their second ones; and of a stripe that its owner has finished the others fetch the rows,
 * while the next one is multiplied.
 */
#include "plan/gemm_whole.h"
#include "core/dtype.h"
#include "core/round.h"

typedef struct gemm_rs {
    weft_gemm_gen gen;
    bool by_rows;
    bool everywhere; /* all ranks get all blocks */
    int64_t slot;    /* extent of the longest block along the scattered dimension */
    uint32_t partial, own;
    uint32_t finished; /* everywhere: counts tiles of a row of them, by how far its owner is, then by row */
} gemm_rs;

/* One tile of a block: where it is in the whole product, and in the owner's D. */
typedef struct unit {
    int64_t batch;
    weft_span rows, cols; /* global */
    weft_span d_rows, d_cols;
} unit;

/* What of D a rank keeps. */
static weft_span block_of(const gemm_rs *rs, int owner)
{
    return rs->by_rows ? weft_problem_part_m(rs->gen.problem, rs->gen.world, owner)
                       : weft_problem_part_n(rs->gen.problem, rs->gen.world, owner);
}

/* How an owner's block is cut: made once, since plans for new sizes are made beside runs. */
typedef struct grid {
    weft_span block, rows;
    weft_column_cuts cols;
    int64_t down, count; /* rows of units; units of all batches */
} grid;

static grid grid_of(const gemm_rs *rs, int owner)
{
    const weft_problem *p = rs->gen.problem;
    weft_span block = block_of(rs, owner);
    grid g = {.block = block,
              .rows = weft_whole(rs->by_rows ? block.count : p->m),
              .cols = weft_column_cuts_of(weft_whole(rs->by_rows ? p->n : block.count), p->tuning.tile_n,
                                          p->tuning.grain_n)};

    g.down = weft_cut_count(g.rows.count, p->tuning.tile_m);
    g.count = p->l * g.down * g.cols.count;
    return g;
}

static int64_t unit_count(const gemm_rs *rs, int owner)
{
    return grid_of(rs, owner).count;
}

static unit unit_at(const gemm_rs *rs, const grid *g, int64_t number)
{
    const weft_tuning *t = &rs->gen.problem->tuning;
    int64_t across = g->cols.count, raster = t->raster > 0 ? t->raster : 1;
    int64_t batch = number / (g->down * across), inside = number - batch * (g->down * across);
    int64_t row0 = inside / (across * raster) * raster;
    int64_t side = weft_min(g->down - row0, raster); /* rows of tiles walked side by side */
    int64_t at = inside - row0 * across;
    unit u = {
        .batch = batch,
        .d_rows = weft_cut(g->rows, t->tile_m, row0 + (side == 1 ? 0 : at % side)),
        .d_cols = weft_column_cut(&g->cols, side == 1 ? at : at / side),
    };

    u.rows = u.d_rows;
    u.cols = u.d_cols;
    if (rs->by_rows)
        u.rows.begin += g->block.begin;
    else
        u.cols.begin += g->block.begin;
    return u;
}

/* Slot `slot` of a rank's staging memory, as large as a block. */
static weft_region in_slot(const gemm_rs *rs, uint32_t operand, int rank, int64_t slot, const unit *u)
{
    weft_span rows = u->d_rows, cols = u->d_cols;

    if (rs->by_rows)
        rows.begin += slot * rs->slot;
    else
        cols.begin += slot * rs->slot;
    return weft_region_make(operand, rank, u->batch, rows, cols);
}

static void add_product(gemm_rs *rs, const unit *u)
{
    weft_gemm_gen *gen = &rs->gen;

    weft_builder_from(gen->builder, weft_region_make(gen->a, gen->me, u->batch, u->rows, gen->local_k));
    weft_builder_from(gen->builder,
                      weft_region_make(gen->b_source, gen->me, u->batch, gen->local_k, u->cols));
}

/* `handed_on`: only products use them. Columns of blocks begin anywhere, where the engine's panels do not. */
static void declare_slots(gemm_rs *rs, int64_t slots, bool handed_on)
{
    const weft_problem *p = rs->gen.problem;

    if (!slots)
        return;
    rs->partial = weft_gemm_staging(&rs->gen, "partial", rs->by_rows ? slots * rs->slot : p->m,
                                    rs->by_rows ? p->n : slots * rs->slot, p->l);
    if (handed_on && rs->by_rows)
        weft_gemm_hand_on(&rs->gen, rs->partial);
}

/* ---- everywhere -------------------------------------------------------------------------------------- */

static int64_t tile_rows(const gemm_rs *rs, int owner)
{
    return weft_cut_count(block_of(rs, owner).count, rs->gen.problem->tuning.tile_m);
}

static int64_t tiles_across(const gemm_rs *rs)
{
    const weft_tuning *t = &rs->gen.problem->tuning;

    return weft_cut_columns_count(rs->gen.problem->n, t->tile_n, t->grain_n);
}

/* The signal of a rank for row `row` of tiles of the owner that is `step` ranks after it. */
static uint32_t finished_signal(const gemm_rs *rs, int step, int64_t batch, int64_t row)
{
    return rs->finished + (uint32_t)(((step - 1) * rs->gen.problem->l + batch) * tile_rows(rs, 0) + row);
}

/* A finished tile: where it goes, and who is told. */
static void finish_unit(gemm_rs *rs, const unit *u)
{
    weft_gemm_gen *gen = &rs->gen;
    weft_builder *b = gen->builder;
    int64_t tile_m = gen->problem->tuning.tile_m, row = tile_m ? u->d_rows.begin / tile_m : 0;

    if (!rs->everywhere) {
        weft_builder_to(b, weft_region_make(gen->d, gen->me, u->batch, u->d_rows, u->d_cols));
        return;
    }
    weft_builder_to(b, weft_region_make(gen->d, gen->me, u->batch, u->rows, u->cols));
    if (gen->problem->tuning.staged)
        weft_builder_to(b, weft_region_make(gen->results, gen->me, u->batch, u->rows, u->cols));
    for (int step = 1; step < gen->world; step++)
        weft_builder_post(b, finished_signal(rs, step, u->batch, row),
                          weft_rotate(gen->me, gen->world - step, gen->world));
}

/* One row of tiles of an owner, by bands of whole rows. */
static void fetch_row(gemm_rs *rs, int step, int64_t batch, int64_t row)
{
    weft_gemm_gen *gen = &rs->gen;
    weft_builder *b = gen->builder;
    const weft_problem *p = gen->problem;
    int owner = weft_rotate(gen->me, step, gen->world);
    weft_span rows = weft_cut(block_of(rs, owner), p->tuning.tile_m, row), cols = weft_whole(p->n);
    int64_t band = weft_band_lines(p->n * (int64_t)weft_dtype_size(p->d_dtype));
    uint32_t signal = finished_signal(rs, step, batch, row);

    weft_builder_expect(b, signal, tiles_across(rs));
    for (int64_t i = 0; i < weft_cut_count(rows.count, band); i++) {
        weft_span cut = weft_cut(rows, band, i);

        weft_builder_task(b, weft_gemm_copy_lane(gen), WEFT_TASK_COPY, 0);
        weft_builder_to(b, weft_region_make(gen->d, gen->me, batch, cut, cols));
        weft_builder_from(
            b, weft_region_make(p->tuning.staged ? gen->results : gen->d, owner, batch, cut, cols));
        weft_builder_wait(b, signal, tiles_across(rs));
        weft_builder_end(b);
    }
}

/* In the order in which rows are finished. */
static void fetch_all(gemm_rs *rs)
{
    const weft_gemm_gen *gen = &rs->gen;

    for (int64_t batch = 0; batch < gen->problem->l; batch++)
        for (int64_t row = 0; row < tile_rows(rs, 0); row++)
            for (int step = 1; step < gen->world; step++)
                if (row < tile_rows(rs, weft_rotate(gen->me, step, gen->world)))
                    fetch_row(rs, step, batch, row);
}

/* ---- rotating C -------------------------------------------------------------------------------------- */

/* A tile at `step` of the ring, on `lane` with signal `arrived`. */
static void rotate_unit(gemm_rs *rs, const unit *u, int step, int lane, uint32_t arrived)
{
    weft_gemm_gen *gen = &rs->gen;
    weft_builder *b = gen->builder;
    int owner = weft_rotate(gen->me, 2 * gen->world - 1 - step, gen->world);
    int next = weft_rotate(gen->me, 1, gen->world);
    bool last = step == gen->world - 1, stay = gen->problem->tuning.sums_stay;

    weft_gemm_open(gen, lane, WEFT_TASK_GEMM, last, step > 0);
    if (last)
        finish_unit(rs, u);
    else
        weft_builder_to(b, stay ? in_slot(rs, rs->partial, owner, 0, u)
                                : in_slot(rs, rs->partial, next, step, u));
    add_product(rs, u);
    if (step > 0) {
        weft_builder_from(b, stay ? in_slot(rs, rs->partial, owner, 0, u)
                                  : in_slot(rs, rs->partial, gen->me, step - 1, u));
        weft_builder_wait(b, arrived, weft_builder_expect_more(b, arrived));
    }
    if (!last)
        weft_builder_post(b, arrived, next);
    weft_gemm_close(gen, last, u->batch, rs->everywhere ? u->rows : u->d_rows,
                    rs->everywhere ? u->cols : u->d_cols);
}

/*
 * Tile u of owner o's block belongs to the same lane on every rank, so that signal `lane` of a rank is posted
 * by that lane of its predecessor alone, in the order in which this rank consumes.
 */
static void rotating(gemm_rs *rs)
{
    weft_gemm_gen *gen = &rs->gen;
    const weft_tuning *t = &gen->problem->tuning;
    uint32_t arrived = weft_builder_signals(gen->builder, gen->lanes);
    int64_t all = unit_count(rs, 0), stripe = rs->everywhere ? t->raster * tiles_across(rs) : 0;

    if (t->sums_stay)
        declare_slots(rs, gen->world > 1, false);
    else
        declare_slots(rs, gen->world - 1, true);
    weft_gemm_pack(gen);
    if (stripe <= 0 || stripe > all)
        stripe = all;
    for (int64_t first = 0; first < all; first += stripe) {
        for (int step = 0; step < gen->world; step++) {
            int owner = weft_rotate(gen->me, 2 * gen->world - 1 - step, gen->world);
            grid g = grid_of(rs, owner);
            int64_t count = weft_min(g.count - first, stripe);

            for (int64_t i = 0; i < count; i++) {
                unit u = unit_at(rs, &g, first + i);
                int lane = (int)((first * gen->world + i + owner * count) % gen->lanes);

                rotate_unit(rs, &u, step, lane, arrived + (uint32_t)lane);
            }
        }
    }
}

/* The owner adds all partial tiles of a unit, its own included, in rank order, when `posts` say they are
 * there. */
static void reduce_unit(gemm_rs *rs, int lane, const unit *u, uint32_t arrived, int posts)
{
    weft_gemm_gen *gen = &rs->gen;

    weft_gemm_open(gen, lane, WEFT_TASK_REDUCE, true, false);
    weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, u->batch, u->d_rows, u->d_cols));
    for (int rank = 0; rank < gen->world; rank++) {
        int slot = weft_rotate(rank, gen->world - gen->me - 1, gen->world);

        weft_builder_from(gen->builder, rank == gen->me ? in_slot(rs, rs->own, gen->me, 0, u)
                                                        : in_slot(rs, rs->partial, gen->me, slot, u));
    }
    weft_builder_wait(gen->builder, arrived, posts);
    weft_gemm_close(gen, true, u->batch, u->d_rows, u->d_cols);
}

enum { SHARED_ROWS = 64 };

/* With more lanes than tiles in a block, all of them take part in the adding, some rows at a time: on a CPU
 * so many that each lane has some. */
static void share_reduces(gemm_rs *rs, uint32_t arrived)
{
    weft_gemm_gen *gen = &rs->gen;
    grid g = grid_of(rs, gen->me);

    for (int64_t i = 0; i < g.count; i++) {
        unit whole = unit_at(rs, &g, i);
        int64_t even = whole.d_rows.count * g.count / gen->lanes;
        int64_t rows = !gen->problem->tuning.grain_n ? SHARED_ROWS : weft_max(even, 1);

        for (int64_t j = 0; j < weft_cut_count(whole.d_rows.count, rows); j++) {
            unit u = whole;

            u.d_rows = weft_cut(whole.d_rows, rows, j);
            reduce_unit(rs, weft_gemm_lane(gen), &u, arrived + (uint32_t)i, gen->world);
        }
    }
}

static void direct(gemm_rs *rs)
{
    weft_gemm_gen *gen = &rs->gen;
    weft_builder *b = gen->builder;
    const weft_problem *p = gen->problem;
    uint32_t arrived = weft_builder_signals(b, unit_count(rs, 0));
    bool share = gen->world > 2 && gen->lanes > unit_count(rs, gen->me);

    declare_slots(rs, gen->world - 1, gen->world == 2);
    if (gen->world > 2)
        rs->own = weft_builder_operand(b, (weft_operand){.name = "own", /* of the type it is added to */
                                                         .place = WEFT_PLACE_PRIVATE,
                                                         .dtype = p->wire_dtype,
                                                         .rows = rs->by_rows ? rs->slot : p->m,
                                                         .cols = rs->by_rows ? p->n : rs->slot,
                                                         .batch = p->l});
    weft_gemm_pack(gen);
    for (int step = 1; step <= gen->world; step++) {
        int owner = weft_rotate(gen->me, step, gen->world);
        int slot = weft_rotate(gen->me, gen->world - owner - 1 + gen->world, gen->world);
        bool mine = owner == gen->me, finish = mine && gen->world <= 2, acc = mine && gen->world == 2;
        grid g = grid_of(rs, owner);

        for (int64_t i = 0; i < g.count; i++) {
            unit u = unit_at(rs, &g, i);
            int lane = weft_gemm_lane(gen);

            weft_gemm_open(gen, lane, WEFT_TASK_GEMM, finish, acc);
            if (finish)
                weft_builder_to(b, weft_region_make(gen->d, gen->me, u.batch, u.d_rows, u.d_cols));
            else
                weft_builder_to(b, mine ? in_slot(rs, rs->own, gen->me, 0, &u)
                                        : in_slot(rs, rs->partial, owner, slot, &u));
            add_product(rs, &u);
            if (acc) {
                weft_builder_from(b, in_slot(rs, rs->partial, gen->me, 0, &u));
                weft_builder_wait(b, arrived + (uint32_t)i, 1);
            }
            if (mine)
                weft_builder_expect(b, arrived + (uint32_t)i, gen->world - 1 + share);
            if (!mine || share)
                weft_builder_post(b, arrived + (uint32_t)i, owner);
            weft_gemm_close(gen, finish, u.batch, u.d_rows, u.d_cols);
            if (mine && !finish && !share)
                reduce_unit(rs, lane, &u, arrived + (uint32_t)i, gen->world - 1);
        }
    }
    if (share)
        share_reduces(rs, arrived);
}

static void unfused(gemm_rs *rs)
{
    weft_gemm_gen *gen = &rs->gen;
    weft_builder *b = gen->builder;
    const weft_problem *p = gen->problem;
    uint32_t sums = weft_gemm_whole_sums(gen);
    weft_span block = block_of(rs, gen->me);
    weft_shares shares =
        weft_shares_of(p, rs->by_rows ? block : weft_whole(p->m), rs->by_rows ? weft_whole(p->n) : block,
                       p->tuning.tile_m, p->tuning.tile_n);
    int64_t count = weft_shares_count(&shares);

    for (int64_t i = 0; i < p->l * count && gen->world > 1; i++) {
        weft_span rows, cols, d_rows, d_cols;

        weft_share(&shares, i % count, &rows, &cols);
        d_rows = (weft_span){rows.begin - shares.rows.begin, rows.count};
        d_cols = (weft_span){cols.begin - shares.cols.begin, cols.count};
        weft_gemm_open(gen, weft_gemm_lane(gen), WEFT_TASK_REDUCE, true, false);
        weft_builder_to(b, weft_region_make(gen->d, gen->me, i / count, d_rows, d_cols));
        for (int rank = 0; rank < gen->world; rank++)
            weft_builder_from(b, weft_region_make(sums, rank, i / count, rows, cols));
        weft_gemm_close(gen, true, i / count, d_rows, d_cols);
    }
}

void weft_generate_gemm_ar_ring(weft_builder *builder)
{
    gemm_rs rs = {.gen = weft_gemm_begin(builder), .by_rows = true, .everywhere = true};

    rs.slot = block_of(&rs, 0).count;
    weft_gemm_declare_copiers(&rs.gen);
    weft_gemm_declare_packed(&rs.gen);
    rs.finished =
        weft_builder_signals(builder, (builder->world - 1) * builder->problem->l * tile_rows(&rs, 0));
    rotating(&rs);
    fetch_all(&rs);
}

void weft_generate_gemm_rs(weft_builder *builder)
{
    const weft_problem *p = builder->problem;
    gemm_rs rs = {.gen = weft_gemm_begin(builder), .by_rows = p->layout == WEFT_LAYOUT_SCATTER_ROWS};

    rs.slot = block_of(&rs, 0).count;
    weft_gemm_declare_packed(&rs.gen);
    if (p->schedule == WEFT_SCHEDULE_DIRECT)
        direct(&rs);
    else if (p->schedule == WEFT_SCHEDULE_UNFUSED)
        unfused(&rs);
    else
        rotating(&rs);
}
