/* The division of tiles and iterations over lanes; see stream_k.h. */
#include "plan/stream_k.h"
#include "core/dtype.h"
#include "core/round.h"

static int64_t at_most(int64_t tile, int64_t extent)
{
    return tile == 0 || tile > extent ? extent : tile;
}

int64_t weft_stream_k_width(const weft_problem *p, int64_t cols, int64_t wanted)
{
    int64_t tile = p->tuning.tile_n, grain = p->tuning.grain_n, across, width;
    int64_t rows_of_tiles = p->l * weft_cut_count(p->m, p->tuning.tile_m);

    if (!rows_of_tiles || weft_cut_columns_count(cols, tile, grain) * rows_of_tiles >= wanted)
        return tile;
    across = weft_divide_up(wanted, rows_of_tiles);
    width = weft_divide_up(cols, across);
    width = weft_round_up(width, WEFT_PACK_COLUMNS);
    return tile == 0 || width < tile ? width : tile;
}

/* The shares that iterations of the `number`-th tile after the whole ones lie in: the first, and how many. */
static weft_span shares_of(const weft_stream_k *stream, int64_t number)
{
    int lanes = stream->gen->lanes;
    int64_t total = stream->tiles % lanes * stream->iterations, begin = number * stream->iterations;
    int64_t first = weft_part_of(total, lanes, begin);

    return (weft_span){first, weft_part_of(total, lanes, begin + stream->iterations - 1) - first + 1};
}

/* Tiles and iterations of rank `rank`'s product. */
static void count_on(weft_stream_k *stream, int rank)
{
    const weft_gemm_gen *gen = stream->gen;
    const weft_problem *p = gen->problem;
    const weft_operand *a = &gen->builder->part.operands[gen->a], *b = &gen->builder->part.operands[gen->b];
    int64_t cols = weft_operand_cols(b, gen->world, rank);
    int64_t steps = weft_cut_count(weft_operand_cols(a, gen->world, rank), stream->step);

    stream->iterations = steps ? steps : 1;
    stream->tiles = p->l * weft_cut_count(p->m, p->tuning.tile_m) *
                    weft_cut_columns_count(cols, stream->tile_n, stream->grain_n);
}

weft_stream_k weft_stream_k_on(const weft_stream_k *stream, int rank)
{
    weft_stream_k theirs = *stream;

    if (stream->gen->builder->failed)
        return theirs;
    theirs.cols = weft_whole(
        weft_operand_cols(&stream->gen->builder->part.operands[stream->gen->b], stream->gen->world, rank));
    count_on(&theirs, rank);
    return theirs;
}

/* Whether some rank cuts a tile: all declare the same. Extents differ by one, the first rank having more;
 * with granules one of the ranks may have a shorter one besides. */
static bool any_cuts(const weft_stream_k *stream)
{
    const weft_problem *p = stream->gen->problem;
    int last = stream->gen->world - 1, step = p->granule_n || p->granule_k || !last ? 1 : last;

    for (int rank = 0; rank <= last; rank += step) {
        weft_stream_k theirs = *stream;

        count_on(&theirs, rank);
        for (int64_t i = 0; i < theirs.tiles % theirs.gen->lanes; i++)
            if (shares_of(&theirs, i).count > 1)
                return true;
    }
    return false;
}

static weft_stream_k begin(weft_gemm_gen *gen, int64_t cols, int64_t tiles_wanted, int64_t step, bool banded)
{
    const weft_problem *p = gen->problem;
    int64_t longest =
        gen->builder->failed ? 0 : weft_operand_cols(&gen->builder->part.operands[gen->b], gen->world, 0);
    weft_stream_k stream = {
        .gen = gen,
        .rows = weft_whole(p->m),
        .cols = weft_whole(cols),
        .tile_m = p->tuning.tile_m,
        .tile_n = weft_stream_k_width(p, longest, tiles_wanted),
        .grain_n = p->tuning.grain_n,
        .step = step,
        .banded = banded,
        .slot_rows = at_most(p->tuning.tile_m, p->m),
    };

    stream.signals = weft_builder_signals(gen->builder, gen->lanes - 1);
    if (gen->builder->failed)
        return stream;
    count_on(&stream, gen->me);
    stream.slot_cols = at_most(weft_widest(stream.tile_n, p->tuning.grain_n), longest);
    stream.cuts = any_cuts(&stream);
    /* A share is shorter than a tile, so it has slices of two tiles at most: two slots a lane. */
    if (stream.cuts)
        stream.slices = weft_builder_operand(gen->builder, (weft_operand){
                                                               .name = "slices",
                                                               .place = WEFT_PLACE_PRIVATE,
                                                               .dtype = weft_dtype_accumulator(p->dtype),
                                                               .rows = 2 * gen->lanes * stream.slot_rows,
                                                               .cols = stream.slot_cols,
                                                               .paired = weft_problem_is_gated(p),
                                                               .batch = 1,
                                                           });
    return stream;
}

weft_stream_k weft_stream_k_begin(weft_gemm_gen *gen, int64_t cols, int64_t tiles_wanted)
{
    return begin(gen, cols, tiles_wanted, gen->problem->tuning.tile_k, false);
}

weft_stream_k weft_stream_k_begin_banded(weft_gemm_gen *gen, int64_t cols, int64_t step)
{
    return begin(gen, cols, 1, step, true);
}

weft_tile weft_stream_k_tile(const weft_stream_k *stream, int64_t number)
{
    int64_t across = weft_cut_columns_count(stream->cols.count, stream->tile_n, stream->grain_n);
    int64_t down = weft_cut_count(stream->rows.count, stream->tile_m);

    return (weft_tile){
        .batch = weft_quotient(number, across * down),
        .rows = weft_cut(stream->rows, stream->tile_m, weft_remainder(weft_quotient(number, across), down)),
        .cols =
            weft_cut_columns(stream->cols, stream->tile_n, stream->grain_n, weft_remainder(number, across)),
    };
}

