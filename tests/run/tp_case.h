/*
 * One tensor-parallel product for tests: every rank makes its own part of the operands from one formula,
 * runs, and checks its own part of the result against a float64 reference.
 */
#ifndef WEFT_TESTS_RUN_TP_CASE_H
#define WEFT_TESTS_RUN_TP_CASE_H

#include "core/dtype.h"
#include "core/part.h"
#include "gemm/gemm.h"
#include "run/bound.h"
#include "support/check.h"
#include "support/guard.h"

#include <math.h>
#include <stdbool.h>
#include <weft/weft.h>

typedef struct tp_case {
    weft_problem problem;
    bool integers;      /* exact comparison; otherwise under the bound */
    int slack;          /* added to leading dimensions */
    unsigned symmetric; /* bits: A, B, C, bias, D lie in symmetric memory */
    bool in_place;      /* C is D */
    bool run_values;    /* alpha and beta come with the run; the plan has others */
    bool host_values;   /* on GPUs these are in memory of the host all the same */
    bool row_scale, col_scale;
    bool a_scale, b_scale; /* of blocks; problem.scales is 128 */
    uint64_t seed;
} tp_case;

enum { TP_A, TP_B, TP_C, TP_BIAS, TP_D, TP_OPERANDS };

/* Element (i, j) of the global matrix. */
static inline double tp_element(const tp_case *t, int which, int64_t batch, int64_t i, int64_t j)
{
    uint64_t state = t->seed * 0x100000001b3u + (uint64_t)which;
    uint64_t bits;
    double value;
    uint16_t half = 0;
    float single = 0;
    weft_dtype dtype = which <= TP_B ? t->problem.dtype : t->problem.d_dtype;

    state =
        check_random(&state) + (uint64_t)batch * 1000033u + (uint64_t)i * 40503u + (uint64_t)j * 2654435761u;
    bits = check_random(&state);
    if (t->integers || dtype == WEFT_I8 || dtype == WEFT_I32)
        return (double)(bits % 9) - 4;
    value = (double)(bits >> 40) * 0x1p-23 - 1;
    if (dtype == WEFT_F32) {
        weft_element_set(WEFT_F32, &single, 0, value);
        return single;
    }
    weft_element_set(dtype, &half, 0, value);
    return weft_element_get(dtype, &half, 0);
}

/* A factor of a row or a column of the global D: a power of two, so that sums of integers stay exact. */
static inline float tp_scale(const tp_case *t, bool column, int64_t index)
{
    static const float factors[] = {1, 2, 0.5f, -1};
    uint64_t state = t->seed + (uint64_t)index * 8191 + column;

    return factors[check_random(&state) % 4];
}

enum { TP_BLOCK = 128 };

/* Where a rank's blocks of k begin: they are counted from its first k, which the parts of sums divide. */
static inline int64_t tp_block(const tp_case *t, int world, int64_t k)
{
    const weft_problem *p = &t->problem;
    int64_t base = 0;

    if (p->op != WEFT_OP_GEMM_RS && p->op != WEFT_OP_GEMM_AR)
        return k / TP_BLOCK;
    for (int rank = 0; rank < world; rank++) {
        weft_span part = weft_part_granular(p->k, p->granule_k, world, rank);

        if (k < part.begin + part.count)
            return base + (k - part.begin) / TP_BLOCK;
        base += 1000;
    }
    return base;
}

/* The same of columns of B: gemm_as and ag_gemm divide them, and the latter counts those of D. */
static inline int64_t tp_column_block(const tp_case *t, int world, int64_t col)
{
    const weft_problem *p = &t->problem;
    bool gather_b = p->layout == WEFT_LAYOUT_GATHER_B || p->schedule == WEFT_SCHEDULE_ALLGATHER_ROTATING_B;

    if ((p->op == WEFT_OP_AG_GEMM && !gather_b) || p->op == WEFT_OP_GEMM_AS)
        for (int rank = 0; rank < world; rank++) {
            weft_span part = weft_part_granular(p->n, p->granule_n, world, rank);

            if (col < part.begin + part.count)
                return 1000 * rank + (col - part.begin) / TP_BLOCK;
        }
    return col / TP_BLOCK;
}

/* The factor of a block of the product of A's row (b = false) or B's block of columns. */
static inline float tp_block_scale(const tp_case *t, bool b, int64_t line, int64_t block)
{
    static const float factors[] = {1, 2, 0.5f, -1};
    uint64_t state = t->seed + 77 + (uint64_t)line * 8191 + (uint64_t)block * 131071 + b;

    return factors[check_random(&state) % 4];
}

/* What of a global matrix lies on a rank. */
typedef struct tp_instance {
    weft_span rows, cols;
    weft_dtype dtype;
    bool transposed;
    int64_t ld, stride; /* elements */
    size_t bytes;
    char *data;
    guarded memory;
} tp_instance;

