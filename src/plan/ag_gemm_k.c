/*
 * All-gather + GEMM where what is gathered is k, as in the gradient of a weight: D = A B, and rank r holds
 *   gather a along k: columns part r of A and columns part r of B; it gets columns part r of D.
 *   gather b along k: rows part r of A and rows part r of B; it gets rows part r of D.
 *
 * - direct: a tile goes from rank to rank, the own first: it multiplies what each has of k, where it lies,
 * and goes on with its sum.
 * - unfused: everything is fetched first, then multiplied.
 *
 * Order of a sum: direct, the ranks' ranges of k in rotation, each in the order of the local GEMM; unfused,
 * that of the local GEMM.
 */
#include "plan/gemm_parts.h"
#include "plan/staged.h"
#include "core/dtype.h"

typedef struct ag_gemm_k {
    weft_gemm_gen gen;
    bool of_a;
    int64_t rows, cols; /* of D on this rank */
    uint32_t sums;      /* direct: operand for a lane's sum on its way */
    uint32_t gathered;  /* unfused: operand with all of k */
} ag_gemm_k;

typedef struct k_tile {
    int lane;
    int64_t batch;
    weft_span rows, cols;
} k_tile;

static weft_span k_of(const ag_gemm_k *ag, int rank)
{
    return weft_problem_part_k(ag->gen.problem, ag->gen.world, rank);
}

/* `k` of a tile's rows of A, or columns of B, where `rank` has them; `k` counts from where its part begins.
 */
static weft_region in_place(const ag_gemm_k *ag, int rank, int64_t batch, weft_span other, weft_span k)
{
    return ag->of_a ? weft_region_make(ag->gen.a, rank, batch, other, k)
                    : weft_region_make(ag->gen.b, rank, batch, k, other);
}

/* One product of a tile over `k` (global), its gathered operand read at `source`. */
static void multiply(ag_gemm_k *ag, const k_tile *t, weft_region source, weft_span k, bool first, bool last)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    int64_t slot = gen->problem->tuning.tile_m ? gen->problem->tuning.tile_m : ag->rows;
    weft_region sums = weft_region_make(ag->sums, gen->me, 0, (weft_span){t->lane * slot, t->rows.count},
                                        weft_whole(t->cols.count));

    weft_gemm_open(gen, t->lane, WEFT_TASK_GEMM, last, !first);
    weft_builder_to(b, last ? weft_region_make(gen->d, gen->me, t->batch, t->rows, t->cols) : sums);
    weft_builder_from(b, ag->of_a ? source : weft_region_make(gen->a, gen->me, t->batch, t->rows, k));
    weft_builder_from(b, ag->of_a ? weft_region_make(gen->b, gen->me, t->batch, k, t->cols) : source);
    if (!first)
        weft_builder_from(b, sums);
    weft_gemm_close(gen, last, t->batch, t->rows, t->cols);
}

/* From rank to rank; those that have nothing of k are left out, but for the own. */
static void carry_tile(ag_gemm_k *ag, const k_tile *t)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_span staged = ag->of_a ? t->rows : t->cols;
    int last = 0;

    weft_staged_until(gen->builder, t->batch, staged.begin + staged.count);
    for (int step = 1; step < gen->world; step++)
        if (k_of(ag, weft_rotate(gen->me, step, gen->world)).count)
            last = step;
    for (int step = 0; step <= last; step++) {
        int rank = weft_rotate(gen->me, step, gen->world);
        weft_span k = k_of(ag, rank);

        if (k.count || step == 0)
            multiply(ag, t, in_place(ag, rank, t->batch, ag->of_a ? t->rows : t->cols, weft_whole(k.count)),
                     k, step == 0, step == last);
    }
}

static void whole_tile(ag_gemm_k *ag, const k_tile *t)
{
    weft_span k = weft_whole(ag->gen.problem->k);
    weft_region source = ag->of_a ? weft_region_make(ag->gathered, ag->gen.me, t->batch, t->rows, k)
                                  : weft_region_make(ag->gathered, ag->gen.me, t->batch, k, t->cols);

    multiply(ag, t, source, k, true, true);
}

static void every_tile(ag_gemm_k *ag, void (*emit)(ag_gemm_k *, const k_tile *))
{
    const weft_tuning *tuning = &ag->gen.problem->tuning;
    int64_t down = weft_cut_count(ag->rows, tuning->tile_m);
    int64_t across = weft_cut_columns_count(ag->cols, tuning->tile_n, tuning->grain_n);

    for (int64_t batch = 0; batch < ag->gen.problem->l; batch++) {
        for (int64_t i = 0; i < down * across; i++) {
            k_tile t = {
                .lane = weft_gemm_lane(&ag->gen),
                .batch = batch,
                .rows = weft_cut(weft_whole(ag->rows), tuning->tile_m, i / across),
                .cols = weft_cut_columns(weft_whole(ag->cols), tuning->tile_n, tuning->grain_n, i % across)};

            emit(ag, &t);
        }
    }
}

