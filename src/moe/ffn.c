/*
 * The feed-forward expert: down(silu(x gate) * (x up)) on the GEMM engine.
 *
 * Weights are packed once. A call takes many rows of one expert, so each weight is read from memory once for
 * all of them: the cost of few rows is that reading, and of many rows the arithmetic. The hidden activations
 * stay fp32 and are rounded to the engine's type when it packs them. Rows are gathered side by side first,
 * which is one copy of a row against 6 * inter operations on each of its elements.
 */
#include "moe/ffn.h"

#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/product.h"
#include "moe/moe.h"

enum {
    ROWS_MOST = 512,
    /* Of these the engine reaches nearly its full rate: reading the weights then takes a tenth of the time.
     */
    ROWS_WORTH_A_CALL = 128,
};

struct weft_moe_ffn {
    void *other; /* of a backend: there is nothing else then, but what frees it */
    void (*release)(void *other);
    weft_moe *moe;
    const weft_binding *bind;
    int64_t inter;
    weft_packed **gate, **up, **down; /* per local expert */
    char *weights;
    float *scales;          /* per local expert: 2 * inter of gate and up, hidden of down; NULL are 1 */
    char *rows, *results;   /* ROWS_MOST x hidden */
    float *gated, *up_rows; /* ROWS_MOST x inter */
    void *workspace;
};

static size_t rounded(size_t bytes)
{
    return weft_round_up_bytes(bytes, WEFT_GEMM_ALIGNMENT);
}

static weft_packed *pack(const weft_moe_ffn *ffn, const void *weights, weft_dtype dtype, int64_t k, int64_t n,
                         char **memory)
{
    weft_packed *packed = weft_packed_begin(ffn->bind, k, n, *memory);

    weft_packed_fill(ffn->bind, packed, weights, dtype, n, 1, 0, k, 0, n);
    *memory += rounded(weft_packed_bytes(ffn->bind, k, n));
    return packed;
}

static bool has_scales(const weft_moe_weights *w)
{
    return w->gate_scale || w->up_scale || w->down_scale;
}

/* Factors of a matrix's columns; returns where the next ones go. */
static float *keep_scale(float *to, const float *const *list, int e, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = list && list[e] ? list[e][i] : 1;
    return to + count;
}

static const float *scales_of(const weft_moe_ffn *ffn, int local, int64_t at)
{
    return ffn->scales ? ffn->scales + local * (2 * ffn->inter + ffn->moe->config.hidden) + at : NULL;
}

static bool allocate(weft_moe_ffn *ffn, bool scales)
{
    int64_t hidden = ffn->moe->config.hidden, inter = ffn->inter;
    size_t experts = (size_t)ffn->moe->experts_here, size = weft_dtype_size(ffn->moe->config.dtype);
    size_t wide = rounded(weft_packed_bytes(ffn->bind, hidden, inter));
    size_t tall = rounded(weft_packed_bytes(ffn->bind, inter, hidden));
    size_t first = weft_gemm_workspace_bytes(ffn->bind, ROWS_MOST, inter, hidden, true);
    size_t second = weft_gemm_workspace_bytes(ffn->bind, ROWS_MOST, hidden, inter, true);
    size_t row = (size_t)hidden * size, mid = (size_t)inter * sizeof(float);

    ffn->gate = calloc(3 * experts + 1, sizeof(*ffn->gate));
    ffn->weights = aligned_alloc(WEFT_GEMM_ALIGNMENT, experts * (2 * wide + tall) + WEFT_GEMM_ALIGNMENT);
    ffn->rows = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(ROWS_MOST * row));
    ffn->results = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(ROWS_MOST * row));
    ffn->gated = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(ROWS_MOST * mid));
    ffn->up_rows = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(ROWS_MOST * mid));
    ffn->workspace = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(weft_max_bytes(first, second)));
    if (scales)
        ffn->scales = malloc(experts * (size_t)(2 * inter + hidden) * sizeof(float) + 1);
    return ffn->gate && ffn->weights && ffn->rows && ffn->results && ffn->gated && ffn->up_rows &&
           ffn->workspace && (ffn->scales || !scales);
}