/* Columns of B that make one of D. */
static inline int64_t tp_width(const weft_problem *p)
{
    return p->act >= WEFT_ACT_RELU_GATED ? 2 : 1;
}

static inline tp_instance tp_shape(const tp_case *t, int which, int world, int rank)
{
    const weft_problem *p = &t->problem;
    weft_span m = {0, p->m}, n = {0, p->n}, k = {0, p->k};
    weft_span mr = weft_part_granular(p->m, p->granule_m, world, rank),
              nr = weft_part_granular(p->n, p->granule_n, world, rank),
              kr = weft_part_granular(p->k, p->granule_k, world, rank);
    bool gather_b = p->layout == WEFT_LAYOUT_GATHER_B || p->schedule == WEFT_SCHEDULE_ALLGATHER_ROTATING_B;
    bool scatter_cols =
        p->layout == WEFT_LAYOUT_SCATTER_COLS || p->schedule == WEFT_SCHEDULE_REDUCESCATTER_TILING_B;
    tp_instance s = {.dtype = which <= TP_B ? p->dtype : p->d_dtype};
    weft_span drows = m, dcols = n;

    if (p->op == WEFT_OP_AG_GEMM) {
        drows = gather_b ? mr : m;
        dcols = gather_b ? n : nr;
    } else if (p->op == WEFT_OP_GEMM_RS) {
        drows = scatter_cols ? m : mr;
        dcols = scatter_cols ? nr : n;
    }
    if (p->layout == WEFT_LAYOUT_GATHER_B_K) {
        drows = mr;
        dcols = n;
    }
    switch (which) {
    case TP_A:
        s.rows = p->op == WEFT_OP_AG_GEMM && p->layout != WEFT_LAYOUT_GATHER_A_K ? mr : m;
        s.cols = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR || p->layout == WEFT_LAYOUT_GATHER_A_K
                     ? kr
                     : k;
        s.transposed = p->transa;
        break;
    case TP_B:
        s.rows = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR || p->layout == WEFT_LAYOUT_GATHER_B_K
                     ? kr
                     : k;
        s.cols = (p->op == WEFT_OP_AG_GEMM && p->layout != WEFT_LAYOUT_GATHER_B_K) || p->op == WEFT_OP_GEMM_AS
                     ? nr
                     : n;
        s.transposed = p->transb;
        break;
    case TP_BIAS:
        s.rows = (weft_span){0, 1};
        s.cols = dcols;
        break;
    default:
        s.rows = drows;
        s.cols = dcols;
        break;
    }
    if (tp_width(p) == 2 && (which == TP_B || which == TP_BIAS))
        s.cols = (weft_span){2 * s.cols.begin, 2 * s.cols.count};
    s.ld = (s.transposed ? s.rows.count : s.cols.count) + (which == TP_BIAS ? 0 : t->slack);
    s.stride = (s.transposed ? s.cols.count : s.rows.count) * s.ld;
    s.bytes = (size_t)(s.stride * (which == TP_BIAS ? 1 : p->l)) * weft_dtype_size(s.dtype);
    return s;
}

static inline size_t tp_index(const tp_instance *s, int64_t batch, int64_t i, int64_t j)
{
    return (size_t)(batch * s->stride + (s->transposed ? j * s->ld + i : i * s->ld + j));
}

