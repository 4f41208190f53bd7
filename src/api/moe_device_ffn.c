/*
 * The feed-forward expert on GPUs: between dispatch and combine two grouped products of all local experts,
 * gate and up with the gated activation, then down. How many rows each expert has is read on the GPU, so that
 * a round needs nothing from the host and can be captured.
 *
 * Weights are copied when the expert is made, gate and up woven into one matrix; factors of their columns
 * stand beside them. Those that are stored as fp8 stay so, turned to n x k, as the products read them; others
 * become of the layer's type. Rows lie together by expert; results take the place of the rows, which nobody
 * reads after the first product.
 */
#include "api/grouped.h"
#include "api/hold.h"
#include "api/moe_device.h"
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/convert.h"
#include "moe/ffn.h"
#include "run/backend.h"
#include "run/experts.h"

#include <stdlib.h>

typedef struct device_ffn {
    weft_group *group;
    weft_moe *moe;
    weft_dtype dtype;                 /* of the weights: the layer's, or fp8, then n x k */
    int64_t inter, rows;              /* the most that experts here may get in a round, together */
    void *gate_up, *down;             /* of all local experts */
    void *gate_up_scale, *down_scale; /* float32, of their columns; NULL: 1 */
    void *packed, *middle;            /* rows x hidden, rows x inter */
} device_ffn;

static const weft_device_moe_ops *ops_of(const weft_group *group)
{
    return weft_backend_of(group)->moe;
}

static void free_there(void *given)
{
    device_ffn *ffn = given;
    weft_group *group = ffn->group;

    ops_of(group)->discard(group, ffn->gate_up);
    ops_of(group)->discard(group, ffn->down);
    ops_of(group)->discard(group, ffn->gate_up_scale);
    ops_of(group)->discard(group, ffn->down_scale);
    ops_of(group)->discard(group, ffn->packed);
    ops_of(group)->discard(group, ffn->middle);
    free(ffn);
    weft_hold_drop(group);
}

/* Whether the GPU has such products at all, by one of no rows: not to be found out in the midst of a round.
 */
static weft_status check_products(const weft_moe *moe, int64_t inter)
{
    int64_t none = 0;
    weft_grouped_args args;

    weft_grouped_args_init(&args, moe->config.dtype, moe->experts_here, 0, inter, moe->config.hidden);
    args.offset = &none;
    return weft_grouped_gemm(moe->group, &args);
}

static weft_status check(const weft_moe *moe, int64_t inter)
{
    weft_error_text *error = &moe->group->error;

    if (moe->row_bytes != moe->result_bytes)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "moe: tokens are dispatched as %lld bytes; the feed-forward expert reads %lld elements of %s",
            (long long)moe->row_bytes, (long long)moe->config.hidden, weft_dtype_name(moe->config.dtype));
    if ((moe->config.dtype != WEFT_F16 && moe->config.dtype != WEFT_BF16) || moe->config.hidden % 8 ||
        inter % 8)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "moe: on GPUs the feed-forward expert is of float16 or bfloat16, and hidden and "
            "inter are multiples of 8; this one is of %s, %lld and %lld",
            weft_dtype_name(moe->config.dtype), (long long)moe->config.hidden, (long long)inter);
    return check_products(moe, inter);
}

/* Bytes of an expert's gate and up together, or of its down: a k x n matrix. As fp8 its lines, of k, begin on
 * 16-byte boundaries. */
static int64_t matrix_bytes(const device_ffn *ffn, int64_t k, int64_t n)
{
    return weft_dtype_is_fp8(ffn->dtype) ? n * weft_round_up(k, 16) : k * n * 2;
}

static int64_t gate_up_bytes(const device_ffn *ffn)
{
    return matrix_bytes(ffn, ffn->moe->config.hidden, 2 * ffn->inter);
}

static int64_t down_bytes(const device_ffn *ffn)
{
    return matrix_bytes(ffn, ffn->inter, ffn->moe->config.hidden);
}