weft_status weft_moe_ffn_open(weft_moe *moe, const weft_moe_weights *w, weft_moe_ffn **result)
{
    int64_t hidden = moe->config.hidden, inter = w->inter;
    weft_error_text *error = &moe->group->error;
    int experts = moe->experts_here;
    const weft_core *core;
    weft_status status = weft_core_current(&core, error);
    weft_moe_ffn *ffn;
    char *memory;
    float *scales;

    if (status)
        return status;
    if (moe->row_bytes != moe->result_bytes)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "moe: tokens are dispatched as %lld bytes; the feed-forward expert reads %lld elements of %s",
            (long long)moe->row_bytes, (long long)moe->config.hidden, weft_dtype_name(moe->config.dtype));
    ffn = calloc(1, sizeof(*ffn));
    if (ffn)
        *ffn = (weft_moe_ffn){
            .moe = moe, .inter = inter, .bind = weft_core_binding(core, moe->config.dtype, false)};
    if (!ffn || !allocate(ffn, has_scales(w))) {
        weft_moe_ffn_close(ffn);
        return weft_error_set(error, WEFT_ERR_MEMORY,
                              "moe: no memory for the weights of %d experts of %lld x %lld", experts,
                              (long long)moe->config.hidden, (long long)inter);
    }
    ffn->up = ffn->gate + experts;
    ffn->down = ffn->up + experts;
    memory = ffn->weights;
    scales = ffn->scales;
    for (int e = 0; e < experts; e++) {
        ffn->gate[e] = pack(ffn, w->gate[e], w->dtype, hidden, inter, &memory);
        ffn->up[e] = pack(ffn, w->up[e], w->dtype, hidden, inter, &memory);
        ffn->down[e] = pack(ffn, w->down[e], w->dtype, inter, hidden, &memory);
        if (scales) {
            scales = keep_scale(scales, w->gate_scale, e, inter);
            scales = keep_scale(scales, w->up_scale, e, inter);
            scales = keep_scale(scales, w->down_scale, e, hidden);
        }
    }
    *result = ffn;
    return WEFT_OK;
}

void weft_moe_ffn_close(weft_moe_ffn *ffn)
{
    if (!ffn)
        return;
    if (ffn->other)
        ffn->release(ffn->other);
    free(ffn->gate);
    free(ffn->weights);
    free(ffn->scales);
    free(ffn->rows);
    free(ffn->results);
    free(ffn->gated);
    free(ffn->up_rows);
    free(ffn->workspace);
    free(ffn);
}

/* One product, by the threads of the layer. Without memory for them the caller's own suffices. */
static void run_product(weft_moe_ffn *ffn, const weft_gemm_tile *tile)
{
    weft_product product = {.tile = *tile, .batch = 1, .threads = ffn->moe->config.threads};
    weft_error_text error;

    if (product.threads == 1 || weft_product_run(&product, &error) != WEFT_OK)
        weft_gemm_run_tile(tile, ffn->workspace);
}

typedef struct ffn_rows {
    weft_moe_ffn *ffn;
    const void *const *in;
    void *const *out;
} ffn_rows;

static void gather_rows(void *context, int64_t begin, int64_t end)
{
    const ffn_rows *r = context;
    int64_t bytes = r->ffn->moe->result_bytes;

    for (int64_t i = begin; i < end; i++)
        memcpy(r->ffn->rows + i * bytes, r->in[i], (size_t)bytes);
}

static void scatter_rows(void *context, int64_t begin, int64_t end)
{
    const ffn_rows *r = context;
    int64_t bytes = r->ffn->moe->result_bytes;

    for (int64_t i = begin; i < end; i++)
        memcpy(r->out[i], r->ffn->results + i * bytes, (size_t)bytes);
}

static void gate_rows(void *context, int64_t begin, int64_t end)
{
    weft_moe_ffn *ffn = context;

    for (int64_t i = begin * ffn->inter; i < end * ffn->inter; i++)
        ffn->gated[i] *= ffn->up_rows[i];
}

/* gated = silu(rows gate) * (rows up) */
static void project_up(weft_moe_ffn *ffn, int local, int64_t rows)
{
    weft_gemm_tile tile = weft_gemm_tile_init(ffn->bind, ffn->moe->config.dtype);

    tile.m = rows;
    tile.n = ffn->inter;
    tile.k = ffn->moe->config.hidden;
    tile.a = ffn->rows;
    tile.a_rs = tile.k;
    tile.a_cs = 1;
    tile.d_dtype = WEFT_F32;
    tile.d_ld[0] = ffn->inter;
    tile.packed_b = ffn->gate[local];
    tile.col_scale = scales_of(ffn, local, 0);
    tile.d[0] = ffn->gated;
    tile.act = WEFT_ACT_SILU;
    run_product(ffn, &tile);
    tile.packed_b = ffn->up[local];
    tile.col_scale = scales_of(ffn, local, ffn->inter);
    tile.d[0] = ffn->up_rows;
    tile.act = WEFT_ACT_NONE;
    run_product(ffn, &tile);
    weft_moe_share(ffn->moe, 0, rows, ffn->inter * (int64_t)sizeof(float), gate_rows, ffn);
}

