/* Inputs as callers would give them, and the results that follow from the problem. See interpret.h. */
#include "interpret_world.h"

#include "support/check.h"

#include <math.h>

/* A pair of a gate and an up is one number here: sums and products with A leave both halves apart. */
static const double up_unit = 1 << 24;

/* The global input of an operand in a run: a function of where the element lies in the whole. */
static double input_value(const world_state *w, weft_operand_role role, int rank, int run, int64_t batch,
                          int64_t row, int64_t col)
{
    uint64_t state = w->data_seed ^ ((uint64_t)role * 0x9e3779b97f4a7c15u) ^ ((uint64_t)run << 48) ^
                     ((uint64_t)batch << 40) ^ ((uint64_t)row << 20) ^ (uint64_t)col ^ ((uint64_t)rank << 56);

    if (w->reals)
        return ldexp((double)(check_random(&state) >> 11), -53 + (int)(check_random(&state) % 8)) - 0.5;
    return (double)((int64_t)(check_random(&state) % 7) - 3);
}

static double global_value(const world_state *w, weft_operand_role role, int run, int64_t batch, int64_t row,
                           int64_t col)
{
    bool paired = weft_problem_is_gated(&w->parts[0].problem) && role != WEFT_ROLE_A;

    return input_value(w, role, 0, run, batch, row, col) +
           (paired ? up_unit * input_value(w, role, 0, run, batch, row, col + 100000) : 0);
}

/* Which element of the global operand an instance's element is. Collectives: every rank has its own. */
static double instance_value(const world_state *w, const weft_operand *o, int rank, int run, int64_t batch,
                             int64_t row, int64_t col)
{
    if (o->role == WEFT_ROLE_SEND)
        return input_value(w, o->role, rank, run, batch, row, col);
    row += weft_operand_row_span(o, w->world, rank).begin;
    col += weft_operand_col_span(o, w->world, rank).begin;
    return global_value(w, o->role, run, batch, row, col);
}

static void fill(world_state *w, int rank, uint32_t operand, bool input)
{
    const weft_operand *o = &w->parts[rank].operands[operand];
    int64_t rows = weft_operand_rows(o, w->world, rank), cols = weft_operand_cols(o, w->world, rank);
    double *at = w->ranks[rank].memory[operand];

    for (int64_t batch = 0; batch < o->batch; batch++) {
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t col = 0; col < cols; col++)
                *at++ = input ? instance_value(w, o, rank, w->ranks[rank].run, batch, row, col) : NAN;
        }
    }
}

/* Inputs last: they may lie where outputs do. */
void interpret_prepare(world_state *w, int rank)
{
    const weft_plan_part *part = &w->parts[rank];

    for (int inputs = 0; inputs < 2; inputs++) {
        for (uint32_t i = 0; i < part->operand_count; i++) {
            const weft_operand *o = &part->operands[i];
            bool input = o->place == WEFT_PLACE_USER && !o->output;

            if (o->place != WEFT_PLACE_STAGING && input == (inputs == 1))
                fill(w, rank, i, input);
        }
    }
}

double interpret_activate(const weft_problem *p, double value)
{
    if (p->act == WEFT_ACT_RELU_GATED) {
        double up = nearbyint(value / up_unit), gate = value - up * up_unit;

        return gate < 0 ? 0 : gate * up;
    }
    return p->act == WEFT_ACT_RELU && value < 0 ? 0 : value;
}

double interpret_combine(weft_reduction reduction, double a, double b)
{
    switch (reduction) {
    case WEFT_MIN:
        return a < b ? a : b;
    case WEFT_MAX:
        return a > b ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

static double expected(const world_state *w, const weft_operand *o, int rank, int run, int64_t batch,
                       int64_t row, int64_t col)
{
    const weft_problem *p = &w->parts[0].problem;
    double sum = 0;

    switch (p->op) {
    case WEFT_OP_ALL_GATHER:
        return input_value(w, WEFT_ROLE_SEND, (int)row, run, 0, 0, col);
    case WEFT_OP_ALL_TO_ALL:
        return input_value(w, WEFT_ROLE_SEND, (int)row, run, 0, rank, col);
    case WEFT_OP_BROADCAST:
        return input_value(w, WEFT_ROLE_SEND, p->root, run, 0, 0, col);
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE_SCATTER:
        for (int from = 0; from < w->world; from++) {
            double value =
                input_value(w, WEFT_ROLE_SEND, from, run, 0, p->op == WEFT_OP_ALL_REDUCE ? 0 : rank, col);

            sum = from ? interpret_combine(p->reduction, sum, value) : value;
        }
        return p->reduction == WEFT_AVERAGE ? sum / w->world : sum;
    default:
        break;
    }
    row += weft_operand_row_span(o, w->world, rank).begin;
    col += weft_operand_col_span(o, w->world, rank).begin;
    for (int64_t k = 0; k < p->k; k++)
        sum += global_value(w, WEFT_ROLE_A, run, batch, row, k) *
               global_value(w, WEFT_ROLE_B, run, batch, k, col);
    sum *= p->alpha;
    if (p->beta != 0)
        sum += p->beta * input_value(w, WEFT_ROLE_C, 0, run, batch, row, col);
    if (p->bias)
        sum += global_value(w, WEFT_ROLE_BIAS, run, 0, 0, col);
    return interpret_activate(p, sum);
}

void interpret_verify(world_state *w, int rank)
{
    const weft_plan_part *part = &w->parts[rank];

    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];
        int64_t rows = weft_operand_rows(o, w->world, rank), cols = weft_operand_cols(o, w->world, rank);
        const double *at = w->ranks[rank].memory[i];

        for (int64_t j = 0; o->output && !w->reals && j < o->batch * rows * cols; j++) {
            double want =
                expected(w, o, rank, w->ranks[rank].run, j / (rows * cols), j / cols % rows, j % cols);

            if (!(at[j] == want))
                w->wrong = true;
        }
    }
}
