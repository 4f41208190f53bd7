/*
 * Global integer matrices, their distribution over the ranks of a weft_cuda_world, and the exact product.
 * Small integers make every sum exact in float32, so results are compared for equality.
 */
#ifndef WEFT_TESTS_CUDA_MATRICES_H
#define WEFT_TESTS_CUDA_MATRICES_H

#include "core/dtype.h"
#include "run/cuda/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const weft_cuda_world_options plain = {.limits = {10, 5}};

static inline weft_problem problem_of(weft_op op, weft_schedule schedule, int64_t m, int64_t n, int64_t k)
{
    return (weft_problem){.size = sizeof(weft_problem),
                          .op = op,
                          .schedule = schedule,
                          .m = m,
                          .n = n,
                          .k = k,
                          .l = 1,
                          .dtype = WEFT_BF16,
                          .d_dtype = WEFT_BF16,
                          .wire_dtype = WEFT_F32,
                          .alpha = 1};
}

static inline int matrix_value(int role, uint64_t seed, int64_t batch, int64_t row, int64_t col)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)role * 0xd1342543de82ef95u +
                 (uint64_t)batch * 0x2545f4914f6cdd1du + (uint64_t)row * 0xbf58476d1ce4e5b9u +
                 (uint64_t)col * 0x94d049bb133111ebu;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return (int)(x % 5) - 2;
}

static inline const weft_operand *matrix_operand(const weft_cuda_world *w, weft_operand_role role)
{
    for (uint32_t o = 0; o < w->parts[0].operand_count; o++)
        if (w->parts[0].operands[o].role == role && w->parts[0].operands[o].place == WEFT_PLACE_USER)
            return &w->parts[0].operands[o];
    return NULL;
}

/* Calls `visit` with the element index of an instance and its place in the global matrix. */
typedef void matrix_visit(void *context, size_t index, int64_t batch, int64_t row, int64_t col);

static inline size_t matrix_each(const weft_cuda_world *w, weft_operand_role role, int rank,
                                 matrix_visit *visit, void *context)
{
    const weft_operand *o = matrix_operand(w, role);
    int64_t rows = weft_operand_rows(o, w->world, rank), cols = weft_operand_cols(o, w->world, rank);
    int64_t row0 = o->rows_parted ? weft_part(o->rows, w->world, rank).begin : 0;
    int64_t col0 = o->cols_parted ? weft_part(o->cols, w->world, rank).begin : 0;
    int64_t ld = weft_cuda_world_place(w, role, rank).ld, lines = o->transposed ? cols : rows;
    for (int64_t b = 0; b < o->batch && visit; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                visit(context, (size_t)(b * lines * ld + (o->transposed ? j * ld + i : i * ld + j)), b,
                      row0 + i, col0 + j);
    return (size_t)(o->batch * lines * ld);
}

typedef struct matrix_image {
    const weft_operand *operand;
    char *bytes;
    uint64_t seed;
    const double *expected; /* [batch][m][n] */
    int64_t m, n, wrong;
    double got, want;
} matrix_image;

static inline void matrix_put(void *context, size_t index, int64_t batch, int64_t row, int64_t col)
{
    matrix_image *image = context;
    weft_element_set(image->operand->dtype, image->bytes, index,
                     matrix_value((int)image->operand->role, image->seed, batch, row, col));
}

static inline void matrix_compare(void *context, size_t index, int64_t batch, int64_t row, int64_t col)
{
    matrix_image *image = context;
    char rounded[8];
    weft_element_set(image->operand->dtype, rounded, 0,
                     image->expected[(batch * image->m + row) * image->n + col]);
    double want = weft_element_get(image->operand->dtype, rounded, 0);
    double got = weft_element_get(image->operand->dtype, image->bytes, index);
    if (!(got == want) && image->wrong++ == 0) {
        image->got = got;
        image->want = want;
    }
}

/* Fills every rank's inputs and poisons every rank's D. */
static inline int matrix_fill(weft_cuda_world *w, uint64_t seed)
{
    const weft_cuda_driver *cu = w->device->cu;
    static const weft_operand_role roles[] = {WEFT_ROLE_A, WEFT_ROLE_B, WEFT_ROLE_C, WEFT_ROLE_BIAS,
                                              WEFT_ROLE_D};
    int failed = 0;
    for (int r = 0; r < w->world; r++)
        for (int i = 0; i < 5; i++) {
            const weft_operand *o = matrix_operand(w, roles[i]);
            if (!o)
                continue;
            size_t elements = matrix_each(w, roles[i], r, NULL, NULL),
                   bytes = elements * weft_dtype_size(o->dtype);
            matrix_image image = {.operand = o, .bytes = malloc(bytes + 8), .seed = seed};
            memset(image.bytes, 0xff, bytes); /* NaN everywhere else: padding must not leak into results */
            if (roles[i] != WEFT_ROLE_D)
                matrix_each(w, roles[i], r, matrix_put, &image);
            if (bytes)
                failed |=
                    cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)weft_cuda_world_place(w, roles[i], r).base,
                                          image.bytes, bytes, NULL) != CUDA_SUCCESS;
            failed |= cu->cuStreamSynchronize(NULL) != CUDA_SUCCESS;
            free(image.bytes);
        }
    return failed;
}

