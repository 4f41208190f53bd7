/*
 * Scales of blocks (weft_operands): where those of a region of A or B lie, which every backend asks.
 *
 * They are counted over what a rank multiplies: with ag_gemm over the rows and columns of its D, with the
 * other products over its own A and B. Shards that are gathered lie there as in the whole matrix, and those
 * that are read in place where their owner's begin.
 */
#ifndef WEFT_RUN_SCALES_H
#define WEFT_RUN_SCALES_H

#include "core/round.h"
#include "plan/plan.h"

static inline bool weft_scales_gather(const weft_problem *problem, weft_layout of)
{
    bool b = problem->layout == WEFT_LAYOUT_GATHER_B;

    return problem->op == WEFT_OP_AG_GEMM && b == (of == WEFT_LAYOUT_GATHER_B);
}

/* The row of the product at which a region of A begins. */
static inline int64_t weft_scales_row(const weft_plan_part *part, const weft_region *a)
{
    const weft_operand *o = &part->operands[a->operand];
    bool apart = o->place == WEFT_PLACE_USER && weft_scales_gather(&part->problem, WEFT_LAYOUT_GATHER_A);

    return a->row0 + (apart ? weft_operand_row_span(o, part->world, a->rank).begin : 0);
}

/* The column at which a region of B does. */
static inline int64_t weft_scales_col(const weft_plan_part *part, const weft_region *b)
{
    const weft_operand *o = &part->operands[b->operand];
    bool apart = o->place == WEFT_PLACE_USER && weft_scales_gather(&part->problem, WEFT_LAYOUT_GATHER_B);

    return b->col0 + (apart ? weft_operand_col_span(o, part->world, b->rank).begin : 0);
}

/* Element (i, j) of the scales, a block of k beside a row or a block of columns, is at i * row + j * col. */
typedef struct weft_scale_strides {
    int64_t row, col, count; /* count: of all of them */
} weft_scale_strides;

/* Of A: a row for every row of the product, a column for every block of k. */
static inline weft_scale_strides weft_scales_of_a(const weft_plan_part *part)
{
    const weft_problem *p = &part->problem;
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    int64_t k = sums ? weft_problem_part_k(p, part->world, part->rank).count : p->k,
            m = weft_scales_gather(p, WEFT_LAYOUT_GATHER_B)
                    ? weft_problem_part_m(p, part->world, part->rank).count
                    : p->m,
            blocks = weft_divide_up(k, WEFT_SCALE_BLOCK);

    return (weft_scale_strides){p->transa ? 1 : blocks, p->transa ? m : 1, m * blocks};
}

/* Of B: a row for every block of k, a column for every block of columns. */
static inline weft_scale_strides weft_scales_of_b(const weft_plan_part *part)
{
    const weft_problem *p = &part->problem;
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR,
         divided = weft_scales_gather(p, WEFT_LAYOUT_GATHER_A) || p->op == WEFT_OP_GEMM_AS;
    int64_t k = sums ? weft_problem_part_k(p, part->world, part->rank).count : p->k,
            n = divided ? weft_problem_part_n(p, part->world, part->rank).count : p->n,
            blocks = weft_divide_up(k, WEFT_SCALE_BLOCK), cols = weft_divide_up(n, WEFT_SCALE_BLOCK);

    return (weft_scale_strides){p->transb ? 1 : cols, p->transb ? blocks : 1, cols * blocks};
}

#endif
