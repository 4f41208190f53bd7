/*
 * The generators: one per operation, each in its file. A generator gets a resolved problem and fills the
 * builder; weft_plan_make (make.c) picks it and closes the part.
 *
 * Conventions: `me` is the builder's rank, rotations start at one's own rank so that at any moment the
 * ranks talk to different peers, and work is dealt to compute lanes in turn.
 */
#ifndef WEFT_PLAN_GENERATE_H
#define WEFT_PLAN_GENERATE_H

#include "core/round.h"
#include "plan/builder.h"

void weft_generate_ag_gemm(weft_builder *builder);
void weft_generate_ag_gemm_k(weft_builder *builder); /* ag_gemm, where k is gathered */
void weft_generate_gemm_rs(weft_builder *builder);
void weft_generate_gemm_ar(weft_builder *builder);
void weft_generate_gemm_ar_ring(weft_builder *builder); /* two_shot, where sums stay */
void weft_generate_gemm_as(weft_builder *builder);
void weft_generate_gemm_packets(weft_builder *builder); /* gemm_rs and gemm_ar, unfused, with `exchange` */
void weft_generate_local(weft_builder *builder);        /* any of them on one rank, with chunk_k */
void weft_generate_all_reduce(weft_builder *builder);
void weft_generate_all_gather(weft_builder *builder);
void weft_generate_reduce_scatter(weft_builder *builder);
void weft_generate_all_to_all(weft_builder *builder);
void weft_generate_broadcast(weft_builder *builder);
void weft_generate_staged_collective(weft_builder *builder); /* any collective, with `staged` */
void weft_generate_packets(weft_builder *builder);           /* any collective, with that schedule */
void weft_generate_two_shot_packets(weft_builder *builder);  /* all_reduce, with that schedule */

/* ---- cutting ------------------------------------------------------------------------------------- */

/* How many pieces of at most `tile` an extent has, and the i-th of them. tile 0: one piece. */
static inline int64_t weft_cut_count(int64_t extent, int64_t tile)
{
    return extent == 0 ? 0 : tile == 0 || tile >= extent ? 1 : weft_divide_up(extent, tile);
}

/* Lines of a copy task where many copy lanes share what is copied: little enough that a piece of it keeps all
 * of them busy. */
static inline int64_t weft_band_lines(int64_t line_bytes)
{
    enum { BAND_BYTES = 16384 };

    return line_bytes >= BAND_BYTES ? 1 : BAND_BYTES / (line_bytes > 0 ? line_bytes : 1);
}

static inline weft_span weft_cut(weft_span span, int64_t tile, int64_t index)
{
    int64_t step = tile == 0 || tile >= span.count ? span.count : tile;
    int64_t left = span.count - index * step;

    return (weft_span){span.begin + index * step, weft_min(left, step)};
}

/* No tile has more columns. */
static inline int64_t weft_widest(int64_t tile, int64_t grain)
{
    return grain ? weft_round_up(tile, grain) : tile;
}

/*
 * The same for columns, whose tiles share `grain` by `grain` what there is, so that none is left with a rest;
 * with a grain of 0 they are cut like rows. The first is one of the widest; wide ones and narrow ones take
 * turns, so that workers who get every so many have as much as others.
 */
static inline int64_t weft_cut_columns_count(int64_t extent, int64_t tile, int64_t grain)
{
    int64_t count = weft_cut_count(extent, tile), grains = grain ? weft_divide_up(extent, grain) : count;

    return weft_min(count, grains);
}

/* Columns that are cut many times: what every tile needs is divided once. */
typedef struct weft_column_cuts {
    weft_span span;
    int64_t tile, grain, grains, count;
} weft_column_cuts;

static inline weft_column_cuts weft_column_cuts_of(weft_span span, int64_t tile, int64_t grain)
{
    return (weft_column_cuts){.span = span,
                              .tile = tile,
                              .grain = grain,
                              .grains = grain ? weft_divide_up(span.count, grain) : 0,
                              .count = weft_cut_columns_count(span.count, tile, grain)};
}

