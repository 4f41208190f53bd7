#include "fake_tasks.h"

#include "core/dtype.h"
#include "run/cpu/reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double get(const weft_cuda_view *v, int64_t row, int64_t col)
{
    return weft_element_get((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs));
}

static void set(const weft_cuda_view *v, int64_t row, int64_t col, double value)
{
    weft_element_set((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs), value);
}

/* The copy engine stops the kernel unless the innermost coordinate falls on 16 bytes. */
static bool may_start(const weft_cuda_view *v, int row, int col)
{
    return (v->cs == 1 ? col : row) * (int)weft_dtype_size((weft_dtype)v->dtype) % 16 == 0;
}

double fake_through_map(const fake_map *map, weft_dtype dtype, uint64_t x, uint64_t y)
{
    uint64_t granule = 16 / weft_dtype_size(dtype);
    return x < map->inner / granule * granule && y < map->outer
               ? weft_element_get(dtype, map->base + y * map->pitch, x)
               : 0;
}

/* The factor of the block that element (i, j) of a tile and its k are in. */
static float block_scale(const weft_cuda_args *g, const weft_cuda_view *a, int i, int j, int k)
{
    const weft_cuda_view *b = a + 1;
    int64_t block = (a->col + k) / WEFT_CUDA_SCALE_BLOCK;

    return (g->a_scale ? g->a_scale[(a->row + i) * g->a_scale_row + block * g->a_scale_k] : 1) *
           (g->b_scale
                ? g->b_scale[block * g->b_scale_k + (b->col + j) / WEFT_CUDA_SCALE_BLOCK * g->b_scale_col]
                : 1);
}

/* The product as the loader sees A and B now. */
float *fake_task_multiply(const weft_cuda_args *g, bool hopper, const weft_cuda_task *task)
{
    weft_cuda_task own = *task;
    const weft_cuda_task *t = &own;
    const weft_cuda_view *a = &g->views[t->view0 + t->destinations], *b = a + 1;
    const fake_map *maps = g->maps;
    float *product = calloc((size_t)t->rows * (size_t)t->cols + 1, sizeof(*product));
    float *line = malloc((size_t)t->cols * sizeof(*line) + 4);
    if (g->exchanged) {
        own.a_map = task->b_map, own.a_m = task->b_n, own.a_k = task->b_k;
        own.b_map = task->a_map, own.b_n = task->a_m, own.b_k = task->a_k;
    }
    if (hopper && (!may_start(a, t->a_m, t->a_k) || !may_start(b, t->b_k, t->b_n)))
        product[0] = NAN;
    for (int k = 0; k < t->k; k++) {
        for (int j = 0; j < t->cols; j++) {
            uint64_t n = (uint64_t)(t->b_n + j), kb = (uint64_t)(t->b_k + k);
            line[j] = (float)(!hopper ? get(b, k, j)
                              : b->cs == 1
                                  ? fake_through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                     (weft_dtype)b->dtype, n, kb)
                                  : fake_through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                     (weft_dtype)b->dtype, kb, n));
        }
        for (int i = 0; i < t->rows; i++) {
            uint64_t m = (uint64_t)(t->a_m + i), ka = (uint64_t)(t->a_k + k);
            const fake_map *map = (const fake_map *)((const char *)maps + 128 * t->a_map);
            float x = (float)(!hopper      ? get(a, i, k)
                              : a->cs == 1 ? fake_through_map(map, (weft_dtype)a->dtype, ka, m)
                                           : fake_through_map(map, (weft_dtype)a->dtype, m, ka));
            for (int j = 0; j < t->cols; j++)
                product[(int64_t)i * t->cols + j] += x * line[j] * block_scale(g, a, i, j, k);
        }
    }
    free(line);
    return product;
}

