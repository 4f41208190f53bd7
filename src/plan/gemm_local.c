/*
 * The product of a rank that has it to itself, where k may be divided (chunk_k): Stream-K with the finishing
 * of cut tiles divided over the lanes that have slices of them. All operations are this product on one rank.
 *
 * Order of a sum: whole tiles as the kernel adds; cut ones by slices of ascending k.
 */
#include "core/round.h"
#include "plan/stream_k.h"

#include <stdlib.h>

typedef struct gemm_local {
    weft_gemm_gen gen;
    weft_stream_k stream;
} gemm_local;

static void emit_tile(void *context, int lane, int64_t number, const weft_slices *slices)
{
    gemm_local *local = context;
    weft_gemm_gen *gen = &local->gen;
    weft_tile tile = weft_stream_k_tile(&local->stream, number);
    weft_span rows = tile.rows;

    if (slices)
        rows = (weft_span){tile.rows.begin + slices->band.begin, slices->band.count};
    weft_gemm_open(gen, lane, slices ? WEFT_TASK_REDUCE : WEFT_TASK_GEMM, true, false);
    weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, tile.batch, rows, tile.cols));
    if (slices)
        weft_stream_k_sources(&local->stream, &tile, slices);
    else
        weft_stream_k_product(&local->stream, &tile);
    weft_gemm_close(gen, true, tile.batch, rows, tile.cols);
}

/* `raster` rows of tiles side by side, so that neighbours in time share both operands. */
static int64_t *raster_order(const weft_stream_k *stream)
{
    const weft_problem *p = stream->gen->problem;
    int64_t raster = p->tuning.raster > 0 ? p->tuning.raster : 1, at = 0;
    int64_t across = weft_cut_columns_count(stream->cols.count, stream->tile_n, stream->grain_n),
            down = weft_cut_count(stream->rows.count, stream->tile_m);
    int64_t *order = malloc((size_t)(stream->tiles + 1) * sizeof(*order));

    for (int64_t batch = 0; order && stream->tiles && batch < p->l; batch++)
        for (int64_t row0 = 0; row0 < down; row0 += raster)
            for (int64_t col = 0; col < across; col++)
                for (int64_t row = row0; row < row0 + raster && row < down; row++)
                    order[at++] = (batch * down + row) * across + col;
    return order;
}

void weft_generate_local(weft_builder *builder)
{
    gemm_local local = {.gen = weft_gemm_begin(builder)};
    const weft_problem *p = builder->problem;
    int64_t grain = p->tuning.tile_k, *order;

    if (grain == 0) /* panels of a packed B are as long as tile_k says: all of k */
        grain = p->b_form == WEFT_B_PLAIN || p->k == 0 ? 1 : p->k;
    weft_gemm_declare_packed(&local.gen);
    local.stream = weft_stream_k_begin_banded(&local.gen, p->n, weft_round_up(p->tuning.chunk_k, grain));
    weft_gemm_pack(&local.gen);
    order = raster_order(&local.stream);
    if (order)
        weft_stream_k_run(&local.stream, order, emit_tile, &local);
    else
        builder->failed = true;
    free(order);
}
