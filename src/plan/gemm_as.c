/*
 * GEMM + all-scatter. Every rank holds all of A and columns part r of B, and gets all of D.
 *   all_scatter  Stream-K; the lane that completes a tile stores it to every rank's D
 *   unfused      the whole product into the own columns of D, then every rank fetches the others'
 * Staged, a rank leaves its columns in its own memory besides, with all_scatter tile by tile, and the others
 * fetch them from there.
 */
#include "core/round.h"
#include "plan/gemm_whole.h"

typedef struct gemm_as {
    weft_gemm_gen gen;
    weft_stream_k stream;
    weft_span columns; /* of D that this rank computes */
    uint32_t left;     /* staged: a signal for each tile of each rank */
    int64_t most;      /* tiles of a rank */
} gemm_as;

static void emit_tile(void *context, int lane, int64_t number, const weft_slices *slices)
{
    gemm_as *as = context;
    weft_gemm_gen *gen = &as->gen;
    weft_tile tile = weft_stream_k_tile(&as->stream, number);
    weft_span cols = {as->columns.begin + tile.cols.begin, tile.cols.count};

    weft_gemm_open(gen, lane, slices ? WEFT_TASK_REDUCE : WEFT_TASK_GEMM, true, false);
    weft_gemm_to_all(gen, tile.batch, tile.rows, cols, as->left + (uint32_t)(gen->me * as->most + number));
    if (slices)
        weft_stream_k_sources(&as->stream, &tile, slices);
    else
        weft_stream_k_product(&as->stream, &tile);
    weft_gemm_close(gen, true, tile.batch, tile.rows, cols);
}

static void fetch_tile(gemm_as *as, int from, int64_t number)
{
    weft_gemm_gen *gen = &as->gen;
    weft_stream_k theirs = weft_stream_k_on(&as->stream, from);
    weft_tile tile;

    if (number >= theirs.tiles)
        return;
    tile = weft_stream_k_tile(&theirs, number);
    tile.cols.begin += weft_problem_part_n(gen->problem, gen->world, from).begin;
    weft_gemm_fetch(gen, from, tile.batch, tile.rows, tile.cols,
                    as->left + (uint32_t)(from * as->most + number));
}

static void all_scatter(gemm_as *as)
{
    weft_gemm_gen *gen = &as->gen;

    as->stream = weft_stream_k_begin(gen, as->columns.count, 1);
    if (gen->problem->tuning.staged) {
        weft_gemm_declare_copiers(gen);
        as->most = weft_stream_k_on(&as->stream, 0).tiles;
        as->left = weft_builder_signals(gen->builder, gen->world * as->most);
    }
    weft_gemm_pack(gen);
    weft_stream_k_run(&as->stream, NULL, emit_tile, as);
    for (int64_t number = 0; number < as->most; number++) /* in the order in which they are finished */
        for (int step = 1; step < gen->world; step++)
            fetch_tile(as, weft_rotate(gen->me, step, gen->world), number);
}

/* Rows of a copy where shares are not even anyway: no more than a tile's, and so few that every lane has
 * some, for a row is as wide as a rank's columns. */
static int64_t fetched_rows(const weft_gemm_gen *gen)
{
    const weft_problem *p = gen->problem;
    int64_t lanes = weft_compute_lanes(p), rows = weft_divide_up((gen->world - 1) * p->m, lanes);

    return p->tuning.tile_m && p->tuning.tile_m < rows ? p->tuning.tile_m : rows;
}

static void unfused(gemm_as *as)
{
    weft_gemm_gen *gen = &as->gen;
    weft_gemm_whole whole = weft_gemm_whole_begin(gen, as->columns.count);
    const weft_problem *p = gen->problem;
    uint32_t ready = weft_builder_signals(gen->builder, gen->world); /* one for each rank that announces */

    whole.target = gen->d;
    whole.target_col = as->columns.begin;
    whole.copies = p->tuning.staged;
    whole.epilogue = true;
    weft_gemm_pack(gen);
    weft_gemm_whole_run(&whole, ready + (uint32_t)gen->me);
    for (int step = 1; step < gen->world; step++) {
        int from = weft_rotate(gen->me, step, gen->world);
        weft_span cols = weft_problem_part_n(p, gen->world, from);
        weft_shares shares;

        weft_builder_expect(gen->builder, ready + (uint32_t)from, 1);
        shares = weft_shares_of(p, weft_whole(p->m), cols, fetched_rows(gen), 0);
        for (int64_t batch = 0; batch < p->l && cols.count; batch++) {
            for (int64_t i = 0; i < weft_shares_count(&shares); i++) {
                weft_span rows, some;

                weft_share(&shares, i, &rows, &some);
                weft_builder_task(gen->builder, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
                weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, batch, rows, some));
                weft_builder_from(gen->builder, weft_region_make(p->tuning.staged ? gen->results : gen->d,
                                                                 from, batch, rows, some));
                weft_builder_wait(gen->builder, ready + (uint32_t)from, 1);
                weft_builder_end(gen->builder);
            }
        }
    }
}

void weft_generate_gemm_as(weft_builder *builder)
{
    gemm_as as = {.gen = weft_gemm_begin(builder),
                  .columns = weft_problem_part_n(builder->problem, builder->world, builder->rank)};

    weft_gemm_declare_packed(&as.gen);
    if (builder->problem->schedule == WEFT_SCHEDULE_UNFUSED)
        unfused(&as);
    else
        all_scatter(&as);
}