double fake_activate(int32_t act, double x)
{
    switch (act) {
    case WEFT_ACT_RELU:
        return x < 0 ? 0 : x;
    case WEFT_ACT_GELU:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case WEFT_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static double finish(const weft_cuda_args *g, const weft_cuda_task *t, const weft_cuda_view *v, double x,
                     int i, int j)
{
    if (!(t->flags & WEFT_CUDA_EPILOGUE))
        return x;
    x *= g->alpha_at ? *g->alpha_at : g->alpha;
    if (g->row_scale)
        x *= g->row_scale[v->row + i];
    if (g->col_scale)
        x *= g->col_scale[v->col + j];
    if (t->c >= 0)
        x += g->beta * get(&v[t->c], i, j);
    if (t->bias >= 0)
        x += get(&v[t->bias], 0, j);
    return fake_activate(g->act, x);
}

static void store(const weft_cuda_args *g, bool hopper, const weft_cuda_task *t, const weft_cuda_view *v,
                  double x, int i, int j)
{
    for (int n = 0; n < t->destinations; n++) {
        if (hopper && t->flags & WEFT_CUDA_BULK) {
            const fake_map *map = (const fake_map *)((const char *)g->maps + 128 * v[n].map);
            uint64_t col = (uint64_t)(v[n].col + j), row = (uint64_t)(v[n].row + i);
            weft_dtype dtype = t->flags & WEFT_CUDA_D_F32 ? WEFT_F32 : (weft_dtype)v[n].dtype;
            if (!may_start(&v[n], v[n].row, v[n].col))
                x = NAN;
            if (col < map->inner && row < map->outer)
                weft_element_set(dtype, map->base + row * map->pitch, col, x);
        } else if (i < t->rows && j < t->cols) {
            set(&v[n], i, j, x);
        }
    }
}

/* What a sum is added to: through the boxes where there is a map. */
static double sum_before(const weft_cuda_args *g, const weft_cuda_view *acc, bool bulk, int i, int j)
{
    if (!bulk || acc->map < 0)
        return get(acc, i, j);
    if (!may_start(acc, acc->row, acc->col))
        return NAN;
    return fake_through_map((const fake_map *)((const char *)g->maps + 128 * acc->map),
                            (weft_dtype)acc->dtype, (uint64_t)(acc->col + j), (uint64_t)(acc->row + i));
}

void *fake_task_at(const weft_cuda_args *g, const void *at)
{
    return (char *)(uintptr_t)at + g->moved[(uintptr_t)at >> WEFT_CUDA_OPERAND_SHIFT];
}

/* The words of a row that go through the switch, as many as its kernel takes; the rest by itself. */
static void move_switched(const weft_cuda_args *g, weft_reduction reduction, const weft_cuda_task *t,
                          const weft_cuda_view *v)
{
    weft_dtype dtype = (weft_dtype)v->dtype;
    size_t size = weft_dtype_size(dtype);
    const weft_cuda_view *named = v + t->destinations + t->sources - 2;
    void *to[2 * WEFT_CUDA_PACKET_RANKS], *from[2 * WEFT_CUDA_PACKET_RANKS];
    int64_t head = t->flags & WEFT_CUDA_WIDE ? (int64_t)((16 - (uintptr_t)v->ptr % 16) % 16 / size) : t->cols;
    head = head < t->cols ? head : t->cols;
    for (int64_t at = 0; at < t->cols;) {
        bool whole = at >= head && t->cols - at >= (int64_t)(16 / size);
        int64_t count = whole ? (int64_t)(16 / size) : 1;
        int ranks = whole ? fake_gpu_switched((char *)named[0].ptr + at * (int64_t)size, to) : t->sources - 2;
        weft_view views[4 * WEFT_CUDA_PACKET_RANKS];
        if (whole && fake_gpu_switched((char *)named[1].ptr + at * (int64_t)size, from) != ranks)
            ranks = 0;
        if (ranks != t->destinations) {
            fprintf(stderr, "the fake switch has not all ranks behind %p\n", named[0].ptr);
            abort();
        }
        for (int i = 0; i < ranks; i++) {
            views[i] =
                (weft_view){whole ? to[i] : (char *)fake_task_at(g, v[i].ptr) + at * (int64_t)size, count};
            views[ranks + i] = (weft_view){
                whole ? from[i] : (char *)fake_task_at(g, v[ranks + i].ptr) + at * (int64_t)size, count};
        }
        weft_reduce_rows(dtype, reduction, 1, count, views + ranks, ranks, dtype, views, ranks);
        at += count;
    }
}

void fake_task_move(const weft_cuda_args *g, weft_reduction reduction, const weft_cuda_task *t)
{
    const weft_cuda_view *v = &g->views[t->view0];
    weft_view views[2 * WEFT_CUDA_PACKET_RANKS];
    if (t->kind == WEFT_CUDA_COPY) {
        if (t->rows > 0)
            memmove(fake_task_at(g, t->copy_to), fake_task_at(g, t->copy_from), (size_t)t->copy_bytes);
        return;
    }
    if (t->kind == WEFT_CUDA_SWITCHED) {
        move_switched(g, reduction, t, v);
        return;
    }
    for (int i = 0; i < t->destinations + t->sources; i++)
        views[i] = (weft_view){fake_task_at(g, v[i].ptr), t->cols};
    weft_reduce_rows((weft_dtype)v->dtype, reduction, 1, t->cols, views + t->destinations, t->sources,
                     (weft_dtype)v->dtype, views, t->destinations);
}

bool fake_task_bulk(bool hopper, const weft_cuda_task *t)
{
    return hopper && t->kind == WEFT_CUDA_GEMM && t->flags & WEFT_CUDA_BULK;
}

void fake_task_finish(const weft_cuda_args *g, bool hopper, const weft_cuda_task *t, const float *product)
{
    const weft_cuda_view *v = &g->views[t->view0];
    bool bulk = fake_task_bulk(hopper, t);
    /* the walker stores whole tiles and relies on the maps to cut them off */
    int rows = bulk ? g->tile_m : t->rows, cols = !bulk                        ? t->cols
                                                  : t->flags & WEFT_CUDA_D_F32 ? g->tile_n
                                                                               : (g->tile_n + 63) / 64 * 64;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            bool inside = i < t->rows && j < t->cols;
            double x = NAN;
            if (t->kind == WEFT_CUDA_COPY) {
                x = get(&v[1], i, j);
            } else if (t->kind == WEFT_CUDA_GEMM && inside) {
                x = product ? product[(int64_t)i * t->cols + j] : 0;
                if (t->acc >= 0)
                    x += sum_before(g, &v[t->acc], bulk, i, j);
                x = finish(g, t, v, x, i, j);
            } else if (t->kind == WEFT_CUDA_REDUCE) {
                x = 0;
                for (int s = 0; s < t->sources; s++)
                    x += get(&v[t->destinations + s], i, j);
                x = finish(g, t, v, x, i, j);
            }
            store(g, hopper, t, v, x, i, j);
        }
}