/* results = gated down, written `stride` elements apart */
static void project_down(weft_moe_ffn *ffn, int local, int64_t rows, void *results, int64_t stride)
{
    weft_gemm_tile tile = weft_gemm_tile_init(ffn->bind, ffn->moe->config.dtype);

    tile.m = rows;
    tile.n = ffn->moe->config.hidden;
    tile.k = ffn->inter;
    tile.a = ffn->gated;
    tile.a_rs = tile.k;
    tile.a_cs = 1;
    tile.a_dtype = WEFT_F32;
    tile.packed_b = ffn->down[local];
    tile.col_scale = scales_of(ffn, local, 2 * ffn->inter);
    tile.d[0] = results;
    tile.d_ld[0] = stride;
    run_product(ffn, &tile);
}

/* The distance between result rows if it is the same for all and in order, else 0. */
static int64_t even_stride(void *const *out, int64_t rows)
{
    ptrdiff_t step = rows > 1 ? (char *)out[1] - (char *)out[0] : 0;

    for (int64_t i = 2; i < rows; i++)
        if ((char *)out[i] - (char *)out[i - 1] != step)
            return 0;
    return step > 0 ? (int64_t)step : 0;
}

static void run_piece(weft_moe_ffn *ffn, int local, int64_t rows, const void *const *in, void *const *out)
{
    int64_t hidden = ffn->moe->config.hidden, bytes = ffn->moe->result_bytes;
    int64_t size = (int64_t)weft_dtype_size(ffn->moe->config.dtype), stride = even_stride(out, rows);
    ffn_rows copies = {ffn, in, out};

    weft_moe_share(ffn->moe, 0, rows, bytes, gather_rows, &copies);
    project_up(ffn, local, rows);
    if (stride >= bytes && stride % size == 0) {
        project_down(ffn, local, rows, out[0], stride / size);
        return;
    }
    project_down(ffn, local, rows, ffn->results, hidden);
    weft_moe_share(ffn->moe, 0, rows, bytes, scatter_rows, &copies);
}

/* Many rows are cut evenly: a row's bits are the same in every piece that is not very small (see gemm.h). */
static void ffn_block(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    weft_moe_ffn *ffn = context;
    int64_t pieces = weft_divide_up(rows, ROWS_MOST);

    for (int64_t p = 0; p < pieces; p++) {
        int64_t begin = rows * p / pieces, end = rows * (p + 1) / pieces;

        run_piece(ffn, ffn->moe->local_index[expert], end - begin, in + begin, out + begin);
    }
}

weft_moe_expert weft_moe_ffn_callbacks(weft_moe_ffn *ffn)
{
    return (weft_moe_expert){.size = sizeof(weft_moe_expert),
                             .context = ffn,
                             .block = ffn_block,
                             .expert_rows = ROWS_WORTH_A_CALL};
}

weft_status weft_moe_ffn_wrap(void *other, void (*release)(void *other), weft_moe_ffn **ffn)
{
    weft_moe_ffn *made = calloc(1, sizeof(*made));

    if (!made)
        return weft_error_set(weft_error_thread(), WEFT_ERR_MEMORY, "moe: no memory for an expert");
    made->other = other;
    made->release = release;
    *ffn = made;
    return WEFT_OK;
}

const char *weft_moe_ffn_fault(const weft_moe *moe, const weft_moe_expert *expert)
{
    const weft_moe_ffn *ffn = expert->block == ffn_block ? expert->context : NULL;
    const weft_moe *its = ffn ? ffn->moe : moe;

    if (ffn && ffn->other)
        return "the feed-forward expert was made for a layer of another group";
    if (its->config.dtype != moe->config.dtype || its->config.hidden != moe->config.hidden ||
        its->row_bytes != moe->row_bytes || its->experts_here != moe->experts_here ||
        memcmp(its->local, moe->local, (size_t)moe->experts_here * sizeof(*moe->local)) != 0)
        return "the feed-forward expert was made for a layer of other experts, sizes or types";
    return NULL;
}

void *weft_moe_ffn_wrapped(const weft_moe_expert *expert)
{
    const weft_moe_ffn *ffn = expert->block == ffn_block ? expert->context : NULL;

    return ffn ? ffn->other : NULL;
}
