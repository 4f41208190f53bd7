/* Pieces dealt to the copy lanes chunk by chunk of k, and tiles that go on with their sums as those come. */
#include "plan/ag_gemm_chunks.h"

#include "core/dtype.h"

static weft_span chunk_of(const weft_ag_gen *ag, int64_t chunk)
{
    return ag->chunks == 1 ? ag->gen.local_k
                           : weft_cut(ag->gen.local_k, ag->gen.problem->tuning.chunk_k, chunk);
}

/* The signal that says how much of a chunk of a piece is there; pieces are numbered by rank, batch, place. */
static uint32_t chunk_signal(const weft_ag_gen *ag, int rank, int64_t batch, int64_t piece, int64_t chunk)
{
    int64_t most = weft_ag_piece_count(ag, weft_ag_shard(ag, 0).count);

    return ag->signal + (uint32_t)(((rank * ag->gen.problem->l + batch) * most + piece) * ag->chunks + chunk);
}

int64_t weft_ag_chunk_signals(const weft_ag_gen *ag)
{
    int64_t most = weft_ag_piece_count(ag, weft_ag_shard(ag, 0).count);

    return ag->gen.world * ag->gen.problem->l * most * ag->chunks;
}

/* Copies are cut along the lines in memory, into bands; those that pack are not. */
static int64_t band_lines(const weft_ag_gen *ag, weft_span piece, weft_span k)
{
    if (ag->slot)
        return k.count;

    return weft_band_lines((weft_ag_gathers_a(ag) ? k.count : piece.count) *
                           (int64_t)weft_dtype_size(ag->gen.problem->dtype));
}

/* One chunk of a piece, its bands dealt to the copy lanes in turn. Returns how many bands there are. */
static int64_t fetch_chunk(weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k,
                           uint32_t signal)
{
    weft_builder *b = ag->gen.builder;
    weft_span lines = weft_ag_gathers_a(ag) ? piece : k;
    int64_t band = band_lines(ag, piece, k), bands = weft_cut_count(lines.count, band);

    for (int64_t i = 0; i < bands; i++) {
        weft_span cut = weft_cut(lines, band, i);
        weft_span part = weft_ag_gathers_a(ag) ? cut : piece, depth = weft_ag_gathers_a(ag) ? k : cut;

        weft_builder_task(b, ag->gen.lanes + (int)(ag->bands++ % ag->copy_lanes), WEFT_TASK_COPY, 0);
        weft_builder_to(b, weft_ag_in_gathered(ag, rank, batch, part, depth));
        weft_builder_from(b, weft_ag_in_place(ag, rank, batch, part, depth));
        weft_builder_post(b, signal, ag->gen.me);
        weft_builder_end(b);
    }
    weft_builder_expect(b, signal, bands);
    return bands;
}

/* A place in the order of use: rasters of the peers' shards one after another. */
typedef struct ag_place {
    int step;
    int64_t batch, raster;
} ag_place;

static bool place_valid(const weft_ag_gen *ag, const ag_place *at)
{
    return at->step < ag->gen.world;
}

static int place_rank(const weft_ag_gen *ag, const ag_place *at)
{
    return weft_rotate(ag->gen.me, at->step, ag->gen.world);
}

static void place_settle(const weft_ag_gen *ag, ag_place *at)
{
    while (place_valid(ag, at) && at->raster >= weft_ag_raster_count(ag, place_rank(ag, at))) {
        at->raster = 0;
        if (++at->batch == ag->gen.problem->l) {
            at->batch = 0;
            at->step++;
        }
    }
}

static void place_next(const weft_ag_gen *ag, ag_place *at)
{
    at->raster++;
    place_settle(ag, at);
}

/* The chunks of all pieces of one raster. */
static void fetch_raster(weft_ag_gen *ag, const ag_place *at, int64_t chunk)
{
    int rank = place_rank(ag, at);
    weft_span raster = weft_ag_raster(ag, rank, at->raster), k = chunk_of(ag, chunk);

    for (int64_t i = 0; i < raster.count; i++) {
        weft_ag_tile t = weft_ag_tile_at(ag, rank, at->batch, raster, i);

        fetch_chunk(ag, rank, at->batch, t.piece, k,
                    chunk_signal(ag, rank, at->batch, raster.begin + i, chunk));
    }
}

/* The tiles of one raster, each going on from chunk to chunk. */
static void carry_raster(weft_ag_gen *ag, const ag_place *at)
{
    int rank = place_rank(ag, at);
    weft_span raster = weft_ag_raster(ag, rank, at->raster);

    for (int64_t i = 0; i < raster.count * weft_ag_cut_count(ag); i++) {
        weft_ag_tile t = weft_ag_tile_at(ag, rank, at->batch, raster, i);
        int lane = weft_gemm_lane(&ag->gen);

        for (int64_t chunk = 0; chunk < ag->chunks; chunk++) {
            weft_span k = chunk_of(ag, chunk), lines = weft_ag_gathers_a(ag) ? t.piece : k;

            weft_ag_multiply(ag, lane, &t, weft_ag_in_gathered(ag, rank, at->batch, t.piece, k), k,
                             chunk == 0, chunk == ag->chunks - 1,
                             chunk_signal(ag, rank, at->batch, raster.begin + i % raster.count, chunk),
                             weft_cut_count(lines.count, band_lines(ag, t.piece, k)));
        }
    }
}

void weft_ag_share_all(weft_ag_gen *ag)
{
    int64_t lanes = ag->gen.lanes;
    ag_place from = {.step = 1}, at;

    place_settle(ag, &from);
    while (place_valid(ag, &from)) {
        int64_t dealt = ag->gen.dealt, round = (dealt / lanes + 1) * lanes;

        for (int64_t chunk = 0; chunk < ag->chunks; chunk++) {
            dealt = ag->gen.dealt;
            for (at = from; place_valid(ag, &at) && dealt < round; place_next(ag, &at)) {
                fetch_raster(ag, &at, chunk);
                dealt += weft_ag_raster(ag, place_rank(ag, &at), at.raster).count * weft_ag_cut_count(ag);
            }
        }
        for (ag_place use = from; use.step != at.step || use.batch != at.batch || use.raster != at.raster;
             place_next(ag, &use))
            carry_raster(ag, &use);
        from = at;
    }
}

void weft_ag_declare_chunks(weft_ag_gen *ag, bool pack_b)
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
