/*
 * GEMM + all-reduce, Stream-K. Rank r holds columns part r of A and rows part r of B; every rank gets all of
 * D. Tiles are numbered by batch, row, column.
 *
 *   two_shot  Tile t is owned by rank t mod W. A rank computes the tiles of the ranks after it first, its own
 *             last, and stores raw tiles in their owner's memory. The owner finishes a tile, applies the
 *             epilogue and stores it to every rank's D. With two ranks a whole tile of the owner starts from
 *             the peer's (order of the sum: peer, owner); otherwise the sum is in rank order, the slices of a
 *             cut tile in ascending k. Tiles are narrowed until every rank has two, where columns allow: a
 *             rank with nothing to compute before its own tile would wait for the others' product.
 *             With sums_stay a rank owns rows instead, whose sums go round: see gemm_rs.c.
 *
 *   one_shot  Every rank keeps its raw product and tells all peers tile by tile; every rank adds every tile
 *             from all ranks, in rank order.
 *
 *   unfused   The whole product first; then each rank adds its share from all ranks in rank order and stores
 *             it to all: what a two-shot all-reduce does.
 *
 * Staged, what an owner would store to all it leaves in its own memory, tile by tile, and the others fetch
 * it.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "plan/gemm_whole.h"

#include <stdlib.h>

typedef struct gemm_ar {
    weft_gemm_gen gen;
    weft_stream_k stream;
    uint32_t partial;
    uint32_t arrived; /* two_shot: one signal for each owned tile; one_shot: for each tile */
    int64_t slots;    /* two_shot: raw tiles kept for each owned tile */
    bool narrow;      /* sums travel in another type than they are kept in, and both are not added together */
    uint32_t left;    /* staged: a signal for each tile of D, or for each share of each rank */
    int64_t *pending; /* one_shot: [lane] the tile that waits to be reduced, or -1 */
} gemm_ar;

/* ---- two_shot ------------------------------------------------------------------------------------ */

/* Where rank `from` leaves its raw tile `number`, in the memory of the owner. */
static weft_region in_slot(const gemm_ar *ar, int from, int64_t number, const weft_tile *tile)
{
    int world = ar->gen.world;
    int64_t slot = number / world * ar->slots + (ar->slots > 1 ? from : 0);
    weft_span rows = {slot * ar->stream.slot_rows, tile->rows.count};

    return weft_region_make(ar->partial, (int)(number % world), 0, rows, weft_whole(tile->cols.count));
}

/* A tile this rank does not finish: raw, to its owner. */
static void emit_raw(gemm_ar *ar, int lane, int64_t number, const weft_tile *tile, const weft_slices *slices)
{
    weft_gemm_gen *gen = &ar->gen;
    int owner = (int)(number % gen->world);

    weft_gemm_open(gen, lane, slices ? WEFT_TASK_REDUCE : WEFT_TASK_GEMM, false, false);
    weft_builder_to(gen->builder, in_slot(ar, gen->me, number, tile));
    if (slices)
        weft_stream_k_sources(&ar->stream, tile, slices);
    else
        weft_stream_k_product(&ar->stream, tile);
    if (owner != gen->me)
        weft_builder_post(gen->builder, ar->arrived + (uint32_t)(number / gen->world), owner);
    weft_builder_end(gen->builder);
}

/* An own tile: the last product, or a sum over all ranks. */
static void emit_owned(gemm_ar *ar, int lane, int64_t number, const weft_tile *tile,
                       const weft_slices *slices)
{
    weft_gemm_gen *gen = &ar->gen;
    uint32_t arrived = ar->arrived + (uint32_t)(number / gen->world);
    bool product = !slices && gen->world <= 2, kept = !product && (!slices || ar->narrow);

    if (kept)
        emit_raw(ar, lane, number, tile, slices);
    weft_gemm_open(gen, lane, product ? WEFT_TASK_GEMM : WEFT_TASK_REDUCE, true, product && gen->world == 2);
    weft_gemm_to_all(gen, tile->batch, tile->rows, tile->cols, ar->left + (uint32_t)number);
    if (product) {
        weft_stream_k_product(&ar->stream, tile);
        if (gen->world == 2)
            weft_builder_from(gen->builder, in_slot(ar, 1 - gen->me, number, tile));
    }
    for (int rank = 0; rank < gen->world && !product; rank++) {
        if (rank == gen->me && !kept)
            weft_stream_k_sources(&ar->stream, tile, slices);
        else
            weft_builder_from(gen->builder, in_slot(ar, rank, number, tile));
    }
    weft_builder_expect(gen->builder, arrived, gen->world - 1);
    weft_builder_wait(gen->builder, arrived, gen->world - 1);
    weft_gemm_close(gen, true, tile->batch, tile->rows, tile->cols);
}

