#include "plan/user_operands.h"

#include <stdio.h>

/* How the operands of an operation are divided over the ranks (see its generator). */
typedef struct division {
    bool a_rows, a_cols, b_rows, b_cols, d_rows, d_cols;
} division;

static division divide(const weft_problem *problem)
{
    switch (problem->op) {
    case WEFT_OP_AG_GEMM:
        if (problem->layout == WEFT_LAYOUT_GATHER_A_K)
            return (division){.a_cols = true, .b_cols = true, .d_cols = true};
        if (problem->layout == WEFT_LAYOUT_GATHER_B_K)
            return (division){.a_rows = true, .b_rows = true, .d_rows = true};
        return (division){.a_rows = true,
                          .b_cols = true,
                          .d_rows = problem->layout == WEFT_LAYOUT_GATHER_B,
                          .d_cols = problem->layout == WEFT_LAYOUT_GATHER_A};
    case WEFT_OP_GEMM_RS:
        return (division){.a_cols = true,
                          .b_rows = true,
                          .d_rows = problem->layout == WEFT_LAYOUT_SCATTER_ROWS,
                          .d_cols = problem->layout == WEFT_LAYOUT_SCATTER_COLS};
    case WEFT_OP_GEMM_AR:
        return (division){.a_cols = true, .b_rows = true};
    default:
        return (division){.b_cols = true};
    }
}

static int of_product(const weft_problem *p, weft_operand *operands)
{
    division div = divide(p);
    weft_operand c = {.name = "C",
                      .role = WEFT_ROLE_C,
                      .dtype = p->d_dtype,
                      .rows = p->m,
                      .cols = p->n,
                      .rows_parted = div.d_rows,
                      .cols_parted = div.d_cols,
                      .row_granule = div.d_rows ? p->granule_m : 0,
                      .col_granule = div.d_cols ? p->granule_n : 0,
                      .batch = p->l};
    int count = 0;

    operands[count++] = (weft_operand){.name = "A",
                                       .role = WEFT_ROLE_A,
                                       .dtype = p->dtype,
                                       .rows = p->m,
                                       .cols = p->k,
                                       .rows_parted = div.a_rows,
                                       .cols_parted = div.a_cols,
                                       .row_granule = div.a_rows ? p->granule_m : 0,
                                       .col_granule = div.a_cols ? p->granule_k : 0,
                                       .transposed = p->transa,
                                       .batch = p->l};
    operands[count++] = (weft_operand){.name = "B",
                                       .role = WEFT_ROLE_B,
                                       .dtype = p->dtype,
                                       .rows = p->k,
                                       .cols = p->n,
                                       .rows_parted = div.b_rows,
                                       .cols_parted = div.b_cols,
                                       .row_granule = div.b_rows ? p->granule_k : 0,
                                       .col_granule = div.b_cols ? p->granule_n : 0,
                                       .transposed = p->transb,
                                       .packed = p->b_form == WEFT_B_PREPACKED,
                                       .paired = weft_problem_is_gated(p),
                                       .batch = p->l};
    if (p->beta != 0)
        operands[count++] = c;
    if (p->bias)
        operands[count++] = (weft_operand){.name = "bias",
                                           .role = WEFT_ROLE_BIAS,
                                           .dtype = p->d_dtype,
                                           .rows = 1,
                                           .cols = p->n,
                                           .cols_parted = div.d_cols,
                                           .col_granule = div.d_cols ? p->granule_n : 0,
                                           .paired = weft_problem_is_gated(p),
                                           .batch = 1};
    operands[count] = c;
    snprintf(operands[count].name, sizeof(operands[count].name), "D");
    operands[count].role = WEFT_ROLE_D;
    operands[count].output = true;
    return count + 1;
}

/* One row per rank's share: of what is sent where every rank gets its own, of what is received where every
 * rank gives some. */
static int of_collective(const weft_problem *p, int world, weft_operand *operands)
{
    bool sends_all = p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;
    bool gets_all = p->op == WEFT_OP_ALL_GATHER || p->op == WEFT_OP_ALL_TO_ALL;

    operands[0] = (weft_operand){.name = "send",
                                 .role = WEFT_ROLE_SEND,
                                 .dtype = p->dtype,
                                 .rows = sends_all ? world : 1,
                                 .cols = p->count,
                                 .batch = 1};
    operands[1] = (weft_operand){.name = "recv",
                                 .role = WEFT_ROLE_RECV,
                                 .dtype = p->dtype,
                                 .rows = gets_all ? world : 1,
                                 .cols = p->count,
                                 .output = true,
                                 .batch = 1};
    return 2;
}

int weft_user_operands(const weft_problem *problem, int world, weft_operand operands[WEFT_USER_OPERANDS_MAX])
{
    return problem->op <= WEFT_OP_GEMM_AS ? of_product(problem, operands)
                                          : of_collective(problem, world, operands);
}

static uint32_t touched_by_collective(const weft_problem *p)
{
    const uint32_t send = 1u << WEFT_ROLE_SEND, recv = 1u << WEFT_ROLE_RECV;

    if (weft_schedule_is_packets(p->schedule))
        return 0;
    if (p->op == WEFT_OP_ALL_REDUCE)
        return p->schedule == WEFT_SCHEDULE_ONE_SHOT ||
                       (p->schedule == WEFT_SCHEDULE_TWO_SHOT && p->tuning.sums_stay)
                   ? send
                   : send | recv;
    if ((p->op == WEFT_OP_BROADCAST || p->op == WEFT_OP_ALL_GATHER) && p->schedule == WEFT_SCHEDULE_TWO_LEVEL)
        return send | recv;
    if (p->schedule != WEFT_SCHEDULE_PUSH)
        return send;
    return p->op == WEFT_OP_REDUCE_SCATTER ? 0 : recv;
}

uint32_t weft_user_operands_touched(const weft_problem *p)
{
    if (p->tuning.staged)
        return 0;
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        return p->layout == WEFT_LAYOUT_GATHER_B || p->layout == WEFT_LAYOUT_GATHER_B_K ? 1u << WEFT_ROLE_B
                                                                                        : 1u << WEFT_ROLE_A;
    case WEFT_OP_GEMM_RS: /* sums travel through staging */
        return 0;
    case WEFT_OP_GEMM_AR:
        return p->schedule == WEFT_SCHEDULE_ONE_SHOT || weft_problem_stores_sums(p) ? 0 : 1u << WEFT_ROLE_D;
    case WEFT_OP_GEMM_AS:
        return 1u << WEFT_ROLE_D;
    default:
        return touched_by_collective(p);
    }
}
