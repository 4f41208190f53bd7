#include "fake_grouped.h"

#include "core/dtype.h"
#include "fake_gpu.h"
#include "gemm/epilogue.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

/* A and B as the tensor maps have them: what the kernel loads. */
static void check_maps(const weft_cuda_grouped_launch *l)
{
    const weft_cuda_grouped *g = &l->grouped;
    fake_map a, many, b;

    memcpy(&a, &l->few_map, sizeof(a));
    memcpy(&many, &l->many_map, sizeof(many));
    memcpy(&b, &l->b_map, sizeof(b));
    CHECK(a.base == g->a && many.base == g->a && b.base == g->b);
    CHECK_INT(a.inner, g->k);
    CHECK_INT(a.outer, g->rows);
    CHECK_INT(many.outer, g->rows);
    CHECK_INT(a.pitch, 2 * g->lda);
    CHECK_INT(a.box_outer, WEFT_CUDA_GROUPED_FEW);
    CHECK_INT(many.box_outer, WEFT_CUDA_GROUPED_MANY);
    CHECK_INT(b.inner, g->transb ? g->k : g->cols);
    CHECK_INT(b.outer, g->transb ? g->cols : g->k);
    CHECK_INT(b.pitch, g->ldb * (int64_t)weft_dtype_size((weft_dtype)g->b_dtype));
    CHECK_INT(b.box_inner, g->b_dtype == g->dtype ? 64 : 128);
    CHECK_INT(b.box_outer, g->transb ? 128 : 64);
}

static float sum_of(const weft_cuda_grouped *g, int e, int64_t row, int64_t col)
{
    float sum = 0;

    for (int64_t i = 0; i < g->k; i++) {
        int64_t b = e * g->stride_b + (g->transb ? col * g->ldb + i : i * g->ldb + col);

        sum += (float)weft_element_get((weft_dtype)g->dtype, g->a, (size_t)(row * g->lda + i)) *
               (float)weft_element_get((weft_dtype)g->b_dtype, g->b, (size_t)b);
    }
    return sum;
}

/* What the kernel does to bare sums, before the activation. */
static float bare(const weft_cuda_grouped *g, int e, int64_t row, int64_t col)
{
    float sum = sum_of(g, e, row, col);

    if (g->col_scale)
        return g->alpha * g->col_scale[e * g->cols + col] * sum;
    return g->gated ? g->alpha * sum : sum;
}

/* With scales and bias, before the activation. */
static float scaled(const weft_cuda_grouped *g, int e, int64_t row, int64_t col)
{
    float scale = g->row_scale ? g->alpha * g->row_scale[row] : g->alpha;
    int64_t at = e * g->cols + col;

    scale = g->col_scale ? scale * g->col_scale[at] : scale;
    scale *= sum_of(g, e, row, col);
    return g->bias ? scale + (float)weft_element_get((weft_dtype)g->d_dtype, g->bias, (size_t)at) : scale;
}

static void make_row(const weft_cuda_grouped *g, int e, int64_t row)
{
    int64_t width = g->gated ? 2 : 1;

    for (int64_t j = 0; j < g->cols / width; j++) {
        float x = g->bare ? bare(g, e, row, width * j) : scaled(g, e, row, width * j);

        if (!g->bare || g->gated)
            x = weft_act_apply((weft_act)g->act, x);
        if (g->gated)
            x *= g->bare ? bare(g, e, row, 2 * j + 1) : scaled(g, e, row, 2 * j + 1);
        weft_element_set((weft_dtype)g->d_dtype, g->d, (size_t)(row * g->ldd + j), x);
    }
}

/* Every step that the kernel would wait for has come, and rows of an expert lie in the order of steps. */
static bool has_arrived(const weft_cuda_grouped *g)
{
    const weft_cuda_arriving_rows *a = &g->arriving;
    bool right = true;

    for (int i = 0; i <= a->steps; i++)
        right &= a->ready[i * WEFT_CUDA_LINE_WORDS] == *a->runs * (uint64_t)a->posts;
    for (int e = 0; e < g->experts; e++)
        for (int64_t i = g->offset[e]; i < g->offset[e + 1]; i++)
            right &= a->step[i] < a->steps && (i == g->offset[e] || a->step[i - 1] <= a->step[i]);
    return right || *a->abort;
}

static void run(void *argument)
{
    weft_cuda_grouped_launch *l = argument;
    const weft_cuda_grouped *g = &l->grouped;
    bool arrived = !g->arriving.ready || has_arrived(g);

    CHECK_INT(g->counter[0], 0);
    CHECK_INT(g->counter[1], 0);
    CHECK(l->clusters >= 1);
    if (g->k)
        check_maps(l);
    CHECK(arrived);
    for (int e = 0; e < g->experts && arrived; e++) {
        int64_t first = g->start ? g->start[e] : g->offset[e], rows = g->offset[e + 1] - g->offset[e];

        for (int64_t i = first; first >= 0 && i < first + rows && i < g->rows; i++)
            make_row(g, e, i);
    }
    free(l);
}

bool fake_grouped(const weft_cuda_grouped_launch *launch, CUstream stream)
{
    weft_cuda_grouped_launch *copy = aligned_alloc(64, (sizeof(*copy) + 63) / 64 * 64);

    *copy = *launch;
    return fake_gpu_call(run, copy, stream);
}
