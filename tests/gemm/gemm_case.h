/*
 * One product for the engine's tests: operands that end at a guard page, a float64 reference, and the
 * comparison. A case is described by the struct, run over one core's kernels, and torn down.
 */
#ifndef WEFT_TESTS_GEMM_CASE_H
#define WEFT_TESTS_GEMM_CASE_H

#include "core/dtype.h"
#include "gemm/gemm.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Fading ones have products that are zero in float32, of either sign. */
typedef enum gemm_values { GEMM_SMALL_INTEGERS, GEMM_REALS, GEMM_FADING } gemm_values;

typedef struct gemm_case {
    const weft_core *core;
    weft_dtype dtype; /* of the product */
    weft_dtype a_dtype, b_dtype, d_dtype;
    bool f16_fast;
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    int64_t slack; /* added to every leading dimension */
    bool packed_b;
    int64_t packed_k0, packed_n0; /* window inside a larger packed B */
    bool acc, raw, bias, row_scale, col_scale;
    float alpha, beta;
    bool c_is_d; /* C in place */
    weft_act act;
    int destinations;
    gemm_values values;
    uint64_t seed;
} gemm_case;

static inline size_t guarded_span(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

/* Memory whose last byte is followed by a page nobody may touch. */
static inline void *guarded_alloc(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guarded_span(bytes);
    char *base = mmap(NULL, span + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED || mprotect(base + span, page, PROT_NONE))
        abort();
    return base + span - bytes;
}

static inline void guarded_free(void *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guarded_span(bytes);

    munmap((char *)memory + bytes - span, span + page);
}

/* A matrix in guarded memory: `major` lines of `minor` elements, ld apart; the last line ends the memory. */
typedef struct matrix {
    weft_dtype dtype;
    int64_t rows, cols, rs, cs;
    size_t bytes;
    void *data;
} matrix;

static matrix matrix_make(weft_dtype dtype, int64_t rows, int64_t cols, bool transposed, int64_t slack)
{
    int64_t major = transposed ? cols : rows, minor = transposed ? rows : cols, ld = minor + slack;
    matrix m = {
        .dtype = dtype, .rows = rows, .cols = cols, .rs = transposed ? 1 : ld, .cs = transposed ? ld : 1};

    m.bytes = major && minor ? (size_t)((major - 1) * ld + minor) * weft_dtype_size(dtype) : 1;
    m.data = guarded_alloc(m.bytes);
    memset(m.data, 0xff, m.bytes); /* NaN in every floating type: what lies between lines must not matter */
    return m;
}

static double matrix_get(const matrix *m, int64_t i, int64_t j)
{
    return weft_element_get(m->dtype, m->data, (size_t)(i * m->rs + j * m->cs));
}

static void matrix_fill(matrix *m, gemm_values values, uint64_t *seed)
{
    for (int64_t i = 0; i < m->rows; i++) {
        for (int64_t j = 0; j < m->cols; j++) {
            uint64_t r = check_random(seed);
            double value =
                values == GEMM_SMALL_INTEGERS ? (double)(r % 5) - 2.0 : (double)(r >> 11) * 0x1p-52 - 1.0;

            if (m->dtype == WEFT_I8 && values == GEMM_REALS)
                value = (double)(r % 255) - 127;
            if (values == GEMM_FADING)
                value *= 0x1p-76;
            weft_element_set(m->dtype, m->data, (size_t)(i * m->rs + j * m->cs), value);
        }
    }
}

static void matrix_free(matrix *m)
{
    guarded_free(m->data, m->bytes);
}

static bool bound_alike(const weft_binding *a, const weft_binding *b)
{
    return a->kernel == b->kernel && a->mc == b->mc && a->kc == b->kc && a->nc == b->nc &&
           a->narrow == b->narrow && a->finish == b->finish && a->along == b->along && a->across == b->across;
}

/* Whether this core, by its number, can run here, and no better one has the same kernels and blocks for the
 * type: cores share most of them, and what is tested once need not be again. */
static inline bool gemm_case_is_new(int core, weft_dtype dtype)
{
    const weft_core *it = weft_core_at(core);

    for (int i = 0; i < core; i++) {
        if (weft_core_available(weft_core_at(i)) &&
            bound_alike(weft_core_binding(weft_core_at(i), dtype, false),
                        weft_core_binding(it, dtype, false)) &&
            bound_alike(weft_core_binding(weft_core_at(i), dtype, true), weft_core_binding(it, dtype, true)))
            return false;
    }
    return weft_core_available(it);
}

/* A plain row-major product of this type on this core; change what differs. */
static inline gemm_case gemm_case_plain(const weft_core *core, weft_dtype dtype, int64_t m, int64_t n,
                                        int64_t k)
{
    return (gemm_case){
        .core = core,
        .dtype = dtype,
        .a_dtype = dtype,
        .b_dtype = dtype,
        .d_dtype = weft_dtype_result(dtype),
        .m = m,
        .n = n,
        .k = k,
        .alpha = 1,
        .destinations = 1,
        .seed = 1,
    };
}

typedef struct operands {
    matrix a, b, c, bias, acc, row_scale, col_scale, d[WEFT_GEMM_DESTINATIONS_MAX], before;
    double *dense_a, *dense_b; /* m x k, and n x k (transposed) */
    void *packed, *workspace;
    size_t packed_bytes, workspace_bytes;
} operands;

static double act_exact(weft_act act, double x)
{
    switch (act) {
    case WEFT_ACT_RELU:
        return x < 0 ? 0 : x;
    case WEFT_ACT_GELU:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case WEFT_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static double unit_of(weft_dtype dtype)
{
    return dtype == WEFT_F16        ? 0x1p-11
           : dtype == WEFT_BF16     ? 0x1p-8
           : dtype == WEFT_F32      ? 0x1p-24
           : dtype == WEFT_FP8_E4M3 ? 0x1p-4
           : dtype == WEFT_FP8_E5M2 ? 0x1p-3
                                    : 0;
}

/* Half of the step between numbers that are too small to be normal. */
static double least_of(weft_dtype dtype)
{
    return dtype == WEFT_F16        ? 0x1p-25
           : dtype == WEFT_FP8_E4M3 ? 0x1p-10
           : dtype == WEFT_FP8_E5M2 ? 0x1p-17
                                    : 1e-37;
}

static double rounded(weft_dtype dtype, double value)
{
    double slot;

    weft_element_set(dtype, &slot, 0, value);
    return weft_element_get(dtype, &slot, 0);
}

/*
 * The bound for one element. Each product of panel elements has been rounded once per operand when it was
 * converted; a sum of k products in fp32 errs by at most (k + 8) units of the sum of magnitudes. BFMMLA
 * rounds its inner sums to odd, which can cost two units per step; with fp16 sums the unit is that of fp16.
 */
static double bound_of(const gemm_case *c, double magnitude, double rest, double exact)
{
    weft_dtype sums = c->f16_fast ? WEFT_F16 : WEFT_F32;
    bool fp8 = weft_dtype_is_fp8(c->dtype);
    double unit = c->dtype == WEFT_I8 ? 0 : unit_of(sums) * (c->dtype == WEFT_BF16 || fp8 ? 4 : 2);
    double conversions = (c->a_dtype != c->dtype && !weft_dtype_is_fp8(c->a_dtype) ? unit_of(c->dtype) : 0) +
                         (c->b_dtype != c->dtype && !weft_dtype_is_fp8(c->b_dtype) ? unit_of(c->dtype) : 0);
    double bound = magnitude * (((double)c->k + 8) * unit + 1.01 * conversions) + rest * 8 * 0x1p-24;

    if (c->act == WEFT_ACT_GELU || c->act == WEFT_ACT_SILU)
        bound = 1.2 * bound + 1e-6 * fabs(exact) + 1e-7 * rest;
    bound += (fabs(exact) + bound) * (c->raw ? 0 : unit_of(c->d_dtype)) + least_of(c->d_dtype);
    if (!c->raw && c->d_dtype == WEFT_I8)
        bound += 0.5;
    if (!c->raw && c->d_dtype == WEFT_I32 && (c->row_scale || c->col_scale || c->act >= WEFT_ACT_GELU))
        bound += 1; /* close to a tie the double may fall on either side */
    return bound;
}

/* A row of A times a column of B, and the same of magnitudes: in several sums at a time, since one waits for
 * itself, and most of a test's time goes by here. */
static double dot_exact(const double *a, const double *b, int64_t k, double *magnitude)
{
    enum { SUMS = 8 };
    double sum[SUMS] = {0}, size[SUMS] = {0};

    for (int64_t p = 0; p + SUMS <= k; p += SUMS) {
        for (int s = 0; s < SUMS; s++) {
            double product = a[p + s] * b[p + s];

            sum[s] += product;
            size[s] += fabs(product);
        }
    }
    for (int64_t p = k / SUMS * SUMS; p < k; p++) {
        sum[0] += a[p] * b[p];
        size[0] += fabs(a[p] * b[p]);
    }
    for (int s = 1; s < SUMS; s++) {
        sum[0] += sum[s];
        size[0] += size[s];
    }
    *magnitude = size[0];
    return sum[0];
}

static void check_element(const gemm_case *c, const operands *o, int64_t i, int64_t j)
{
    double magnitude, rest;
    double sum = dot_exact(o->dense_a + i * c->k, o->dense_b + j * c->k, c->k, &magnitude);

    if (c->acc) {
        sum += matrix_get(&o->acc, i, j);
        magnitude += fabs(matrix_get(&o->acc, i, j));
    }
    if (!c->raw) {
        double scale = c->alpha * (c->row_scale ? matrix_get(&o->row_scale, 0, i) : 1) *
                       (c->col_scale ? matrix_get(&o->col_scale, 0, j) : 1);

        sum *= scale;
        magnitude *= fabs(scale);
        rest = magnitude;
        if (c->beta != 0) {
            sum += c->beta * matrix_get(&o->before, i, j);
            rest += fabs(c->beta * matrix_get(&o->before, i, j));
        }
        if (c->bias) {
            sum += matrix_get(&o->bias, 0, j);
            rest += fabs(matrix_get(&o->bias, 0, j));
        }
        sum = act_exact(c->act, sum);
    } else {
        rest = magnitude;
    }
    bool smooth = c->raw || c->act == WEFT_ACT_NONE || c->act == WEFT_ACT_RELU;
    weft_dtype type = o->d[0].dtype;

    for (int d = 0; d < c->destinations; d++) {
        double actual = matrix_get(&o->d[d], i, j);
        bool good =
            c->values == GEMM_SMALL_INTEGERS && smooth
                ? actual == rounded(type, sum)
                : fabs(actual - (type == WEFT_I8 || type == WEFT_I32 ? rounded(type, sum) : sum)) <=
                      bound_of(c, magnitude, rest, sum) + (type == WEFT_I8 || type == WEFT_I32 ? 1 : 0);

        CHECK(good);
        if (!good && check_failures < 8)
            fprintf(stderr,
                    "  %s %s m %lld n %lld k %lld ta %d tb %d packed %d acc %d raw %d alpha %g beta %g act "
                    "%d seed %llu: "
                    "D%d(%lld, %lld) is %.9g, expected %.9g\n",
                    c->core->name, weft_dtype_name(c->dtype), (long long)c->m, (long long)c->n,
                    (long long)c->k, c->transpose_a, c->transpose_b, c->packed_b, c->acc, c->raw, c->alpha,
                    c->beta, c->act, (unsigned long long)c->seed, d, (long long)i, (long long)j, actual, sum);
    }
}

/* The gaps between the lines of D still hold what they were filled with. */
static void check_gaps(const matrix *d)
{
    size_t size = weft_dtype_size(d->dtype);

    for (int64_t i = 0; i + 1 < d->rows; i++) {
        const unsigned char *gap = (const unsigned char *)d->data + (size_t)(i * d->rs + d->cols) * size;

        for (size_t x = 0; x < (size_t)(d->rs - d->cols) * size; x++)
            CHECK_INT(gap[x], 0xff);
    }
}

static void make_operands(const gemm_case *c, const weft_binding *bind, operands *o)
{
    weft_dtype sums = weft_dtype_accumulator(c->dtype), d_dtype = c->raw ? sums : c->d_dtype;
    uint64_t seed = c->seed;

    o->a = matrix_make(c->a_dtype, c->m, c->k, c->transpose_a, c->slack);
    o->b = matrix_make(c->b_dtype, c->packed_k0 + c->k, c->packed_n0 + c->n, c->transpose_b, c->slack);
    o->c = matrix_make(d_dtype, c->m, c->n, false, c->slack);
    o->before = matrix_make(d_dtype, c->m, c->n, false, 0);
    o->bias = matrix_make(d_dtype, 1, c->n, false, 0);
    o->acc = matrix_make(sums, c->m, c->n, false, c->slack);
    o->row_scale = matrix_make(WEFT_F32, 1, c->m, false, 0);
    o->col_scale = matrix_make(WEFT_F32, 1, c->n, false, 0);
    matrix_fill(&o->a, c->values, &seed);
    matrix_fill(&o->b, c->values, &seed);
    matrix_fill(&o->bias, c->values, &seed);
    matrix_fill(&o->acc, c->values, &seed);
    matrix_fill(&o->row_scale, c->values, &seed);
    matrix_fill(&o->col_scale, c->values, &seed);
    o->dense_a = malloc(sizeof(double) * (size_t)(c->m * c->k + 1));
    o->dense_b = malloc(sizeof(double) * (size_t)(c->n * c->k + 1));
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t p = 0; p < c->k; p++)
            o->dense_a[i * c->k + p] = matrix_get(&o->a, i, p);
    }
    for (int64_t j = 0; j < c->n; j++) {
        for (int64_t p = 0; p < c->k; p++)
            o->dense_b[j * c->k + p] = matrix_get(&o->b, c->packed_k0 + p, c->packed_n0 + j);
    }
    if (c->beta != 0)
        matrix_fill(&o->c, c->values, &seed); /* otherwise C stays NaN: it must not be read */
    for (int d = 0; d < c->destinations; d++)
        o->d[d] = matrix_make(d_dtype, c->m, c->n, false, c->slack + d);
    for (int64_t i = 0; i < c->m && c->beta != 0; i++) {
        for (int64_t j = 0; j < c->n; j++) {
            weft_element_set(d_dtype, o->before.data, (size_t)(i * o->before.rs + j),
                             matrix_get(&o->c, i, j));
            if (c->c_is_d)
                weft_element_set(d_dtype, o->d[0].data, (size_t)(i * o->d[0].rs + j),
                                 matrix_get(&o->c, i, j));
        }
    }
    o->workspace_bytes = weft_gemm_workspace_bytes(bind, c->m, c->n, c->k, c->packed_b);
    o->workspace = guarded_alloc((o->workspace_bytes + 127) / 128 * 128);
    memset(o->workspace, 0xff, o->workspace_bytes);
    o->packed = NULL;
    if (c->packed_b) {
        o->packed_bytes = (weft_packed_bytes(bind, o->b.rows, o->b.cols) + 127) / 128 * 128;
        o->packed = guarded_alloc(o->packed_bytes);
        memset(o->packed, 0xff, o->packed_bytes);
    }
}

/* Packs in four pieces, the later ones first, as workers that share the job would. */
static void pack_in_pieces(const weft_binding *bind, const matrix *b, void *memory)
{
    weft_gemm_steps steps = weft_gemm_steps_of(bind);
    int64_t k_half = b->rows / 2 / steps.k_step * steps.k_step, n_half = b->cols / 2 / steps.nr * steps.nr;
    weft_packed *packed = weft_packed_begin(bind, b->rows, b->cols, memory);

    for (int piece = 3; piece >= 0; piece--) {
        int64_t k0 = piece & 1 ? k_half : 0, n0 = piece & 2 ? n_half : 0;

        weft_packed_fill(bind, packed, b->data, b->dtype, b->rs, b->cs, k0,
                         (piece & 1 ? b->rows : k_half) - k0, n0, (piece & 2 ? b->cols : n_half) - n0);
    }
    CHECK(weft_packed_fits(bind, packed, b->rows, b->cols));
}

static weft_gemm_tile make_tile(const gemm_case *c, const weft_binding *bind, operands *o)
{
    weft_gemm_tile tile = weft_gemm_tile_init(bind, c->dtype);

    tile.m = c->m;
    tile.n = c->n;
    tile.k = c->k;
    tile.a = o->a.data;
    tile.a_rs = o->a.rs;
    tile.a_cs = o->a.cs;
    tile.a_dtype = c->a_dtype;
    tile.b = o->b.data;
    tile.b_rs = o->b.rs;
    tile.b_cs = o->b.cs;
    tile.b_dtype = c->b_dtype;
    if (c->packed_b) {
        pack_in_pieces(bind, &o->b, o->packed);
        tile.packed_b = o->packed;
        tile.packed_k0 = c->packed_k0;
        tile.packed_n0 = c->packed_n0;
    }
    tile.acc = c->acc ? o->acc.data : NULL;
    tile.acc_ld = o->acc.rs;
    tile.raw = c->raw;
    tile.alpha = c->alpha;
    tile.beta = c->beta;
    tile.act = c->act;
    tile.row_scale = c->row_scale ? o->row_scale.data : NULL;
    tile.col_scale = c->col_scale ? o->col_scale.data : NULL;
    tile.c = c->c_is_d ? o->d[0].data : o->c.data;
    tile.c_ld = c->c_is_d ? o->d[0].rs : o->c.rs;
    tile.bias = c->bias ? o->bias.data : NULL;
    tile.d_dtype = c->d_dtype;
    tile.d_count = c->destinations;
    for (int d = 0; d < c->destinations; d++) {
        tile.d[d] = o->d[d].data;
        tile.d_ld[d] = o->d[d].rs;
    }
    return tile;
}

static void free_operands(const gemm_case *c, operands *o)
{
    matrix *all[] = {&o->a, &o->b, &o->c, &o->before, &o->bias, &o->acc, &o->row_scale, &o->col_scale};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
    for (int d = 0; d < c->destinations; d++)
        matrix_free(&o->d[d]);
    free(o->dense_a);
    free(o->dense_b);
    guarded_free(o->workspace, (o->workspace_bytes + 127) / 128 * 128);
    if (o->packed)
        guarded_free(o->packed, o->packed_bytes);
}

/* Runs the case and counts checks: every element right, every destination alike, nothing outside touched. */
static inline void gemm_case_run(const gemm_case *c)
{
    const weft_binding *bind = weft_core_binding(c->core, c->dtype, c->f16_fast);
    operands o;
    weft_error_text error;

    make_operands(c, bind, &o);
    weft_gemm_tile tile = make_tile(c, bind, &o);

    if (weft_gemm_tile_check(&tile, &error)) {
        CHECK(!"the tile is legal");
        fprintf(stderr, "  %s\n", error.text);
    } else {
        weft_gemm_run_tile(&tile, o.workspace);
        for (int64_t i = 0; i < c->m; i++) {
            for (int64_t j = 0; j < c->n; j++)
                check_element(c, &o, i, j);
        }
        for (int d = 0; d < c->destinations; d++)
            check_gaps(&o.d[d]);
    }
    free_operands(c, &o);
}

#endif