static inline weft_span weft_column_cut(const weft_column_cuts *cuts, int64_t index)
{
    int64_t begin, end;

    if (!cuts->grain)
        return weft_cut(cuts->span, cuts->tile, index);
    begin = weft_divide_up(index * cuts->grains, cuts->count) * cuts->grain;
    end = weft_min(weft_divide_up((index + 1) * cuts->grains, cuts->count) * cuts->grain, cuts->span.count);
    return (weft_span){cuts->span.begin + begin, end - begin};
}

static inline weft_span weft_cut_columns(weft_span span, int64_t tile, int64_t grain, int64_t index)
{
    weft_column_cuts cuts = weft_column_cuts_of(span, tile, grain);

    return weft_column_cut(&cuts, index);
}

static inline weft_span weft_whole(int64_t extent)
{
    return (weft_span){0, extent};
}

/* Up to so many rows, what a product takes is reading B; beyond the second number, it is not worth a copy of
 * all of A to read B less often. */
enum { WEFT_FEW_ROWS = 32, WEFT_FEW_ROWS_IN_ALL = 256 };

/* Whether a rank's rows of A are so few that each rank's by themselves would wait for B once more. */
static inline bool weft_ag_gemm_has_few_rows(const weft_problem *problem, int world)
{
    return problem->op == WEFT_OP_AG_GEMM && problem->layout == WEFT_LAYOUT_GATHER_A &&
           problem->m <= WEFT_FEW_ROWS_IN_ALL && problem->m <= (int64_t)WEFT_FEW_ROWS * world;
}

/* Whether the whole local product is one task, which a library or a kernel of its own makes (1 and 3:
 * `library` of a tuning). */
static inline bool weft_problem_by_library(const weft_problem *problem, int world)
{
    return problem->tuning.library % 2 == 1 && world > 1 && problem->b_form == WEFT_B_PLAIN;
}

/* Whether an ag_gemm multiplies all rows of A together, once they are there, and not each rank's by itself.
 */
static inline bool weft_ag_gemm_at_once(const weft_problem *problem, int world)
{
    return problem->schedule == WEFT_SCHEDULE_UNFUSED && world > 1 &&
           weft_ag_gemm_has_few_rows(problem, world) && !weft_problem_by_library(problem, world);
}

/* Whether an ag_gemm fetches all of A first, which crosses to each other node once. */
static inline bool weft_ag_gemm_gathers_first(const weft_problem *problem, int world)
{
    return problem->op == WEFT_OP_AG_GEMM && problem->schedule == WEFT_SCHEDULE_UNFUSED && world > 1 &&
           problem->layout == WEFT_LAYOUT_GATHER_A && !weft_problem_by_library(problem, world);
}

static inline int weft_compute_lanes(const weft_problem *problem)
{
    return problem->tuning.workers > 0 ? problem->tuning.workers : 1;
}

/* The rank `step` places after `rank`. */
static inline int weft_rotate(int rank, int64_t step, int world)
{
    return (int)weft_remainder(rank + step, world);
}

/* ---- collectives --------------------------------------------------------------------------------- */

/* SEND and RECV of a collective (RECV is the output) and its compute lanes. */
typedef struct weft_collective {
    weft_builder *builder;
    uint32_t send, recv;
    int lanes;
    int64_t tile, dealt;
} weft_collective;

weft_collective weft_collective_begin(weft_builder *builder);

/* The whole of a collective in which row p of a rank's recv is what rank p sends it: the only row of its
 * send, or in an all-to-all the one that belongs to that rank. */
void weft_collective_exchange(weft_builder *builder);

static inline int weft_collective_lane(weft_collective *collective)
{
    return (int)weft_remainder(collective->dealt++, collective->lanes);
}

static inline weft_region weft_row(uint32_t operand, int rank, int64_t row, weft_span cols)
{
    return (weft_region){operand, rank, 0, row, 1, cols.begin, cols.count};
}

#endif