static void emit_two_shot(void *context, int lane, int64_t number, const weft_slices *slices)
{
    gemm_ar *ar = context;
    weft_tile tile = weft_stream_k_tile(&ar->stream, number);

    if (number % ar->gen.world == ar->gen.me)
        emit_owned(ar, lane, number, &tile, slices);
    else
        emit_raw(ar, lane, number, &tile, slices);
}

static void two_shot(gemm_ar *ar)
{
    weft_gemm_gen *gen = &ar->gen;
    int64_t tiles = ar->stream.tiles, owned = weft_divide_up(tiles, gen->world), at = 0;
    int64_t *order = malloc((size_t)(tiles ? tiles : 1) * sizeof(*order));

    if (!order) {
        gen->builder->failed = true;
        return;
    }
    for (int step = 1; step <= gen->world; step++) {
        for (int64_t t = weft_rotate(gen->me, step, gen->world); t < tiles; t += gen->world)
            order[at++] = t;
    }
    ar->arrived = weft_builder_signals(gen->builder, owned);
    ar->narrow = gen->world > 1 && gen->problem->wire_dtype != weft_dtype_accumulator(gen->problem->dtype);
    ar->slots = gen->world > 2 || (ar->narrow && ar->stream.cuts) ? gen->world : gen->world - 1;
    if (ar->slots)
        ar->partial = weft_gemm_staging(gen, "partial", owned * ar->slots * ar->stream.slot_rows,
                                        ar->stream.slot_cols, 1);
    if (ar->slots == 1 && !ar->stream.cuts) /* none is added from slots */
        weft_gemm_hand_on(gen, ar->partial);
    if (gen->problem->tuning.staged) {
        weft_gemm_declare_copiers(gen);
        ar->left = weft_builder_signals(gen->builder, tiles);
    }
    weft_gemm_pack(gen);
    weft_stream_k_run(&ar->stream, order, emit_two_shot, ar);
    for (int64_t i = 0; i < tiles && gen->problem->tuning.staged; i++) {
        weft_tile tile = weft_stream_k_tile(&ar->stream, order[i]);

        if (order[i] % gen->world != gen->me)
            weft_gemm_fetch(gen, (int)(order[i] % gen->world), tile.batch, tile.rows, tile.cols,
                            ar->left + (uint32_t)order[i]);
    }
    free(order);
}

/* ---- one_shot ------------------------------------------------------------------------------------ */

static void reduce_pending(gemm_ar *ar, int lane)
{
    weft_gemm_gen *gen = &ar->gen;
    int64_t number = ar->pending[lane];
    weft_tile tile;

    if (number < 0)
        return;
    tile = weft_stream_k_tile(&ar->stream, number);
    weft_gemm_open(gen, lane, WEFT_TASK_REDUCE, true, false);
    weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, tile.batch, tile.rows, tile.cols));
    for (int rank = 0; rank < gen->world; rank++)
        weft_builder_from(gen->builder,
                          weft_region_make(ar->partial, rank, tile.batch, tile.rows, tile.cols));
    weft_builder_expect(gen->builder, ar->arrived + (uint32_t)number, gen->world - 1);
    weft_builder_wait(gen->builder, ar->arrived + (uint32_t)number, gen->world - 1);
    weft_gemm_close(gen, true, tile.batch, tile.rows, tile.cols);
}

/* A tile is reduced one product later, when the peers' are likely to be there. */
static void emit_one_shot(void *context, int lane, int64_t number, const weft_slices *slices)
{
    gemm_ar *ar = context;
    weft_gemm_gen *gen = &ar->gen;
    weft_tile tile = weft_stream_k_tile(&ar->stream, number);
    bool alone = gen->world == 1;

    weft_gemm_open(gen, lane, slices ? WEFT_TASK_REDUCE : WEFT_TASK_GEMM, alone, false);
    weft_builder_to(gen->builder, weft_region_make(alone ? gen->d : ar->partial, gen->me, tile.batch,
                                                   tile.rows, tile.cols));
    if (slices)
        weft_stream_k_sources(&ar->stream, &tile, slices);
    else
        weft_stream_k_product(&ar->stream, &tile);
    for (int step = 1; step < gen->world; step++)
        weft_builder_post(gen->builder, ar->arrived + (uint32_t)number,
                          weft_rotate(gen->me, step, gen->world));
    weft_gemm_close(gen, alone, tile.batch, tile.rows, tile.cols);
    reduce_pending(ar, lane);
    ar->pending[lane] = alone ? -1 : number;
}

