/* Operands and checks of the tensor-parallel products. See data.h. */
#include "bench/tp/data.h"

#include "core/dtype.h"
#include "core/round.h"
#include "core/topo.h"
#include "group/group.h"
#include "run/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tp_block block_of(weft_span rows, weft_span cols)
{
    return (tp_block){rows.begin, rows.count, cols.begin, cols.count};
}

tp_layout tp_layout_of(const weft_problem *p, int world, int rank)
{
    weft_span m = {0, p->m}, n = {0, p->n}, k = {0, p->k};
    weft_span part_m = weft_problem_part_m(p, world, rank), part_n = weft_problem_part_n(p, world, rank);
    weft_span part_k = weft_problem_part_k(p, world, rank);

    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        return (tp_layout){block_of(part_m, k), block_of(k, part_n),
                           p->layout == WEFT_LAYOUT_GATHER_B ? block_of(part_m, n) : block_of(m, part_n)};
    case WEFT_OP_GEMM_RS:
        return (tp_layout){block_of(m, part_k), block_of(part_k, n),
                           p->layout == WEFT_LAYOUT_SCATTER_COLS ? block_of(m, part_n) : block_of(part_m, n)};
    case WEFT_OP_GEMM_AS:
        return (tp_layout){block_of(m, k), block_of(k, part_n), block_of(m, n)};
    default:
        return (tp_layout){block_of(m, part_k), block_of(part_k, n), block_of(m, n)};
    }
}

/* ---- values --------------------------------------------------------------------------------------- */

static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t stream_of(const tp_data *data, int set, tp_operand operand, int64_t batch)
{
    return mix(data->seed + 0x9e3779b97f4a7c15u * (uint64_t)(((batch * TP_MOST_SETS + set) << 2) + operand));
}

/* Uniform in [-1, 1) as a multiple of 2^-23, so that float32 holds it exactly. */
static inline float uniform(uint64_t stream, int64_t row, int64_t col)
{
    uint64_t z = mix(stream + (uint64_t)row * 0xd1342543de82ef95u + (uint64_t)col * 0x9e3779b97f4a7c15u);

    return (float)((int32_t)(z >> 40) - (1 << 23)) * 0x1p-23f;
}

static inline float rounded(float value, weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F16:
        return weft_f16_to_f32(weft_f32_to_f16(value));
    case WEFT_BF16:
        return weft_bf16_to_f32(weft_f32_to_bf16(value));
    case WEFT_FP8_E4M3:
    case WEFT_FP8_E5M2:
        return weft_fp8_to_f32(dtype, weft_f32_to_fp8(dtype, value));
    case WEFT_I8:
    case WEFT_I32:
        return rintf(value * 100.0f);
    default:
        return value;
    }
}

static weft_dtype dtype_of(const tp_data *data, tp_operand operand)
{
    return operand == TP_A || operand == TP_B ? data->problem.dtype : data->problem.d_dtype;
}

double tp_element(const tp_data *data, int set, tp_operand operand, int64_t batch, int64_t row, int64_t col)
{
    return rounded(uniform(stream_of(data, set, operand, batch), row, col), dtype_of(data, operand));
}

/* A run of a row of an operand as float32, which every input type fits into. */
static void fill_row(const tp_data *data, int set, tp_operand operand, int64_t batch, int64_t row,
                     int64_t col0, int64_t cols, float *out)
{
    uint64_t stream = stream_of(data, set, operand, batch);
    weft_dtype dtype = dtype_of(data, operand);

    for (int64_t j = 0; j < cols; j++)
        out[j] = rounded(uniform(stream, row, col0 + j), dtype);
}

void tp_fill(const tp_data *data, int set, tp_operand operand, tp_block block, bool transposed,
             weft_dtype dtype, void *memory)
{
    float *row = malloc((size_t)(block.cols ? block.cols : 1) * sizeof *row);
    int64_t elements = block.rows * block.cols;

    for (int64_t l = 0; row && l < data->problem.l; l++) {
        for (int64_t i = 0; i < block.rows; i++) {
            fill_row(data, set, operand, l, block.row0 + i, block.col0, block.cols, row);
            if (dtype == WEFT_F32 && !transposed) {
                memcpy((float *)memory + l * elements + i * block.cols, row,
                       (size_t)block.cols * sizeof *row);
                continue;
            }
            for (int64_t j = 0; j < block.cols; j++)
                weft_element_set(
                    dtype, memory,
                    (size_t)(l * elements + (transposed ? j * block.rows + i : i * block.cols + j)), row[j]);
        }
    }
    free(row);
}

