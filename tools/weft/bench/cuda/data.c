/* See data.h. */
#include "bench/cuda/data.h"

#include "core/dtype.h"
#include "core/round.h"

#include <math.h>
#include <stdlib.h>

enum { SAMPLES = 400, PATTERN = 1000003 };

/* Element i of an operand is entry (i + shift of the operand and rank) mod PATTERN of a table, so that a
 * reference can look up what was uploaded. What every rank holds whole is the same on all of them. */
static int8_t table[PATTERN];

static size_t shift_of(const weft_operand *operand, int rank)
{
    bool parted = operand->rows_parted || operand->cols_parted;

    return (size_t)operand->role * 300007 + (size_t)(parted ? rank : 0) * 50021;
}

static size_t elements_of(const weft_cuda_world *w, const weft_operand *operand, int rank)
{
    int64_t rows = weft_operand_rows(operand, w->world, rank),
            cols = weft_operand_cols(operand, w->world, rank);
    int64_t ld = weft_cuda_world_place(w, operand->role, rank).ld;

    return (size_t)(operand->batch * (operand->transposed ? cols : rows) * ld);
}

/* Uploads count elements of a block that repeats, from `shift` on. */
static bool upload(const weft_cuda_driver *cu, void *at, size_t count, const uint16_t *block, size_t length,
                   size_t shift)
{
    bool good = true;

    for (size_t done = 0; done < count && good;) {
        size_t from = (shift + done) % length,
               part = length - from < count - done ? length - from : count - done;

        good = cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)((uint16_t *)at + done), block + from, 2 * part,
                                     NULL) == CUDA_SUCCESS;
        done += part;
    }
    return good && cu->cuStreamSynchronize(NULL) == CUDA_SUCCESS;
}

bool gpu_data_fill(weft_cuda_world *w, uint64_t seed, bool integers)
{
    const weft_cuda_driver *cu = w->device->cu;
    const weft_plan_part *part = &w->parts[0];
    uint16_t *block = malloc(PATTERN * sizeof(*block));
    uint64_t x = seed | 1;
    bool good = block != NULL;

    for (size_t i = 0; i < PATTERN && good; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        table[i] = (int8_t)(x >> 33) % 3;
        weft_element_set(part->problem.dtype, block, i,
                         integers ? table[i] : (double)(x >> 40) * 0x1p-23 - 1);
    }
    for (uint32_t o = 0; o < part->operand_count && good; o++) {
        const weft_operand *operand = &part->operands[o];

        for (int r = 0; r < w->world && good && operand->role != WEFT_ROLE_NONE; r++) {
            void *base = weft_cuda_world_place(w, operand->role, r).base;
            size_t count = elements_of(w, operand, r);

            if (operand->role == WEFT_ROLE_D)
                good = cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)base, 0xff,
                                           count * weft_dtype_size(operand->dtype), NULL) == CUDA_SUCCESS;
            else
                good = upload(cu, base, count, block, PATTERN, shift_of(operand, r));
        }
    }
    free(block);
    return good && cu->cuStreamSynchronize(NULL) == CUDA_SUCCESS;
}

static const weft_operand *operand_of(const weft_cuda_world *w, weft_operand_role role)
{
    for (uint32_t o = 0; o < w->parts[0].operand_count; o++)
        if (w->parts[0].operands[o].role == role)
            return &w->parts[0].operands[o];
    return NULL;
}

/* The integer at (row, col) of a global matrix, wherever it lies. */
static int global_value(const weft_cuda_world *w, const weft_operand *operand, int64_t row, int64_t col)
{
    int rank = 0;

    if (operand->rows_parted) {
        rank = (int)weft_part_of(operand->rows, w->world, row);
        row -= weft_part(operand->rows, w->world, rank).begin;
    } else if (operand->cols_parted) {
        rank = (int)weft_part_of(operand->cols, w->world, col);
        col -= weft_part(operand->cols, w->world, rank).begin;
    }
    int64_t ld = weft_cuda_world_place(w, operand->role, rank).ld;
    size_t at = (size_t)(operand->transposed ? col * ld + row : row * ld + col);

    return table[(shift_of(operand, rank) + at) % PATTERN];
}

/* Of a gemm_ar, alone: tile t is rank t mod W's, and rank 0 adds up in its own what it sends of the ones that
 * follow it. */