/* The exact D, global; the caller frees it. */
static inline double *matrix_expected(const weft_problem *p, uint64_t seed)
{
    double *d = calloc((size_t)(p->l * p->m * p->n) + 1, sizeof(*d));
    float *b = malloc((size_t)(p->k * p->n + 1) * sizeof(*b)),
          *sums = malloc((size_t)(p->n + 1) * sizeof(*sums));
    for (int64_t batch = 0; batch < p->l; batch++) {
        for (int64_t i = 0; i < p->k; i++)
            for (int64_t j = 0; j < p->n; j++)
                b[i * p->n + j] = (float)matrix_value(WEFT_ROLE_B, seed, batch, i, j);
        for (int64_t i = 0; i < p->m; i++) {
            for (int64_t j = 0; j < p->n; j++)
                sums[j] = 0;
            for (int64_t x = 0; x < p->k; x++) {
                float a = (float)matrix_value(WEFT_ROLE_A, seed, batch, i, x);
                for (int64_t j = 0; j < p->n; j++)
                    sums[j] += a * b[x * p->n + j];
            }
            for (int64_t j = 0; j < p->n; j++) {
                double x = p->alpha * (double)sums[j];
                if (p->beta != 0)
                    x += p->beta * matrix_value(WEFT_ROLE_C, seed, batch, i, j);
                if (p->bias)
                    x += matrix_value(WEFT_ROLE_BIAS, seed, 0, 0, j);
                if (p->act == WEFT_ACT_RELU)
                    x = x > 0 ? x : 0;
                d[(batch * p->m + i) * p->n + j] = x;
            }
        }
    }
    free(b);
    free(sums);
    return d;
}

/* Elements of all ranks' D that differ from the exact result. */
static inline int64_t matrix_wrong(weft_cuda_world *w, const weft_problem *p, const double *expected,
                                   double *got, double *want)
{
    const weft_cuda_driver *cu = w->device->cu;
    const weft_operand *o = matrix_operand(w, WEFT_ROLE_D);
    int64_t wrong = 0;
    for (int r = 0; r < w->running; r++) {
        size_t bytes = matrix_each(w, WEFT_ROLE_D, r, NULL, NULL) * weft_dtype_size(o->dtype);
        matrix_image image = {
            .operand = o, .bytes = malloc(bytes + 8), .expected = expected, .m = p->m, .n = p->n};
        if (bytes && (cu->cuMemcpyDtoHAsync(
                          image.bytes, (CUdeviceptr)(uintptr_t)weft_cuda_world_place(w, WEFT_ROLE_D, r).base,
                          bytes, NULL) != CUDA_SUCCESS ||
                      cu->cuStreamSynchronize(NULL) != CUDA_SUCCESS))
            wrong += 1000000;
        matrix_each(w, WEFT_ROLE_D, r, matrix_compare, &image);
        if (image.wrong && !wrong) {
            *got = image.got;
            *want = image.want;
        }
        wrong += image.wrong;
        free(image.bytes);
    }
    return wrong;
}

#endif