static weft_status allocate(device_ffn *ffn, bool scales)
{
    const weft_moe *moe = ffn->moe;
    const weft_device_moe_ops *ops = ops_of(ffn->group);
    size_t experts = (size_t)moe->experts_here;
    weft_status status = ops->memory(ffn->group, experts * (size_t)gate_up_bytes(ffn), &ffn->gate_up);

    if (!status)
        status = ops->memory(ffn->group, experts * (size_t)down_bytes(ffn), &ffn->down);
    if (!status && scales)
        status =
            ops->memory(ffn->group, 2 * experts * (size_t)ffn->inter * sizeof(float), &ffn->gate_up_scale);
    if (!status && scales)
        status =
            ops->memory(ffn->group, experts * (size_t)moe->config.hidden * sizeof(float), &ffn->down_scale);
    if (!status)
        status = ops->memory(ffn->group, (size_t)(ffn->rows * moe->config.hidden) * 2, &ffn->packed);
    if (!status)
        status = ops->memory(ffn->group, (size_t)(ffn->rows * ffn->inter) * 2, &ffn->middle);
    return status;
}

/* Room on the host for a matrix as it is stored, of 4 bytes an element at most, and four as they are
 * multiplied: also for all three of an expert as fp8, whose lines are at most doubled.
 */
enum { HOST_BYTES = 4 + 4 * 2 };

/* One matrix to `to` on the host, in the layer's type; by way of `stored`, where there is room for it. */
static weft_status fetch(const device_ffn *ffn, weft_dtype dtype, const void *matrix, char *stored, char *to)
{
    int64_t count = ffn->moe->config.hidden * ffn->inter;
    weft_status status =
        weft_backend_of(ffn->group)->copy(ffn->group, stored, matrix, (size_t)count * weft_dtype_size(dtype));

    if (!status)
        weft_convert_row(ffn->moe->config.dtype, to, dtype, stored, count);
    return status;
}

/* One k x n matrix of bytes to n x k on the host, its lines `pitch` apart; by way of `stored`. */
static weft_status fetch_turned(const device_ffn *ffn, const void *matrix, int64_t k, int64_t n, char *stored,
                                char *to, int64_t pitch)
{
    enum { BLOCK = 64 }; /* lines of the cache that both sides keep */
    weft_status status = weft_backend_of(ffn->group)->copy(ffn->group, stored, matrix, (size_t)(k * n));

    for (int64_t j0 = 0; j0 < n && !status; j0 += BLOCK)
        for (int64_t i0 = 0; i0 < k; i0 += BLOCK)
            for (int64_t j = j0; j < n && j < j0 + BLOCK; j++)
                for (int64_t i = i0; i < k && i < i0 + BLOCK; i++)
                    to[j * pitch + i] = stored[i * n + j];
    return status;
}

/* The same as load_expert of weights that stay fp8. */
static weft_status load_stored(const device_ffn *ffn, int e, const weft_moe_weights *w, char *host)
{
    const weft_backend *backend = weft_backend_of(ffn->group);
    int64_t hidden = ffn->moe->config.hidden, inter = ffn->inter, line = weft_round_up(hidden, 16);
    char *stored = host + gate_up_bytes(ffn) + down_bytes(ffn), *down = host + gate_up_bytes(ffn);
    weft_status status = fetch_turned(ffn, w->gate[e], hidden, inter, stored, host, 2 * line);

    if (!status)
        status = fetch_turned(ffn, w->up[e], hidden, inter, stored, host + line, 2 * line);
    if (!status)
        status = fetch_turned(ffn, w->down[e], inter, hidden, stored, down, weft_round_up(inter, 16));
    if (!status)
        status = backend->copy(ffn->group, (char *)ffn->gate_up + e * gate_up_bytes(ffn), host,
                               (size_t)gate_up_bytes(ffn));
    if (!status)
        status =
            backend->copy(ffn->group, (char *)ffn->down + e * down_bytes(ffn), down, (size_t)down_bytes(ffn));
    return status;
}