/* The largest instance of any rank: symmetric memory must be asked for alike. */
static inline size_t tp_largest(const tp_case *t, int which, int world)
{
    size_t largest = 0;

    for (int rank = 0; rank < world; rank++) {
        size_t bytes = tp_shape(t, which, world, rank).bytes;

        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static inline void tp_fill(const tp_case *t, int which, tp_instance *s)
{
    int64_t batches = which == TP_BIAS ? 1 : t->problem.l;

    memset(s->data, 0xa5, s->bytes);
    if (which == TP_D && !t->in_place)
        return;
    which = which == TP_D ? TP_C : which;
    for (int64_t batch = 0; batch < batches; batch++)
        for (int64_t i = 0; i < s->rows.count; i++)
            for (int64_t j = 0; j < s->cols.count; j++)
                weft_element_set(s->dtype, s->data, tp_index(s, batch, i, j),
                                 tp_element(t, which, batch, s->rows.begin + i, s->cols.begin + j));
}

static inline double tp_activate(weft_act act, double x)
{
    switch (act) {
    case WEFT_ACT_RELU:
    case WEFT_ACT_RELU_GATED:
        return x > 0 ? x : 0;
    case WEFT_ACT_GELU:
    case WEFT_ACT_GELU_GATED:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case WEFT_ACT_SILU:
    case WEFT_ACT_SILU_GATED:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

/* Bytes between the rows of D that are no longer what they were. */
static inline int64_t tp_spilt(const tp_instance *d, int64_t row)
{
    size_t size = weft_dtype_size(d->dtype), begin = (size_t)(row * d->ld + d->cols.count) * size;
    int64_t spilt = 0;

    for (size_t i = begin; i < (size_t)((row + 1) * d->ld) * size; i++)
        spilt += (unsigned char)d->data[i] != 0xa5;
    return spilt;
}

/* What the activation is applied to: of row `row` and column `col` of B, without C. */
static inline double tp_sum(const tp_case *t, int world, int64_t batch, int64_t row, int64_t col,
                            double *magnitude)
{
    const weft_problem *p = &t->problem;
    double sum = 0, scale = p->alpha * (t->row_scale ? tp_scale(t, false, row) : 1) *
                            (t->col_scale ? tp_scale(t, true, col) : 1);

    *magnitude = 0;
    for (int64_t x = 0; x < p->k; x++) {
        double product = tp_element(t, TP_A, batch, row, x) * tp_element(t, TP_B, batch, x, col);
        int64_t block = t->a_scale || t->b_scale ? tp_block(t, world, x) : 0;

        if (t->a_scale)
            product *= (double)tp_block_scale(t, false, row, block);
        if (t->b_scale)
            product *= (double)tp_block_scale(t, true, tp_column_block(t, world, col), block);
        sum += product;
        *magnitude += fabs(product);
    }
    sum *= scale;
    *magnitude *= fabs(scale);
    if (p->bias) {
        sum += tp_element(t, TP_BIAS, 0, 0, col);
        *magnitude += fabs(tp_element(t, TP_BIAS, 0, 0, col));
    }
    return sum;
}

/* Every element of this rank's D; returns how many are wrong. */
static inline int64_t tp_wrong(const tp_case *t, int world, const tp_instance *d)
{
    const weft_problem *p = &t->problem;
    int64_t wrong = 0;

    for (int64_t batch = 0; batch < p->l; batch++) {
        for (int64_t i = 0; i < d->rows.count; i++) {
            wrong += tp_spilt(d, batch * d->rows.count + i);
            for (int64_t j = 0; j < d->cols.count; j++) {
                int64_t row = d->rows.begin + i, col = d->cols.begin + j;
                double magnitude = 0, up_magnitude = 0, up = 1, got, bound = 0;
                double exact = tp_sum(t, world, batch, row, col * tp_width(p), &magnitude);

                if (p->beta != 0) {
                    exact += p->beta * tp_element(t, TP_C, batch, row, col);
                    magnitude += fabs(p->beta * tp_element(t, TP_C, batch, row, col));
                }
                exact = tp_activate(p->act, exact);
                if (tp_width(p) == 2)
                    up = tp_sum(t, world, batch, row, 2 * col + 1, &up_magnitude);
                got = weft_element_get(d->dtype, d->data, tp_index(d, batch, i, j));
                if (t->integers) {
                    uint64_t rounded = 0;

                    exact *= up;
                    weft_element_set(d->dtype, &rounded, 0, exact);
                    exact = weft_element_get(d->dtype, &rounded, 0);
                } else if (tp_width(p) == 2) {
                    bound = weft_bound_gated(p, world, magnitude, exact, up_magnitude, up);
                    exact *= up;
                } else {
                    bound = weft_bound_gemm(p, world, magnitude, exact);
                }
                wrong += !(fabs(got - exact) <= bound);
            }
        }
    }
    return wrong;
}

static inline void tp_print(const tp_case *t, int world, int rank)
{
    const weft_problem *p = &t->problem;

    fprintf(
        stderr,
        "op %d schedule %d layout %d m %lld n %lld k %lld l %lld dtype %d d %d wire %d trans %d%d b_form %d "
        "alpha %g beta %g "
        "bias %d act %d tiles %lld %lld %lld workers %d copiers %d chunk_k %lld raster %lld granules %lld "
        "%lld %lld slack %d symmetric %x ranks %d rank %d seed %llu\n",
        (int)p->op, (int)p->schedule, (int)p->layout, (long long)p->m, (long long)p->n, (long long)p->k,
        (long long)p->l, (int)p->dtype, (int)p->d_dtype, (int)p->wire_dtype, p->transa, p->transb,
        (int)p->b_form, (double)p->alpha, (double)p->beta, p->bias, (int)p->act, (long long)p->tuning.tile_m,
        (long long)p->tuning.tile_n, (long long)p->tuning.tile_k, p->tuning.workers, p->tuning.copiers,
        (long long)p->tuning.chunk_k, (long long)p->tuning.raster, (long long)p->granule_m,
        (long long)p->granule_n, (long long)p->granule_k, t->slack, t->symmetric, world, rank,
        (unsigned long long)t->seed);
}

/* Memory between guard pages for this rank's instances, in a block of symmetric memory (`symmetric`, cut in
 * order) or outside. */
static inline void tp_place(const tp_case *t, int world, int rank, char *symmetric, tp_instance instances[])
{
    for (int which = 0; which < TP_OPERANDS; which++) {
        tp_instance *s = &instances[which];

        *s = tp_shape(t, which, world, rank);
        if (which == TP_D && t->in_place) {
            s->data = instances[TP_C].data;
        } else {
            bool within = symmetric && t->symmetric >> which & 1;

            s->memory = within ? guarded_cut(&symmetric, s->bytes) : guarded_make(s->bytes);
            s->data = s->memory.data;
        }
    }
}

static inline void tp_release(tp_instance instances[])
{
    for (int which = 0; which < TP_OPERANDS; which++)
        guarded_drop(&instances[which].memory);
}

static inline weft_operands tp_operands(const tp_instance s[])
{
    return (weft_operands){.size = sizeof(weft_operands),
                           .a = s[TP_A].data,
                           .b = s[TP_B].data,
                           .c = s[TP_C].data,
                           .bias = s[TP_BIAS].data,
                           .d = s[TP_D].data,
                           .lda = s[TP_A].ld,
                           .ldb = s[TP_B].ld,
                           .ldc = s[TP_C].ld,
                           .ldd = s[TP_D].ld};
}

/* The problem to plan, when its values come with the run. */
static inline weft_problem tp_planned(const tp_case *t)
{
    weft_problem p = t->problem;

    if (t->run_values) {
        p.alpha = 3;
        p.beta = p.beta != 0 ? 5 : 0;
    }
    return p;
}

/* Adds the run's own values to its operands: `memory` has a place for every row and two for every column. */
static inline void tp_values(const tp_case *t, const tp_instance *d, float *memory, weft_operands *operands)
{
    float *cols = memory + d->rows.count;
    int64_t width = tp_width(&t->problem);

    for (int64_t i = 0; i < d->rows.count; i++)
        memory[i] = tp_scale(t, false, d->rows.begin + i);
    for (int64_t j = 0; j < d->cols.count * width; j++)
        cols[j] = tp_scale(t, true, d->cols.begin * width + j);
    operands->row_scale = t->row_scale ? memory : NULL;
    operands->col_scale = t->col_scale ? cols : NULL;
    operands->alpha = t->run_values ? &t->problem.alpha : NULL;
    operands->beta = t->run_values ? &t->problem.beta : NULL;
}

/* The scales of blocks of what this rank multiplies, as weft.h says they lie: of A, or of B. */
static inline int64_t tp_blocks(const tp_case *t, bool b, int world, int rank, float *memory)
{
    const weft_problem *p = &t->problem;
    tp_instance d = tp_shape(t, TP_D, world, rank), own = tp_shape(t, b ? TP_B : TP_A, world, rank);
    weft_span k = b ? own.rows : own.cols, lines = b ? own.cols : own.rows;
    int64_t depth = (k.count + TP_BLOCK - 1) / TP_BLOCK, first, count;

    if (p->op == WEFT_OP_AG_GEMM)
        lines = b ? d.cols : d.rows;
    first = b && lines.count ? tp_column_block(t, world, lines.begin) : lines.begin;
    count = b ? (lines.count + TP_BLOCK - 1) / TP_BLOCK : lines.count;
    for (int64_t i = 0; memory && i < count; i++)
        for (int64_t j = 0; j < depth; j++)
            memory[(b ? p->transb : !p->transa) ? i * depth + j : j * count + i] =
                tp_block_scale(t, b, first + i, tp_block(t, world, k.begin) + j);
    return count * depth;
}

/* This rank's B packed beforehand, for WEFT_B_PREPACKED. */
static inline guarded tp_pack(const tp_case *t, const tp_instance *b)
{
    const weft_core *core;
    const weft_binding *bind;
    size_t bytes;
    guarded memory;

    if (weft_core_current(&core, weft_error_thread()) != WEFT_OK)
        abort();
    bind = weft_core_binding(core, t->problem.dtype, false);
    bytes = (weft_packed_bytes(bind, b->rows.count, b->cols.count) + 127) / 128 * 128;
    memory = guarded_make(bytes * (size_t)t->problem.l);
    for (int64_t batch = 0; batch < t->problem.l; batch++) {
        weft_packed *packed = weft_packed_begin(bind, b->rows.count, b->cols.count,
                                                (char *)memory.data + (size_t)batch * bytes);

        weft_packed_fill(bind, packed, b->data + (size_t)(batch * b->stride) * weft_dtype_size(b->dtype),
                         b->dtype, b->transposed ? 1 : b->ld, b->transposed ? b->ld : 1, 0, b->rows.count, 0,
                         b->cols.count);
    }
    return memory;
}

#endif