/* ---- references ----------------------------------------------------------------------------------- */

static double act_of(weft_act act, double x)
{
    switch (act) {
    case WEFT_ACT_RELU:
        return x > 0 ? x : 0;
    case WEFT_ACT_GELU:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case WEFT_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

/*
 * How far a result may be from the exact one. Sums are kept in float32; with rounding errors of independent
 * sign they grow with the square root of the number of additions times `magnitude`, the sum of |a b| over k
 * (the factor 8 leaves one chance in 10^13 per element). BFMMLA rounds to odd, which doubles the unit.
 * Sums that travel in a narrower type are rounded to it at each of at most W hops. Activations have a slope
 * of at most 1.13; the GELU of a kernel may use the tanh form, within 5e-4 of the exact one.
 */
static double sum_bound(const tp_data *data, double magnitude)
{
    const weft_problem *p = &data->problem;
    double unit = p->dtype == WEFT_BF16 || weft_dtype_is_fp8(p->dtype) ? 0x1p-23 : 0x1p-24;

    if (p->dtype == WEFT_I8)
        return p->alpha == 1 && p->beta == 0 ? 0 : 0.5;
    unit *= 8 * sqrt((double)p->k + data->context->size);
    if (p->wire_dtype != WEFT_F32)
        unit += data->context->size * weft_bound_unit(p->wire_dtype);
    return unit * (fabs((double)p->alpha) * magnitude + 1) * 1.13 + (p->act == WEFT_ACT_GELU ? 5e-4 : 0);
}

/* The result is rounded once to its type. */
static double bound_at(const tp_data *data, double from_sum, double exact)
{
    weft_dtype to = data->problem.d_dtype;
    double unit = to == WEFT_BF16 ? 0x1p-8 : to == WEFT_F16 ? 0x1p-11 : 0x1p-24;

    if (data->context->options->eps > 0)
        return data->context->options->eps;
    if (data->problem.dtype == WEFT_I8)
        return from_sum + (from_sum > 0 ? 1e-6 * fabs(exact) : 0);
    return from_sum + unit * (fabs(exact) * 1.01 + 1e-6);
}

static double finish(const tp_data *data, int set, int64_t batch, int64_t row, int64_t col, double sum)
{
    const weft_problem *p = &data->problem;
    double value = p->alpha * sum;

    if (p->beta != 0)
        value += p->beta * tp_element(data, set, TP_C, batch, row, col);
    if (p->bias)
        value += tp_element(data, set, TP_BIAS, 0, 0, col);
    return act_of(p->act, value);
}

static void make_samples(tp_data *data, int set)
{
    const tp_block d = data->layout.d;
    tp_set *s = &data->set[set];
    int64_t elements = d.rows * d.cols, k = data->problem.k;

    for (int i = 0; i < TP_SAMPLES && elements; i++) {
        int64_t at = (int64_t)(mix(data->seed + (uint64_t)(set * TP_SAMPLES + i) * 77u) %
                               (uint64_t)(elements * data->problem.l));
        int64_t batch = at / elements, row = d.row0 + at % elements / d.cols, col = d.col0 + at % d.cols;
        double sum = 0, magnitude = 0;
        for (int64_t p = 0; p < k; p++) {
            double product =
                tp_element(data, set, TP_A, batch, row, p) * tp_element(data, set, TP_B, batch, p, col);
            sum += product;
            magnitude += fabs(product);
        }
        s->sample_at[i] = at;
        s->sample[i] = finish(data, set, batch, row, col, sum);
        s->sample_bound[i] = bound_at(data, sum_bound(data, magnitude), s->sample[i]);
        data->sum_bound = fmax(data->sum_bound, 1.25 * sum_bound(data, magnitude));
        data->largest = fmax(data->largest, fabs(s->sample[i]));
    }
}

/* D of the rank in float64. */
static int make_reference(tp_data *data, int set)
{
    const tp_block d = data->layout.d;
    int64_t k = data->problem.k, elements = d.rows * d.cols;
    double *reference = calloc((size_t)(elements * data->problem.l + 1), sizeof *reference);
    float *b = malloc((size_t)(k * d.cols + 1) * sizeof *b), *a = malloc((size_t)k * sizeof *a);
    int status = reference && a && b ? 0 : 1;

    for (int64_t l = 0; !status && l < data->problem.l; l++) {
        for (int64_t p = 0; p < k; p++)
            fill_row(data, set, TP_B, l, p, d.col0, d.cols, b + p * d.cols);
        for (int64_t i = 0; i < d.rows; i++) {
            double *out = reference + l * elements + i * d.cols;
            fill_row(data, set, TP_A, l, d.row0 + i, 0, k, a);
            for (int64_t p = 0; p < k; p++) {
                double x = a[p];
                for (int64_t j = 0; j < d.cols; j++)
                    out[j] += x * b[p * d.cols + j];
            }
            for (int64_t j = 0; j < d.cols; j++)
                out[j] = finish(data, set, l, d.row0 + i, d.col0 + j, out[j]);
        }
    }
    data->set[set].reference = reference;
    free(a);
    free(b);
    return status;
}

static inline double sign_at(const tp_data *data, int64_t col)
{
    return mix(data->seed ^ ((uint64_t)col * 0x9e3779b97f4a7c15u)) & 1 ? 1.0 : -1.0;
}

/* For each row of D: what the row times t must be. Only without an activation, which is not linear. */
static int make_residual(tp_data *data, int set)
{
    const weft_problem *p = &data->problem;
    const tp_block d = data->layout.d;
    int64_t longest = p->k > d.cols ? p->k : d.cols;
    double *residual = calloc((size_t)(d.rows * p->l + 1), sizeof *residual);
    double *bt = malloc((size_t)p->k * sizeof *bt), bias = 0;
    float *row = malloc((size_t)(longest + 1) * sizeof *row);
    int status = residual && bt && row ? 0 : 1;

    for (int64_t j = 0; p->bias && j < d.cols; j++)
        bias += tp_element(data, set, TP_BIAS, 0, 0, d.col0 + j) * sign_at(data, j);
    for (int64_t l = 0; !status && l < p->l; l++) {
        for (int64_t q = 0; q < p->k; q++) {
            bt[q] = 0;
            fill_row(data, set, TP_B, l, q, d.col0, d.cols, row);
            for (int64_t j = 0; j < d.cols; j++)
                bt[q] += row[j] * sign_at(data, j);
        }
        for (int64_t i = 0; i < d.rows; i++) {
            double sum = 0, c = 0;
            fill_row(data, set, TP_A, l, d.row0 + i, 0, p->k, row);
            for (int64_t q = 0; q < p->k; q++)
                sum += row[q] * bt[q];
            if (p->beta != 0) {
                fill_row(data, set, TP_C, l, d.row0 + i, d.col0, d.cols, row);
                for (int64_t j = 0; j < d.cols; j++)
                    c += row[j] * sign_at(data, j);
            }
            residual[l * d.rows + i] = p->alpha * sum + p->beta * c + bias;
        }
    }
    data->set[set].residual = residual;
    free(bt);
    free(row);
    return status;
}

/* ---- making and dropping -------------------------------------------------------------------------- */

/* Every rank allocates what the largest part needs. */
static size_t largest(const weft_problem *p, int world, tp_operand operand)
{
    size_t most = 0;

    for (int r = 0; r < world; r++) {
        tp_layout layout = tp_layout_of(p, world, r);
        tp_block block = operand == TP_A ? layout.a : operand == TP_B ? layout.b : layout.d;
        size_t elements = operand == TP_BIAS ? (size_t)block.cols : (size_t)(block.rows * block.cols * p->l);
        most = elements > most ? elements : most;
    }
    return most * weft_dtype_size(operand == TP_A || operand == TP_B ? p->dtype : p->d_dtype) + 64;
}

static int allocate(tp_data *data, size_t bytes, void **memory)
{
    bench_context *context = data->context;

    return weft_alloc(context->group, bytes, 0, memory) == WEFT_OK
               ? 0
               : bench_fail(context, "allocating operands");
}

static weft_gemm_args pack_args(const tp_data *data, tp_block b)
{
    weft_gemm_args args;

    weft_gemm_args_init(&args, data->problem.dtype, 1, b.cols, b.rows);
    args.transb = data->problem.transb;
    args.threads = 1;
    return args;
}

/* Weights packed once: the matrices of a batch lie one after another, each on a 128-byte boundary. */
static int open_packed(tp_data *data, tp_set *s)
{
    tp_block b = data->layout.b;
    size_t bytes = 0, stride = 0, element = weft_dtype_size(data->problem.dtype);
    const weft_packed *packed;

    for (int r = 0; r < data->context->size; r++) {
        weft_gemm_args args = pack_args(data, tp_layout_of(&data->problem, data->context->size, r).b);
        size_t here = args.n && args.k ? weft_pack_bytes(&args) : 0;
        here = weft_round_up_bytes(here, 128);
        bytes = here > bytes ? here : bytes;
        stride = r == data->context->rank ? here : stride;
    }
    if (allocate(data, bytes * (size_t)data->problem.l + 128, &s->packed))
        return 1;
    for (int64_t l = 0; stride && l < data->problem.l; l++) {
        weft_gemm_args args = pack_args(data, b);
        args.b = (const char *)s->b + (size_t)(l * b.rows * b.cols) * element;
        if (weft_pack(&args, (char *)s->packed + (size_t)l * stride, &packed) != WEFT_OK)
            return bench_say(data->context, "packing: %s", weft_error(NULL));
    }
    return 0;
}

static int open_set(tp_data *data, int set)
{
    const weft_problem *p = &data->problem;
    tp_set *s = &data->set[set];
    int world = data->context->size;

    if (allocate(data, largest(p, world, TP_A), &s->a) || allocate(data, largest(p, world, TP_B), &s->b))
        return 1;
    if (p->beta != 0 && allocate(data, largest(p, world, TP_C), &s->c))
        return 1;
    if (p->bias && allocate(data, largest(p, world, TP_BIAS), &s->bias))
        return 1;
    tp_fill(data, set, TP_A, data->layout.a, p->transa, p->dtype, s->a);
    tp_fill(data, set, TP_B, data->layout.b, p->transb, p->dtype, s->b);
    if (p->b_form == WEFT_B_PREPACKED && open_packed(data, s))
        return 1;
    if (s->c)
        tp_fill(data, set, TP_C, data->layout.d, false, p->d_dtype, s->c);
    for (int64_t j = 0; s->bias && j < data->layout.d.cols; j++)
        weft_element_set(p->d_dtype, s->bias, (size_t)j,
                         tp_element(data, set, TP_BIAS, 0, 0, data->layout.d.col0 + j));
    make_samples(data, set);
    if (data->by_element ? make_reference(data, set) : p->act == WEFT_ACT_NONE ? make_residual(data, set) : 0)
        return bench_say(data->context, "no memory for the reference");
    return 0;
}

/* Sets of operands: as many as keep the next one out of the caches. */
static int count_sets(const weft_problem *p, int world)
{
    static const double SETS_BYTES = 64 << 20;
    double bytes = (double)world * (double)(largest(p, world, TP_A) + largest(p, world, TP_B));

    return bytes * 2 > SETS_BYTES              ? 2
           : bytes * TP_MOST_SETS > SETS_BYTES ? (int)(SETS_BYTES / bytes) + 1
                                               : TP_MOST_SETS;
}

int tp_data_fits(bench_context *context, const weft_problem *p, bool peer)
{
    int world = context->size, sets = count_sets(p, world);
    double element = (double)weft_dtype_size(p->dtype), l = (double)p->l, m = (double)p->m, n = (double)p->n,
           k = (double)p->k;
    double a = (double)largest(p, world, TP_A), b = (double)largest(p, world, TP_B),
           d = (double)largest(p, world, TP_C);
    bool gathers = p->op == WEFT_OP_AG_GEMM;
    double whole = gathers ? (p->layout == WEFT_LAYOUT_GATHER_B ? n : m) * k * l : 0;
    double sums = m * n * l * 4; /* of the local product; partial sums are float32 */
    /* Operands and result, what the local product and the collective alone have for themselves. */
    double symmetric = sets * (a + b * (p->b_form == WEFT_B_PREPACKED ? 2 : 1) + (p->beta != 0 ? d : 0)) + d +
                       sums + sets * whole * element + 2 * (gathers ? whole * element : sums);
    /* The results that others are compared with, and the peer's float32. */
    double elements = d / (double)weft_dtype_size(p->d_dtype);
    double private = sets * elements * 8 + (peer ? elements * 4 + (gathers ? whole : m * n) * 4 : 0) +
                     (peer && p->dtype != WEFT_F32 ? sets * (a + b) / element * 4 : 0);
    double heap = (double)context->group->world->segment.header->heap_bytes;
    double memory = (double)weft_topo_memory_bytes();

    if (symmetric > heap)
        return bench_say(
            context,
            "%lld x %lld x %lld on %d ranks: the bench needs %.1f GiB of symmetric memory on each "
            "and has %.1f; WEFT_HEAP sets how much",
            (long long)p->m, (long long)p->n, (long long)p->k, world, symmetric / (1 << 30),
            heap / (1 << 30));
    if ((symmetric + private) * world > memory)
        return bench_say(
            context,
            "%lld x %lld x %lld on %d ranks: the bench needs %.1f GiB of memory, the machine has %.1f",
            (long long)p->m, (long long)p->n, (long long)p->k, world,
            (symmetric + private) * world / (1 << 30), memory / (1 << 30));
    return 0;
}

int tp_data_open(tp_data *data, bench_context *context, const weft_problem *problem)
{
    static const double ELEMENTS_WORK = 1 << 27;
    int world = context->size;
    double work = (double)problem->m * (double)problem->n * (double)problem->k * (double)problem->l;

    memset(data, 0, sizeof *data);
    data->context = context;
    data->problem = *problem;
    data->layout = tp_layout_of(problem, world, context->rank);
    data->seed = bench_random(context);
    data->sets = count_sets(problem, world);
    data->by_element = work * data->sets <= ELEMENTS_WORK;
    data->d_bytes = largest(problem, world, TP_C);
    if (allocate(data, data->d_bytes, &data->d))
        return 1;
    for (int s = 0; s < data->sets; s++) {
        report_progress(&context->report, "filling operands");
        if (open_set(data, s))
            return 1;
    }
    return 0;
}

void tp_data_close(tp_data *data)
{
    for (int s = 0; s < data->sets; s++) {
        tp_set *set = &data->set[s];
        weft_free(data->context->group, set->a);
        weft_free(data->context->group, set->b);
        weft_free(data->context->group, set->packed);
        weft_free(data->context->group, set->c);
        weft_free(data->context->group, set->bias);
        free(set->reference);
        free(set->residual);
    }
    weft_free(data->context->group, data->d);
}

/* ---- checking ------------------------------------------------------------------------------------- */

void tp_poison(tp_data *data)
{
    memset(data->d, 0xff, data->d_bytes); /* a NaN in every float type, -1 in integers */
}

static inline double value_at(weft_dtype dtype, const void *d, int64_t i)
{
    switch (dtype) {
    case WEFT_F32:
        return ((const float *)d)[i];
    case WEFT_BF16:
        return weft_bf16_to_f32(((const uint16_t *)d)[i]);
    default:
        return weft_element_get(dtype, d, (size_t)i);
    }
}

static void note(tp_data *data, double error, double bound)
{
    if (!(error <= bound)) /* also when the error is NaN */
        data->wrong++;
    if (isfinite(error))
        data->worst = fmax(data->worst, error);
}

/* The first result of a large shape: row sums against t, then it is kept. */
static void adopt(tp_data *data, int set, const void *d, weft_dtype dtype)
{
    const tp_block block = data->layout.d;
    tp_set *s = &data->set[set];
    int64_t rows = block.rows * data->problem.l;
    double allowed = 4 * sqrt((double)block.cols + 1) * bound_at(data, data->sum_bound, data->largest);

    s->reference = malloc((size_t)(rows * block.cols + 1) * sizeof *s->reference);
    if (!s->reference) {
        data->wrong++;
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < block.cols; j++) {
            double value = value_at(dtype, d, i * block.cols + j);
            s->reference[i * block.cols + j] = value;
            sum += value * sign_at(data, j);
        }
        if (s->residual && !(fabs(sum - s->residual[i]) <= allowed))
            data->wrong++;
    }
}

void tp_check(tp_data *data, int set, const void *d, weft_dtype dtype)
{
    const tp_block block = data->layout.d;
    tp_set *s = &data->set[set];
    int64_t elements = block.rows * block.cols * data->problem.l;

    for (int i = 0; i < TP_SAMPLES && elements; i++)
        note(data, fabs(value_at(dtype, d, s->sample_at[i]) - s->sample[i]), s->sample_bound[i]);
    if (!s->reference) {
        adopt(data, set, d, dtype);
        return;
    }
    double times = data->by_element ? 1 : 2;
    for (int64_t i = 0; i < elements; i++) {
        double exact = s->reference[i], error = fabs(value_at(dtype, d, i) - exact);
        if (!(error <= times * bound_at(data, data->sum_bound, exact)))
            data->wrong++;
        else if (data->by_element)
            data->worst = fmax(data->worst, error);
    }
}

double tp_bound(const tp_data *data)
{
    return bound_at(data, data->sum_bound, data->largest);
}
