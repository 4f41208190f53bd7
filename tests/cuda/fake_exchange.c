#include "fake_exchange.h"

#include "core/dtype.h"
#include "core/part.h"
#include "fake_tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sums as marked words ------------------------------------------------------------------------------ */

enum { WIDTH_BYTES = WEFT_CUDA_EXCHANGE_WIDTH * 4 }; /* at most */

/* Where a row's columns are, and how many words WIDTH of them have. */
static uint32_t *exchange_words(const weft_cuda_exchange *x, char *inbox, int64_t parity_bytes, int dtype,
                                int64_t row, int64_t col, uint64_t epoch, int *count)
{
    int64_t size = (int64_t)weft_dtype_size((weft_dtype)dtype);

    *count = (int)(WEFT_CUDA_EXCHANGE_WIDTH * size / 4);
    return (uint32_t *)(void *)(inbox + (int64_t)(epoch & 1) * parity_bytes + (row * x->n + col) * size);
}

static void exchange_put(const weft_cuda_exchange *x, char *inbox, int64_t parity_bytes, int dtype,
                         int64_t row, int64_t col, const double *values, uint64_t epoch)
{
    int count;
    uint32_t *to = exchange_words(x, inbox, parity_bytes, dtype, row, col, epoch, &count),
             words[WIDTH_BYTES / 4];

    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
        weft_element_set((weft_dtype)dtype, words, (size_t)i, values[i]);
    for (int i = 0; i < count; i++) {
        if (__atomic_load_n(&to[i], __ATOMIC_ACQUIRE)) /* nobody read what is there */
            abort();
        __atomic_store_n(&to[i], words[i] == UINT32_MAX ? 0x80008000u : ~words[i],
                         __ATOMIC_RELEASE); /* partner: exchange_get */
    }
}

/* False when they are not there. Leaves zeros behind where it `empties`. */
static bool exchange_get(const weft_cuda_exchange *x, char *inbox, int64_t parity_bytes, int dtype,
                         int64_t row, int64_t col, double *values, uint64_t epoch, bool empties)
{
    int count;
    uint32_t *from = exchange_words(x, inbox, parity_bytes, dtype, row, col, epoch, &count),
             words[WIDTH_BYTES / 4];

    for (int i = 0; i < count; i++) {
        words[i] = ~__atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
        if (words[i] == UINT32_MAX)
            return false;
    }
    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
        values[i] = weft_element_get((weft_dtype)dtype, words, (size_t)i);
    for (int i = 0; i < count && empties; i++)
        __atomic_store_n(&from[i], 0, __ATOMIC_RELEASE);
    return true;
}

static void exchange_send(const weft_cuda_exchange *x, int64_t row, int64_t col, const double *values)
{
    uint64_t epoch = x->control->run + 1;

    for (int r = 0; r < x->world; r++) {
        weft_span rows = x->scattered ? weft_part(x->m, x->world, r) : (weft_span){0, x->m};

        if (row >= rows.begin && row < rows.begin + rows.count)
            exchange_put(x, x->to[r], x->inbox_bytes, x->wire, row - rows.begin, col, values, epoch);
    }
}

void fake_exchange_send_all(const weft_cuda_exchange *x)
{
    for (int64_t row = 0; row < x->m; row++)
        for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double values[WEFT_CUDA_EXCHANGE_WIDTH];

            for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                values[i] =
                    weft_element_get((weft_dtype)x->wire, x->sums, (size_t)(row * x->sums_ld + col + i));
            exchange_send(x, row, col, values);
        }
}

static void exchange_store(const weft_cuda_exchange *x, int64_t row, int64_t col, const double *values)
{
    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
        weft_element_set((weft_dtype)x->dtype, x->d, (size_t)(row * x->d_ld + col + i), values[i]);
}

static double exchange_finish(const weft_cuda_exchange *x, double sum, int64_t row, int64_t col)
{
    double value = (double)x->alpha * sum;

    if (x->c)
        value +=
            (double)x->beta * weft_element_get((weft_dtype)x->dtype, x->c, (size_t)(row * x->c_ld + col));
    if (x->bias)
        value += weft_element_get((weft_dtype)x->dtype, x->bias, (size_t)col);
    return x->changes ? fake_activate(x->act, value) : sum;
}