/* The slice of the `number`-th cut tile that lies in share `share` of `total` iterations; its slot. */
static weft_span slice_of(const weft_stream_k *stream, int64_t total, int64_t number, int64_t share,
                          int64_t *slot)
{
    weft_span range = weft_part(total, stream->gen->lanes, share);
    int64_t begin = number * stream->iterations, end = begin + stream->iterations;

    *slot = 2 * share + (range.begin < begin);
    if (range.begin > begin)
        begin = range.begin;
    if (range.begin + range.count < end)
        end = range.begin + range.count;
    return (weft_span){begin - number * stream->iterations, end - begin};
}

static weft_region slot_region(const weft_stream_k *stream, const weft_tile *tile, weft_span band,
                               int64_t slot)
{
    weft_span rows = {slot * stream->slot_rows + band.begin, band.count};

    return weft_region_make(stream->slices, stream->gen->me, 0, rows, weft_whole(tile->cols.count));
}

static int64_t slot_of(const weft_stream_k *stream, const weft_slices *slices, int64_t index)
{
    int64_t slot;

    slice_of(stream, slices->total, slices->number, slices->first_share + index, &slot);
    return slot;
}

/* One slice of a cut tile, raw, into its slot. It is announced, unless its lane alone finishes the tile. */
static void emit_slice(weft_stream_k *stream, const weft_tile *tile, const weft_slices *slices, int64_t index)
{
    weft_gemm_gen *gen = stream->gen;
    int64_t share = slices->first_share + index, slot, step = at_most(stream->step, gen->local_k.count);
    weft_span iterations = slice_of(stream, slices->total, slices->number, share, &slot);
    weft_span k = {iterations.begin * step, iterations.count * step};

    if (k.begin + k.count > gen->local_k.count)
        k.count = gen->local_k.count - k.begin;
    weft_gemm_open(gen, (int)share, WEFT_TASK_GEMM, false, false);
    weft_builder_to(gen->builder, slot_region(stream, tile, weft_whole(tile->rows.count), slot));
    weft_builder_from(gen->builder, weft_region_make(gen->a, gen->me, tile->batch, tile->rows, k));
    weft_builder_from(gen->builder, weft_region_make(gen->b_source, gen->me, tile->batch, k, tile->cols));
    if (stream->banded || index + 1 < slices->count)
        weft_builder_post(gen->builder, slices->signal, gen->me);
    weft_builder_end(gen->builder);
}

enum { BAND_ELEMENTS = 16384 }; /* of all slices: less is not worth a task */

/* Finishes a cut tile: by the lane of its last slice, or band by band by those that have slices. */
static void finish_tile(weft_stream_k *stream, const weft_tile *tile, int64_t number, weft_slices *slices,
                        weft_tile_emit emit, void *context)
{
    int64_t elements = tile->rows.count * tile->cols.count * slices->count;
    int64_t bands = stream->banded ? elements / BAND_ELEMENTS : 1;

    bands = weft_max(1, weft_min(bands, weft_min(slices->count, tile->rows.count)));
    weft_builder_expect(stream->gen->builder, slices->signal, slices->count - !stream->banded);
    for (int64_t i = 0; i < bands; i++) {
        slices->band = weft_part(tile->rows.count, bands, i);
        emit(context, (int)(slices->first_share + slices->count - bands + i), number, slices);
    }
}

void weft_stream_k_run(weft_stream_k *stream, const int64_t *order, weft_tile_emit emit, void *context)
{
    int lanes = stream->gen->lanes;
    int64_t whole = stream->tiles / lanes * lanes, cut = stream->tiles - whole;
    int64_t total = cut * stream->iterations;

    for (int64_t i = 0; i < whole; i++)
        emit(context, (int)(i % lanes), order ? order[i] : i, NULL);
    /* First every slice, then the finishing: a lane should not wait while it still has work for others. */
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < cut; i++) {
            int64_t number = order ? order[whole + i] : whole + i;
            weft_tile tile = weft_stream_k_tile(stream, number);
            weft_span shares = shares_of(stream, i);
            int64_t last = shares.begin + shares.count - 1;
            weft_slices slices = {
                .total = total,
                .number = i,
                .first_share = shares.begin,
                .count = shares.count,
                .signal = stream->signals + (uint32_t)i,
            };

            if (slices.count == 1) {
                if (pass == 0)
                    emit(context, (int)last, number, NULL);
                continue;
            }
            for (int64_t index = 0; index < slices.count && pass == 0; index++)
                emit_slice(stream, &tile, &slices, index);
            if (pass == 1)
                finish_tile(stream, &tile, number, &slices, emit, context);
        }
    }
}

void weft_stream_k_product(const weft_stream_k *stream, const weft_tile *tile)
{
    weft_gemm_gen *gen = stream->gen;

    weft_builder_from(gen->builder, weft_region_make(gen->a, gen->me, tile->batch, tile->rows, gen->local_k));
    weft_builder_from(gen->builder,
                      weft_region_make(gen->b_source, gen->me, tile->batch, gen->local_k, tile->cols));
}

void weft_stream_k_sources(const weft_stream_k *stream, const weft_tile *tile, const weft_slices *slices)
{
    weft_builder *builder = stream->gen->builder;

    for (int64_t i = 0; i < slices->count; i++)
        weft_builder_from(builder, slot_region(stream, tile, slices->band, slot_of(stream, slices, i)));
    weft_builder_wait(builder, slices->signal, slices->count - !stream->banded);
}
