/* Operands and tasks that the GEMM operations have in common. */
#include "plan/gemm_parts.h"
#include "core/dtype.h"
#include "core/round.h"
#include "plan/staged.h"
#include "plan/user_operands.h"

#include <stdio.h>

weft_gemm_gen weft_gemm_begin(weft_builder *builder)
{
    const weft_problem *p = builder->problem;
    weft_operand operands[WEFT_USER_OPERANDS_MAX];
    int count = weft_user_operands(p, builder->world, operands);
    bool by_rows = p->layout == WEFT_LAYOUT_GATHER_A || p->layout == WEFT_LAYOUT_GATHER_A_K;
    weft_gemm_gen gen = {.builder = builder,
                         .problem = p,
                         .world = builder->world,
                         .me = builder->rank,
                         .lanes = weft_compute_lanes(p)};

    for (int i = 0; i < count; i++) {
        uint32_t number = weft_builder_operand(builder, operands[i]);

        switch (operands[i].role) {
        case WEFT_ROLE_A:
            gen.a = number;
            gen.local_k = weft_whole(weft_operand_cols(&operands[i], gen.world, gen.me));
            break;
        case WEFT_ROLE_B:
            gen.b = gen.b_source = number;
            break;
        case WEFT_ROLE_C:
            gen.c = number;
            break;
        case WEFT_ROLE_BIAS:
            gen.bias = number;
            break;
        default:
            gen.d = number;
            break;
        }
    }
    weft_builder_lanes(builder, WEFT_LANE_COMPUTE, gen.lanes);
    if (p->tuning.staged && p->op == WEFT_OP_AG_GEMM)
        weft_staged_begin(builder, by_rows ? gen.a : gen.b, by_rows);
    else if (p->tuning.staged && !builder->domain)
        gen.results = weft_staged_results(builder, gen.d);
    return gen;
}

void weft_gemm_declare_copiers(weft_gemm_gen *gen)
{
    gen->copiers = gen->problem->tuning.copiers;
    weft_builder_lanes(gen->builder, WEFT_LANE_COPY, gen->copiers);
}

uint32_t weft_gemm_staging(weft_gemm_gen *gen, const char *name, int64_t rows, int64_t cols, int64_t batch)
{
    weft_operand staging = {.place = WEFT_PLACE_STAGING,
                            .dtype = gen->problem->wire_dtype,
                            .rows = rows,
                            .cols = cols,
                            .paired = weft_problem_is_gated(gen->problem),
                            .batch = batch};

    snprintf(staging.name, sizeof(staging.name), "%s", name);
    return weft_builder_operand(gen->builder, staging);
}

void weft_gemm_hand_on(weft_gemm_gen *gen, uint32_t staging)
{
    const weft_problem *p = gen->problem;

    if (!gen->builder->failed && p->wire_dtype == weft_dtype_accumulator(p->dtype))
        gen->builder->part.operands[staging].handed_on = true;
}

/* One row of tiles uses each column of B once: packing it first would only move it through memory twice. */
static bool used_once(const weft_problem *p)
{
    return (p->op == WEFT_OP_GEMM_AR || p->op == WEFT_OP_GEMM_AS) &&
           weft_cut_count(p->m, p->tuning.tile_m) <= 1;
}

void weft_gemm_declare_packed(weft_gemm_gen *gen)
{
    const weft_operand *b = gen->builder->failed ? NULL : &gen->builder->part.operands[gen->b];
    weft_operand packed;

    if (!b || gen->problem->b_form != WEFT_B_PACK_IN_RUN || used_once(gen->problem))
        return;
    packed = *b;
    snprintf(packed.name, sizeof(packed.name), "packedB");
    packed.place = WEFT_PLACE_PRIVATE;
    packed.role = WEFT_ROLE_NONE;
    packed.transposed = false;
    packed.packed = true;
    gen->b_source = weft_builder_operand(gen->builder, packed);
    gen->packed_signal = weft_builder_signals(gen->builder, 1);
}