int fake_exchange_await(const weft_cuda_exchange *x)
{
    double values[WEFT_CUDA_EXCHANGE_WIDTH];

    for (int r = 0; r < x->world; r++)
        for (int64_t row = 0; row < x->rows; row++)
            for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH)
                if (!exchange_get(x, x->inbox + r * x->row_bytes, x->inbox_bytes, x->wire, row, col, values,
                                  x->control->run + 1, false))
                    return r;
    return -1;
}

void fake_exchange_add_up(const weft_cuda_exchange *x)
{
    uint64_t epoch = x->control->run + 1;

    for (int64_t row = x->row0; row < x->row0 + x->rows; row++)
        for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double sum[WEFT_CUDA_EXCHANGE_WIDTH] = {0}, values[WEFT_CUDA_EXCHANGE_WIDTH];

            for (int r = 0; r < x->world; r++) {
                exchange_get(x, x->inbox + r * x->row_bytes, x->inbox_bytes, x->wire, row - x->row0, col,
                             values, epoch, true);
                for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                    sum[i] = (float)(sum[i] + values[i]);
            }
            for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                sum[i] = exchange_finish(x, sum[i], row - x->d_from_row, col + i);
            for (int r = 0; r < x->world && x->returns; r++)
                if (r != x->rank)
                    exchange_put(x, x->results[r], x->results_bytes, x->dtype, row, col, sum, epoch);
            exchange_store(x, row - x->d_from_row, col, sum);
        }
}

/* The rows that others finish: stored, or only looked at. The rank whose are missing, or -1. */
static int take_rows(const weft_cuda_exchange *x, bool stores)
{
    uint64_t epoch = x->control->run + 1;

    for (int64_t row = 0; row < x->m && x->returns; row++)
        for (int64_t col = 0; col < x->n && (row < x->row0 || row >= x->row0 + x->rows);
             col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double values[WEFT_CUDA_EXCHANGE_WIDTH];

            if (!exchange_get(x, x->results[x->rank], x->results_bytes, x->dtype, row, col, values, epoch,
                              stores))
                return (int)weft_part_of(x->m, x->world, row);
            if (stores)
                exchange_store(x, row, col, values);
        }
    return -1;
}

int fake_exchange_await_results(const weft_cuda_exchange *x)
{
    return take_rows(x, false);
}

void fake_exchange_take(const weft_cuda_exchange *x)
{
    take_rows(x, true);
}

/* ---- products by themselves ---------------------------------------------------------------------------- */

/* `lines` of an operand, all of k side by side, as the copy engine brings it: nothing beyond its end. */
static float *splitk_lines(const fake_map *map, bool along_k, int lines, int64_t k)
{
    float *all = malloc((size_t)(lines * k) * sizeof(*all) + 1);

    for (int64_t i = 0; all && i < lines * k; i++)
        all[i] = (float)fake_through_map(map, map->dtype, (uint64_t)(along_k ? i % k : i / k),
                                         (uint64_t)(along_k ? i / k : i % k));
    return all;
}

/* The sum over all slices of k, in their order. */
static float splitk_sum(const weft_cuda_splitk *p, const float *x, const float *y)
{
    int parts = p->slices * p->groups;
    float sum = 0;

    for (int part = 0; part < parts; part++) {
        int64_t begin = (int64_t)p->steps * part / parts * WEFT_CUDA_SPLITK_STEP,
                end = (int64_t)p->steps * (part + 1) / parts * WEFT_CUDA_SPLITK_STEP;
        float slice = 0;

        for (int64_t k = begin; k < end; k++)
            slice += x[k] * y[k];
        sum += slice;
    }
    return sum;
}

static double splitk_finish(const weft_cuda_splitk *p, float sum, int64_t row, int64_t col)
{
    double x = (double)p->alpha * (double)sum;

    if (p->c)
        x += (double)p->beta * weft_element_get((weft_dtype)p->dtype, p->c, (size_t)(row * p->c_ld + col));
    if (p->bias)
        x += weft_element_get((weft_dtype)p->dtype, p->bias, (size_t)col);
    return fake_activate(p->act, x);
}