/* The weights of one expert. They are woven on the host: once for the life of a layer. */
static weft_status load_expert(const device_ffn *ffn, int e, const weft_moe_weights *w, char *host)
{
    const weft_backend *backend = weft_backend_of(ffn->group);
    int64_t hidden = ffn->moe->config.hidden, bytes = hidden * ffn->inter * 2;
    char *stored = host + 4 * bytes;
    weft_status status = fetch(ffn, w->dtype, w->gate[e], stored, host);

    if (!status)
        status = fetch(ffn, w->dtype, w->up[e], stored, host + bytes);
    if (!status)
        status = weft_gate_up(ffn->moe->config.dtype, 0, hidden, ffn->inter, host, 0, host + bytes, 0,
                              host + 2 * bytes, 0);
    if (!status)
        status = backend->copy(ffn->group, (char *)ffn->gate_up + e * 2 * bytes, host + 2 * bytes,
                               (size_t)(2 * bytes));
    if (!status)
        status = fetch(ffn, w->dtype, w->down[e], stored, host);
    if (!status)
        status = backend->copy(ffn->group, (char *)ffn->down + e * bytes, host, (size_t)bytes);
    return status;
}

static bool has_scales(const weft_moe_weights *w)
{
    return w->gate_scale || w->up_scale || w->down_scale;
}

