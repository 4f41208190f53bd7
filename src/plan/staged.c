#include "plan/staged.h"

#include "core/dtype.h"
#include "core/round.h"
#include "plan/generate.h"

#include <stdio.h>

enum {
    CHUNK_BYTES = 256 << 10,
    COPIED_BYTES = 32 << 10, /* the same where many copy lanes share them */
    CHUNK_LINE = 32          /* elements side by side, at least, where lines in memory run across chunks */
};

static weft_operand staging_like(const weft_operand *user, const char *name)
{
    weft_operand staging = *user;

    snprintf(staging.name, sizeof(staging.name), "%s", name);
    staging.place = WEFT_PLACE_STAGING;
    staging.role = WEFT_ROLE_NONE;
    staging.output = false;
    return staging;
}

bool weft_staged_by_copiers(const weft_problem *p)
{
    return p->tuning.copiers > 0 &&
           (p->schedule == WEFT_SCHEDULE_ALLGATHER_ROTATING_A ||
            p->schedule == WEFT_SCHEDULE_ALLGATHER_ROTATING_B ||
            (p->schedule == WEFT_SCHEDULE_DIRECT && !weft_layout_gathers_k(p->layout)));
}

void weft_staged_begin(weft_builder *builder, uint32_t operand, bool by_rows)
{
    weft_staged *s = &builder->staged;
    const weft_problem *p = builder->problem;
    bool copied = weft_staged_by_copiers(p);
    int64_t tile = by_rows ? p->tuning.tile_m : p->tuning.tile_n, across, bytes;
    const weft_operand *o;
    char name[12];

    if (builder->failed || builder->world == 1)
        return;
    o = &builder->part.operands[operand];
    across = by_rows ? weft_operand_cols(o, builder->world, 0) : weft_operand_rows(o, builder->world, 0);
    bytes = across * weft_operand_width(o) * (int64_t)weft_dtype_size(o->dtype);
    *s = (weft_staged){.operand = operand,
                       .by_rows = by_rows,
                       .chunk = bytes ? (copied ? COPIED_BYTES : CHUNK_BYTES) / bytes : 1,
                       .lane0 = copied ? weft_compute_lanes(p) : 0,
                       .lanes = copied ? p->tuning.copiers : weft_compute_lanes(p)};
    if (s->chunk < 1)
        s->chunk = 1;
    if (by_rows == o->transposed && s->chunk < CHUNK_LINE)
        s->chunk = CHUNK_LINE;
    if (tile && s->chunk > tile) /* what is needed together */
        s->chunk = tile;
    snprintf(name, sizeof(name), "staged%.5s", o->name);
    /* all of it is there by the time the own is multiplied; and sums are added up in the same order as in a
     * plan that does not stage, where only the first task of a lane that reads a peer waits for it */
    s->places = copied && p->schedule == WEFT_SCHEDULE_DIRECT ? 1 : s->lanes;
    s->copy = weft_builder_operand(builder, staging_like(o, name));
    s->signals = weft_builder_signals(builder, (int64_t)builder->world * s->places);
    for (int peer = 0; peer < builder->world && !builder->failed; peer++)
        for (int place = 0; place < s->places; place++)
            weft_builder_expect(builder, s->signals + (uint32_t)(peer * s->places + place),
                                peer == builder->rank || weft_builder_crosses(builder, peer)
                                    ? 0
                                    : weft_builder_staged_of(builder, peer, place));
}

/* How many chunks this rank has, of all matrices. */
static int64_t own_chunks(const weft_builder *builder)
{
    return builder->failed || !builder->staged.chunk ? 0
                                                     : builder->part.operands[builder->staged.operand].batch *
                                                           weft_builder_staged_chunks(builder, builder->rank);
}

void weft_staged_next(weft_builder *builder)
{
    weft_staged *s = &builder->staged;
    const weft_operand *o;
    weft_span rows, cols;
    int64_t chunks, batch;
    int lane;

    if (s->done >= own_chunks(builder))
        return;
    o = &builder->part.operands[s->operand];
    chunks = weft_builder_staged_chunks(builder, builder->rank);
    rows = weft_whole(weft_operand_rows(o, builder->world, builder->rank));
    cols = weft_whole(weft_operand_cols(o, builder->world, builder->rank));
    if (s->by_rows)
        rows = weft_cut(rows, s->chunk, s->done % chunks);
    else
        cols = weft_cut(cols, s->chunk, s->done % chunks);
    batch = s->done / chunks;
    lane = (int)(s->done % s->lanes);
    weft_builder_task(builder, s->lane0 + lane, WEFT_TASK_COPY, 0);
    weft_builder_to(builder, weft_region_make(s->copy, builder->rank, batch, rows, cols));
    weft_builder_from(builder, weft_region_make(s->operand, builder->rank, batch, rows, cols));
    for (int step = 1; step < builder->world; step++) {
        int peer = weft_rotate(builder->rank, step, builder->world);

        if (!weft_builder_crosses(builder, peer))
            weft_builder_post(builder, s->signals + (uint32_t)(builder->rank * s->places + lane % s->places),
                              peer);
    }
    weft_builder_end(builder);
    s->done++;
}

void weft_staged_until(weft_builder *builder, int64_t batch, int64_t end)
{
    int64_t chunks = own_chunks(builder) ? weft_builder_staged_chunks(builder, builder->rank) : 0, up_to;

    if (!chunks)
        return;
    up_to = weft_divide_up(end, builder->staged.chunk);
    up_to = batch * chunks + weft_min(up_to, chunks);
    while (builder->staged.done < up_to && !builder->failed)
        weft_staged_next(builder);
}

void weft_staged_rest(weft_builder *builder)
{
    while (builder->staged.done < own_chunks(builder))
        weft_staged_next(builder);
}

uint32_t weft_staged_results(weft_builder *builder, uint32_t d)
{
    return builder->failed
               ? 0
               : weft_builder_operand(builder, staging_like(&builder->part.operands[d], "results"));
}