enum { SWIZZLED_LINES = 8 }; /* of shared memory, after which the copy engine's pattern repeats */

/* Tile by tile, as the CTAs of the grid find theirs; one that is left out keeps what was in D. */
void fake_splitk_run(void *argument)
{
    fake_splitk *f = argument;
    const weft_cuda_splitk *p = &f->args;
    int64_t depth = (int64_t)p->steps * WEFT_CUDA_SPLITK_STEP;
    float *x = splitk_lines(&f->tokens, true, p->m, depth),
          *y = splitk_lines(&f->weights, f->form, p->n, depth);
    int sets = (int)(f->ctas / f->cluster) / p->groups, rows = p->rows * p->sharers;
    double sent[WEFT_CUDA_EXCHANGE_WIDTH];
    bool sound =
        x && y && f->cluster == (uint32_t)(p->slices * p->sharers) && f->ctas % f->cluster == 0 &&
        p->steps >= p->slices * p->groups && f->tokens.box_inner == WEFT_CUDA_SPLITK_STEP &&
        f->tokens.box_outer == (uint32_t)p->rows && rows <= p->width &&
        p->width >= WEFT_CUDA_SPLITK_WIDTH_LEAST(f->tile_tokens) && p->width <= f->tile_tokens &&
        (f->tile_tokens - p->width) % WEFT_CUDA_SPLITK_WIDTHS == 0 && p->stages > 1 &&
        p->stage_bytes == WEFT_CUDA_SPLITK_STAGE_BYTES(p->width, f->tile_cols) &&
        (p->sharers == 1 || p->rows % SWIZZLED_LINES == 0) && f->weights.box_inner == WEFT_CUDA_SPLITK_STEP &&
        f->weights.box_outer == WEFT_CUDA_SPLITK_STEP &&
        (!f->sent ||
         (p->slices > 1 && !p->own && p->sent && p->eights * p->slices * WEFT_CUDA_SPLITK_EIGHT >= rows)) &&
        (!p->own || (p->slices * p->groups == 1 && (f->sends || (p->wide && !p->c)) &&
                     p->n % WEFT_CUDA_EXCHANGE_WIDTH == 0 && p->dtype != WEFT_F32));

    for (int tile = 0; sound && tile < sets * p->sharers; tile++) {
        int set = tile / p->sharers, row0 = set % p->m_tiles * rows,
            col0 = (set / p->m_tiles * p->sharers + tile % p->sharers) * f->tile_cols;

        for (int row = row0; row < row0 + rows && row < p->m; row++)
            for (int col = col0; col < col0 + f->tile_cols && col < p->n; col++) {
                float sum = splitk_sum(p, x + row * depth, y + col * depth);

                sent[col % WEFT_CUDA_EXCHANGE_WIDTH] = (double)sum;
                if (f->sends && col % WEFT_CUDA_EXCHANGE_WIDTH == WEFT_CUDA_EXCHANGE_WIDTH - 1)
                    exchange_send(&f->exchange, row, col - WEFT_CUDA_EXCHANGE_WIDTH + 1, sent);
                if (f->sends)
                    continue;
                weft_element_set((weft_dtype)p->dtype, p->d, (size_t)(row * p->d_ld + col),
                                 splitk_finish(p, sum, row, col));
            }
        /* the memory of groups is there, and the counts are zero between runs */
        for (int i = 0; p->groups > 1 && i < p->slices; i++)
            if (p->arrived[tile * p->slices + i] != 0)
                weft_element_set((weft_dtype)p->dtype, p->d, 0, NAN);
        if (p->groups > 1)
            memset(p->sums + (int64_t)tile * p->groups * f->tile_tokens * f->tile_cols, 0xff,
                   (size_t)(p->groups * f->tile_tokens * f->tile_cols) * sizeof(float));
    }
    free(x);
    free(y);
    free(f);
}