static double tiles_value(const weft_cuda_world *w, int64_t row, int64_t col, double *magnitude)
{
    const weft_plan_part *part = &w->parts[0];
    const weft_operand *a = operand_of(w, WEFT_ROLE_A), *b = operand_of(w, WEFT_ROLE_B);
    const weft_region *tile = NULL;
    double sum = 0;

    for (uint32_t i = 0; i < part->task_count && !tile; i++)
        if (part->tasks[i].flags & WEFT_TASK_EPILOGUE)
            tile = weft_task_regions(part, &part->tasks[i]);
    if (!tile)
        return NAN;
    int64_t across = weft_divide_up(part->problem.n, tile->cols),
            number = row / tile->rows * across + col / tile->cols;
    if (number % w->world)
        return NAN;
    *magnitude = 0;
    for (int64_t t = number; t < number + w->world; t++)
        for (int64_t k = 0; k < weft_part(part->problem.k, w->world, 0).count; k++) {
            int product = global_value(w, a, t / across * tile->rows + row % tile->rows, k) *
                          global_value(w, b, k, t % across * tile->cols + col % tile->cols);

            sum += product;
            *magnitude += abs(product);
        }
    return sum;
}

/* See gpu_result. A rank alone that sends sums adds up what it sends instead of what its peers would: the
 * same place of every rank's block of its own product; where it fetches them, its own block as often. */
static double exact_value(const void *source, int rank, int64_t row, int64_t col, double *magnitude)
{
    const weft_cuda_world *w = source;
    const weft_problem *p = &w->parts[0].problem;
    const weft_operand *a = operand_of(w, WEFT_ROLE_A), *b = operand_of(w, WEFT_ROLE_B),
                       *d = operand_of(w, WEFT_ROLE_D);
    bool alone = w->running < w->world, ring = p->op == WEFT_OP_GEMM_AR && p->tuning.sums_stay,
         looped = (p->op == WEFT_OP_GEMM_RS || ring) && alone;
    int64_t depth = looped ? weft_part(p->k, w->world, 0).count : p->k;
    double sum = 0;

    if (alone && p->op == WEFT_OP_GEMM_AR && !ring)
        return tiles_value(w, row, col, magnitude);
    if (alone && ring && row >= weft_part(p->m, w->world, rank).count)
        return NAN;
    if (alone && p->op == WEFT_OP_GEMM_AS && col >= weft_part(p->n, w->world, rank).count)
        return NAN;
    row += d->rows_parted ? weft_part(d->rows, w->world, rank).begin : 0;
    col += d->cols_parted ? weft_part(d->cols, w->world, rank).begin : 0;
    *magnitude = 0;
    for (int block = 0; block < (looped ? w->world : 1); block++) {
        bool rows = ring || p->layout == WEFT_LAYOUT_SCATTER_ROWS,
             others = looped && (p->schedule != WEFT_SCHEDULE_UNFUSED || weft_problem_stores_sums(p));
        int64_t i = row + (others && rows ? weft_part(p->m, w->world, block).begin : 0);
        int64_t j = col + (others && !rows ? weft_part(p->n, w->world, block).begin : 0);

        for (int64_t k = 0; k < depth; k++) {
            int product = global_value(w, a, i, k) * global_value(w, b, k, j);

            sum += product;
            *magnitude += abs(product);
        }
    }
    return sum;
}

bool gpu_data_check(const weft_cuda_world *w, gpu_verdict *worst)
{
    const weft_cuda_driver *cu = w->device->cu;
    const weft_operand *d = operand_of(w, WEFT_ROLE_D);

    *worst = (gpu_verdict){0};
    for (int r = 0; r < w->running && worst->error < INFINITY; r++) {
        weft_cuda_place place = weft_cuda_world_place(w, WEFT_ROLE_D, r);
        size_t bytes = elements_of(w, d, r) * weft_dtype_size(d->dtype);
        char *image = malloc(bytes + 1);
        gpu_result result = {.problem = &w->parts[0].problem,
                             .world = w->world,
                             .rank = r,
                             .image = image,
                             .rows = weft_operand_rows(d, w->world, r),
                             .cols = weft_operand_cols(d, w->world, r),
                             .ld = place.ld,
                             .exact = exact_value,
                             .source = w};

        if (!image || cu->cuMemcpyDtoHAsync(image, (CUdeviceptr)(uintptr_t)place.base, bytes, NULL) ||
            cu->cuStreamSynchronize(NULL)) {
            free(image);
            return false;
        }
        gpu_verdict_add(worst, &result, SAMPLES / w->running, 12345 + (uint64_t)r);
        free(image);
    }
    return true;
}