static void direct(ag_gemm_k *ag)
{
    const weft_problem *p = ag->gen.problem;
    weft_operand sums = {.name = "sums",
                         .place = WEFT_PLACE_PRIVATE,
                         .dtype = weft_dtype_accumulator(p->dtype),
                         .rows = ag->gen.lanes * (p->tuning.tile_m ? p->tuning.tile_m : p->m),
                         .cols = p->tuning.tile_n ? weft_widest(p->tuning.tile_n, p->tuning.grain_n) : p->n,
                         .paired = weft_problem_is_gated(p),
                         .batch = 1};

    if (ag->gen.world > 1)
        ag->sums = weft_builder_operand(ag->gen.builder, sums);
    every_tile(ag, carry_tile);
    weft_staged_rest(ag->gen.builder); /* of a rank that has no tiles, too */
}

/* What `rank` has of k, fetched by the compute lanes; returns by how many tasks. */
static int64_t fetch(ag_gemm_k *ag, int rank, uint32_t signal)
{
    weft_gemm_gen *gen = &ag->gen;
    weft_builder *b = gen->builder;
    weft_span k = k_of(ag, rank), other = weft_whole(ag->of_a ? ag->rows : ag->cols);
    int64_t tile_m = gen->problem->tuning.tile_m, tile_n = gen->problem->tuning.tile_n;
    weft_shares shares = ag->of_a ? weft_shares_of(gen->problem, other, weft_whole(k.count), tile_m, tile_n)
                                  : weft_shares_of(gen->problem, weft_whole(k.count), other, tile_m, tile_n);
    int64_t tasks = 0;

    for (int64_t batch = 0; batch < gen->problem->l && k.count && other.count; batch++) {
        for (int64_t i = 0; i < weft_shares_count(&shares); i++, tasks++) {
            weft_span rows, cols;
            weft_region to;

            weft_share(&shares, i, &rows, &cols);
            to = weft_region_make(ag->gathered, gen->me, batch, rows, cols);
            if (ag->of_a)
                to.col0 += k.begin;
            else
                to.row0 += k.begin;
            weft_builder_task(b, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
            weft_builder_to(b, to);
            weft_builder_from(b, in_place(ag, rank, batch, ag->of_a ? rows : cols, ag->of_a ? cols : rows));
            if (gen->lanes > 1)
                weft_builder_post(b, signal, gen->me);
            weft_builder_end(b);
        }
    }
    return tasks;
}

/* One task of all that was gathered, for a library. */
static void multiply_at_once(ag_gemm_k *ag)
{
    for (int64_t batch = 0; batch < ag->gen.problem->l && ag->rows && ag->cols; batch++) {
        k_tile t = {.batch = batch, .rows = weft_whole(ag->rows), .cols = weft_whole(ag->cols)};

        whole_tile(ag, &t);
    }
}

static void unfused(ag_gemm_k *ag)
{
    weft_gemm_gen *gen = &ag->gen;
    const weft_problem *p = gen->problem;
    uint32_t fetched = weft_builder_signals(gen->builder, 1);
    weft_operand gathered = {.name = "gathered",
                             .place = WEFT_PLACE_PRIVATE,
                             .dtype = p->dtype,
                             .rows = ag->of_a ? p->m : p->k,
                             .cols = ag->of_a ? p->k : p->n,
                             .transposed = ag->of_a ? p->transa : p->transb,
                             .paired = !ag->of_a && weft_problem_is_gated(p),
                             .batch = p->l};
    int64_t tasks = 0;

    ag->gathered = weft_builder_operand(gen->builder, gathered);
    weft_staged_rest(gen->builder);
    for (int step = 0; step < gen->world && ag->rows && ag->cols; step++)
        tasks += fetch(ag, weft_rotate(gen->me, step, gen->world), fetched);
    if (gen->lanes > 1) {
        weft_builder_expect(gen->builder, fetched, tasks);
        weft_builder_gate(gen->builder, fetched, tasks);
    }
    if (weft_gemm_by_library(gen))
        multiply_at_once(ag);
    else
        every_tile(ag, whole_tile);
}

void weft_generate_ag_gemm_k(weft_builder *builder)
{
    const weft_problem *p = builder->problem;
    ag_gemm_k ag = {.gen = weft_gemm_begin(builder),
                    .of_a = p->layout == WEFT_LAYOUT_GATHER_A_K,
                    .rows = p->m,
                    .cols = p->n};

    if (ag.of_a)
        ag.cols = weft_problem_part_n(p, builder->world, builder->rank).count;
    else
        ag.rows = weft_problem_part_m(p, builder->world, builder->rank).count;
    if (p->schedule == WEFT_SCHEDULE_DIRECT)
        direct(&ag);
    else
        unfused(&ag);
}