static void one_shot(gemm_ar *ar)
{
    weft_gemm_gen *gen = &ar->gen;

    ar->pending = malloc((size_t)gen->lanes * sizeof(*ar->pending));
    if (!ar->pending) {
        gen->builder->failed = true;
        return;
    }
    for (int lane = 0; lane < gen->lanes; lane++)
        ar->pending[lane] = -1;
    if (gen->world > 1) {
        ar->arrived = weft_builder_signals(gen->builder, ar->stream.tiles);
        ar->partial = weft_gemm_staging(gen, "partial", gen->problem->m, gen->problem->n, gen->problem->l);
    }
    weft_gemm_pack(gen);
    weft_stream_k_run(&ar->stream, NULL, emit_one_shot, ar);
    for (int lane = 0; lane < gen->lanes; lane++)
        reduce_pending(ar, lane);
    free(ar->pending);
}

/* ---- unfused ------------------------------------------------------------------------------------- */

/* A rank's share is a band of rows, or of columns where there are too few rows to divide well. */
static weft_shares share_of(const gemm_ar *ar, int rank)
{
    const weft_gemm_gen *gen = &ar->gen;
    const weft_problem *p = gen->problem;
    bool by_rows = p->m >= 4 * (int64_t)gen->world;
    weft_span rows = by_rows ? weft_part(p->m, gen->world, rank) : weft_whole(p->m);
    weft_span cols = by_rows ? weft_whole(p->n) : weft_part(p->n, gen->world, rank);

    return weft_shares_of(p, rows, cols, p->tuning.tile_m, p->tuning.tile_n);
}

/* The `index`-th tile of a share, over all matrices of the batch. */
static weft_tile tile_of(const weft_shares *shares, int64_t index)
{
    int64_t count = weft_shares_count(shares);
    weft_tile tile = {.batch = index / count};

    weft_share(shares, index % count, &tile.rows, &tile.cols);
    return tile;
}

static void reduce_share(gemm_ar *ar, uint32_t partial, int64_t most)
{
    weft_gemm_gen *gen = &ar->gen;
    weft_shares shares = share_of(ar, gen->me);

    for (int64_t i = 0; i < gen->problem->l * weft_shares_count(&shares); i++) {
        weft_tile tile = tile_of(&shares, i);

        weft_gemm_open(gen, weft_gemm_lane(gen), WEFT_TASK_REDUCE, true, false);
        weft_gemm_to_all(gen, tile.batch, tile.rows, tile.cols, ar->left + (uint32_t)(gen->me * most + i));
        for (int rank = 0; rank < gen->world; rank++)
            weft_builder_from(gen->builder,
                              weft_region_make(partial, rank, tile.batch, tile.rows, tile.cols));
        weft_gemm_close(gen, true, tile.batch, tile.rows, tile.cols);
    }
}

static void fetch_share(gemm_ar *ar, int from, int64_t most)
{
    weft_shares shares = share_of(ar, from);

    for (int64_t i = 0; i < ar->gen.problem->l * weft_shares_count(&shares); i++) {
        weft_tile tile = tile_of(&shares, i);

        weft_gemm_fetch(&ar->gen, from, tile.batch, tile.rows, tile.cols,
                        ar->left + (uint32_t)(from * most + i));
    }
}

static void unfused(gemm_ar *ar)
{
    weft_gemm_gen *gen = &ar->gen;
    bool staged = gen->problem->tuning.staged;
    int64_t most = 0;
    uint32_t sums;

    for (int rank = 0; rank < gen->world && staged; rank++) {
        weft_shares shares = share_of(ar, rank);
        int64_t count = gen->problem->l * weft_shares_count(&shares);

        most = weft_max(count, most);
    }
    ar->left = weft_builder_signals(gen->builder, gen->world * most);
    sums = weft_gemm_whole_sums(gen);
    if (gen->world > 1)
        reduce_share(ar, sums, most);
    for (int step = 1; step < gen->world && staged; step++)
        fetch_share(ar, weft_rotate(gen->me, step, gen->world), most);
}

void weft_generate_gemm_ar(weft_builder *builder)
{
    gemm_ar ar = {0};

    if (builder->problem->schedule == WEFT_SCHEDULE_TWO_SHOT && builder->problem->tuning.sums_stay) {
        weft_generate_gemm_ar_ring(builder);
        return;
    }
    ar.gen = weft_gemm_begin(builder);
    weft_gemm_declare_packed(&ar.gen);
    if (builder->problem->schedule == WEFT_SCHEDULE_UNFUSED) {
        unfused(&ar);
        return;
    }
    if (builder->problem->schedule == WEFT_SCHEDULE_TWO_SHOT) {
        ar.stream = weft_stream_k_begin(&ar.gen, builder->problem->n, 2 * (int64_t)builder->world);
        two_shot(&ar);
    } else {
        ar.stream = weft_stream_k_begin(&ar.gen, builder->problem->n, 1);
        one_shot(&ar);
    }
}