/* The factors of a matrix's columns to the host. */
static weft_status fetch_scale(const device_ffn *ffn, const float *const *list, int e, int64_t count,
                               float *to)
{
    if (list && list[e])
        return weft_backend_of(ffn->group)->copy(ffn->group, to, list[e], (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        to[i] = 1;
    return WEFT_OK;
}

/* Those of one expert; `host` has room for 4 inter + hidden. */
static weft_status load_scales(const device_ffn *ffn, int e, const weft_moe_weights *w, float *host)
{
    const weft_backend *backend = weft_backend_of(ffn->group);
    int64_t hidden = ffn->moe->config.hidden, inter = ffn->inter;
    float *both = host + 2 * inter, *down = both + 2 * inter;
    weft_status status = fetch_scale(ffn, w->gate_scale, e, inter, host);

    if (!status)
        status = fetch_scale(ffn, w->up_scale, e, inter, host + inter);
    if (!status)
        status = fetch_scale(ffn, w->down_scale, e, hidden, down);
    if (!status)
        status = weft_gate_up(WEFT_F32, 0, 1, inter, host, 0, host + inter, 0, both, 0);
    if (!status)
        status = backend->copy(ffn->group, (float *)ffn->gate_up_scale + e * 2 * inter, both,
                               (size_t)(2 * inter) * sizeof(float));
    if (!status)
        status = backend->copy(ffn->group, (float *)ffn->down_scale + e * hidden, down,
                               (size_t)hidden * sizeof(float));
    return status;
}

weft_status weft_moe_device_ffn_create(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **result)
{
    weft_group *group = moe->group;
    int64_t inter = weights->inter;
    int64_t keys = moe->shape.topk < moe->experts_here ? moe->shape.topk : moe->experts_here;
    weft_status status = check(moe, inter);
    device_ffn *ffn;
    bool scales = has_scales(weights);
    char *host;

    if (status)
        return status;
    ffn = calloc(1, sizeof(*ffn));
    host = calloc((size_t)(moe->config.hidden * inter) * HOST_BYTES +
                      (size_t)(4 * inter + moe->config.hidden) * sizeof(float),
                  1); /* what is between lines is copied too */
    if (!ffn || !host) {
        free(ffn);
        free(host);
        return weft_error_set(&group->error, WEFT_ERR_MEMORY, "moe: no memory for an expert's weights");
    }
    *ffn = (device_ffn){.group = group,
                        .moe = moe,
                        .dtype = weft_dtype_is_fp8(weights->dtype) ? weights->dtype : moe->config.dtype,
                        .inter = inter,
                        .rows = moe->shape.ranks * moe->config.tokens * keys};
    weft_hold(group);
    status = allocate(ffn, scales);
    for (int e = 0; e < moe->experts_here && !status; e++)
        status = weft_dtype_is_fp8(ffn->dtype) ? load_stored(ffn, e, weights, host)
                                               : load_expert(ffn, e, weights, host);
    for (int e = 0; e < moe->experts_here && !status && scales; e++)
        status = load_scales(ffn, e, weights, (float *)(void *)host);
    free(host);
    if (!status)
        status = weft_moe_ffn_wrap(ffn, free_there, result);
    if (status)
        free_there(ffn);
    return status;
}

/* A product of rows that lie together by expert, by weights as they lie here. */
static weft_grouped_args product_of(const device_ffn *ffn, const int64_t *offset, int64_t n, int64_t k)
{
    weft_grouped_args args;

    weft_grouped_args_init(&args, ffn->moe->config.dtype, ffn->moe->experts_here, ffn->rows, n, k);
    args.b_dtype = ffn->dtype;
    args.transb = weft_dtype_is_fp8(ffn->dtype);
    if (args.transb)
        args.ldb = weft_round_up(k, 16);
    args.offset = offset;
    return args;
}

/* The first product, of rows that may still be on their way. */
static weft_status multiply_early(const device_ffn *ffn, int lane, weft_grouped_args *args)
{
    weft_status status = weft_grouped_complete(args, &ffn->group->error);

    return status ? status : ops_of(ffn->group)->multiply(ffn->moe->device, lane, args);
}

/* Both products. `early`: the first begins with rows that have arrived. */
static weft_status multiply(const device_ffn *ffn, int lane, const int64_t *offset, bool early)
{
    int64_t hidden = ffn->moe->config.hidden;
    weft_grouped_args args = product_of(ffn, offset, ffn->inter, hidden);
    weft_status status;

    args.a = ffn->packed;
    args.b = ffn->gate_up;
    args.col_scale = ffn->gate_up_scale;
    args.d = ffn->middle;
    args.act = WEFT_ACT_SILU_GATED;
    status = early ? multiply_early(ffn, lane, &args) : weft_grouped_gemm(ffn->group, &args);
    if (status)
        return status;
    args = product_of(ffn, offset, hidden, ffn->inter);
    args.a = ffn->middle;
    args.b = ffn->down;
    args.col_scale = ffn->down_scale;
    args.d = ffn->packed;
    return weft_grouped_gemm(ffn->group, &args);
}

/* What is wrong with a call before anything is sent; NULL: nothing. */
static const char *fault_of(const weft_moe_lane *lane, const weft_moe_input *input, const device_ffn *ffn,
                            const void *y, weft_error_text *text)
{
    weft_group *group = lane->moe->group;

    if (!ffn || ffn->moe != lane->moe)
        return "on GPUs weft_moe_forward takes the feed-forward expert of its layer (weft_moe_ffn_create) "
               "alone";
    if (!input || !input->tokens)
        return NULL;
    if (!y)
        return "y is NULL, but there are tokens";
    if (ops_of(group)->check(group, "y", y, (size_t)(input->tokens * lane->moe->result_bytes)) == WEFT_OK)
        return NULL;
    *text = group->error;
    return text->text;
}

weft_status weft_moe_device_forward(weft_moe_lane *lane, const weft_moe_input *input,
                                    const weft_moe_expert *expert, void *y, const char *fault)
{
    const weft_moe *moe = lane->moe;
    const device_ffn *ffn = weft_moe_ffn_wrapped(expert);
    weft_device_moe_view there;
    weft_error_text text;
    bool early;
    weft_status status;

    fault = fault ? fault : fault_of(lane, input, ffn, y, &text);
    early = !fault && input && ops_of(moe->group)->begins_early(moe->device, input->x);
    if (early) {
        status = weft_moe_device_dispatch_early(lane, input, ffn->packed);
    } else {
        status = weft_moe_device_dispatch_send(lane, input, fault);
        if (!status)
            status = weft_moe_device_dispatch_recv(lane, NULL);
    }
    if (!status)
        status = ops_of(moe->group)->view(moe->device, lane->index, false, &there);
    if (!status && moe->experts_here && !early)
        status = weft_moe_device_gather(lane, NULL, ffn->packed);
    if (!status && moe->experts_here)
        status = multiply(ffn, lane->index, there.offset, early);
    if (!status)
        status = weft_moe_device_combine_send(lane, ffn->packed, NULL);
    return status ? status : weft_moe_device_combine_recv(lane, y);
}