void weft_gemm_pack(weft_gemm_gen *gen)
{
    weft_builder *builder = gen->builder;
    const weft_operand *b = builder->failed ? NULL : &builder->part.operands[gen->b];
    int64_t columns, tile, pieces, grain = gen->problem->tuning.grain_n;
    weft_span rows;

    if (!b || gen->b_source == gen->b)
        return;
    rows = weft_whole(weft_operand_rows(b, gen->world, gen->me));
    columns = weft_operand_cols(b, gen->world, gen->me);
    tile = weft_divide_up(columns, gen->lanes);
    if (!grain)
        tile = weft_round_up(tile, WEFT_PACK_COLUMNS);
    pieces = rows.count ? weft_cut_columns_count(columns, tile, grain) : 0;
    for (int64_t batch = 0; batch < gen->problem->l; batch++) {
        for (int64_t i = 0; i < pieces; i++) {
            weft_span cols = weft_cut_columns(weft_whole(columns), tile, grain, i);

            weft_builder_task(builder, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
            weft_builder_to(builder, weft_region_make(gen->b_source, gen->me, batch, rows, cols));
            weft_builder_from(builder, weft_region_make(gen->b, gen->me, batch, rows, cols));
            if (gen->lanes > 1)
                weft_builder_post(builder, gen->packed_signal, gen->me);
            weft_builder_end(builder);
        }
    }
    if (gen->lanes > 1) {
        weft_builder_expect(builder, gen->packed_signal, pieces * gen->problem->l);
        weft_builder_gate(builder, gen->packed_signal, pieces * gen->problem->l);
    }
}

enum { SHARE_COLUMNS = 64 }; /* of which a share has a multiple: whole lines of memory */

weft_shares weft_shares_of(const weft_problem *problem, weft_span rows, weft_span cols, int64_t tile_m,
                           int64_t tile_n)
{
    int64_t lanes = weft_compute_lanes(problem), lines = weft_divide_up(cols.count, SHARE_COLUMNS);
    weft_shares shares = {.rows = rows,
                          .cols = cols,
                          .tile_m = tile_m,
                          .tile_n = tile_n,
                          .down = weft_cut_count(rows.count, tile_m),
                          .across = weft_cut_count(cols.count, tile_n),
                          .even = problem->tuning.grain_n > 0 && rows.count && cols.count};

    if (shares.even) {
        shares.down = weft_min(rows.count, lanes);
        shares.across = weft_min(lanes / shares.down, lines);
    }
    return shares;
}

void weft_share(const weft_shares *shares, int64_t index, weft_span *rows, weft_span *cols)
{
    int64_t row = index / shares->across, col = index % shares->across, end;
    weft_span all = shares->cols;

    if (!shares->even) {
        *rows = weft_cut(shares->rows, shares->tile_m, row);
        *cols = weft_cut(all, shares->tile_n, col);
        return;
    }
    *rows = weft_part(shares->rows.count, shares->down, row);
    rows->begin += shares->rows.begin;
    *cols = weft_part(weft_divide_up(all.count, SHARE_COLUMNS), shares->across, col);
    end = (cols->begin + cols->count) * SHARE_COLUMNS;
    *cols = (weft_span){all.begin + cols->begin * SHARE_COLUMNS,
                        weft_min(end, all.count) - cols->begin * SHARE_COLUMNS};
}

void weft_gemm_open(weft_gemm_gen *gen, int lane, weft_task_kind kind, bool epilogue, bool acc)
{
    unsigned flags = acc ? WEFT_TASK_HAS_ACC : 0;

    if (epilogue) {
        flags |= WEFT_TASK_EPILOGUE;
        flags |= gen->problem->beta != 0 ? WEFT_TASK_HAS_C : 0;
        flags |= gen->problem->bias ? WEFT_TASK_HAS_BIAS : 0;
    }
    weft_builder_task(gen->builder, lane, kind, flags);
}

void weft_gemm_close(weft_gemm_gen *gen, bool epilogue, int64_t batch, weft_span rows, weft_span cols)
{
    if (epilogue && gen->problem->beta != 0)
        weft_builder_from(gen->builder, weft_region_make(gen->c, gen->me, batch, rows, cols));
    if (epilogue && gen->problem->bias)
        weft_builder_from(gen->builder, weft_region_make(gen->bias, gen->me, 0, weft_whole(1), cols));
    weft_builder_end(gen->builder);
}

void weft_gemm_to_all(weft_gemm_gen *gen, int64_t batch, weft_span rows, weft_span cols, uint32_t left)
{
    bool staged = gen->problem->tuning.staged;

    for (int step = 0; step < (staged ? 1 : gen->world); step++)
        weft_builder_to(gen->builder,
                        weft_region_make(gen->d, weft_rotate(gen->me, step, gen->world), batch, rows, cols));
    if (!staged)
        return;
    weft_builder_to(gen->builder, weft_region_make(gen->results, gen->me, batch, rows, cols));
    for (int step = 1; step < gen->world; step++)
        weft_builder_post(gen->builder, left, weft_rotate(gen->me, step, gen->world));
}

void weft_gemm_fetch(weft_gemm_gen *gen, int from, int64_t batch, weft_span rows, weft_span cols,
                     uint32_t left)
{
    int64_t band = gen->copiers
                       ? weft_band_lines(cols.count * (int64_t)weft_dtype_size(gen->problem->d_dtype))
                       : rows.count;

    weft_builder_expect(gen->builder, left, 1);
    for (int64_t i = 0; i < weft_cut_count(rows.count, band); i++) {
        weft_span cut = weft_cut(rows, band, i);

        weft_builder_task(gen->builder, weft_gemm_copy_lane(gen), WEFT_TASK_COPY, 0);
        weft_builder_to(gen->builder, weft_region_make(gen->d, gen->me, batch, cut, cols));
        weft_builder_from(gen->builder, weft_region_make(gen->results, from, batch, cut, cols));
        weft_builder_wait(gen->builder, left, 1);
        weft_builder_end(gen->builder);
    }
}
