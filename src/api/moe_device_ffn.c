/*
 * The feed-forward expert in the memory of a backend: between dispatch and combine two grouped products of
 * all local experts, gate and up with the gated activation, then down. How many rows each expert has is read
 * on the device, so that a round needs nothing from the host and can be captured.
 *
 * Weights are copied when the expert is made, as the backend lays them out (run/experts.h). Rows lie together
 * by expert; results take the place of the rows, which nobody reads after the first product.
 */
#include "api/grouped.h"
#include "api/hold.h"
#include "api/moe_device.h"
#include "core/dtype.h"
#include "moe/ffn.h"
#include "run/backend.h"
#include "run/experts.h"

#include <stdlib.h>

typedef struct device_ffn {
    weft_group *group;
    weft_moe *moe;
    int64_t inter, rows; /* the most that experts here may get in a round, together */
    weft_device_ffn weights;
    void *packed, *middle; /* rows x hidden, rows x inter */
} device_ffn;

static const weft_device_moe_ops *ops_of(const weft_group *group)
{
    return weft_backend_of(group)->moe;
}

static void discard(weft_group *group, const weft_device_matrix *matrix)
{
    ops_of(group)->discard(group, matrix->memory);
    ops_of(group)->discard(group, matrix->col_scale);
}

static void free_there(void *given)
{
    device_ffn *ffn = given;
    weft_group *group = ffn->group;

    discard(group, &ffn->weights.gate_up);
    discard(group, &ffn->weights.down);
    ops_of(group)->discard(group, ffn->packed);
    ops_of(group)->discard(group, ffn->middle);
    free(ffn);
    weft_hold_drop(group);
}

static weft_device_ffn_shape shape_of(const weft_moe *moe, int64_t inter)
{
    return (weft_device_ffn_shape){moe->config.dtype, moe->experts_here, moe->config.hidden, inter};
}

/* Whether the device has such products at all, by one of no rows: not to be found out in the midst of a
 * round. */
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
    weft_device_ffn_shape shape = shape_of(moe, inter);
    weft_status status;

    if (moe->row_bytes != moe->result_bytes)
        return weft_error_set(
            &moe->group->error, WEFT_ERR_ARGUMENT,
            "moe: tokens are dispatched as %lld bytes; the feed-forward expert reads %lld elements of %s",
            (long long)moe->row_bytes, (long long)moe->config.hidden, weft_dtype_name(moe->config.dtype));
    status = ops_of(moe->group)->ffn_check(moe->group, &shape);
    return status ? status : check_products(moe, inter);
}

/* Rows of so many elements of the layer's type. */
static weft_status allocate(const device_ffn *ffn, int64_t cols, void **memory)
{
    size_t bytes = (size_t)(ffn->rows * cols) * weft_dtype_size(ffn->moe->config.dtype);

    return ops_of(ffn->group)->memory(ffn->group, bytes, memory);
}

weft_status weft_moe_device_ffn_create(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **result)
{
    weft_group *group = moe->group;
    int64_t keys = moe->shape.topk < moe->experts_here ? moe->shape.topk : moe->experts_here;
    weft_device_ffn_shape shape = shape_of(moe, weights->inter);
    weft_status status = check(moe, weights->inter);
    device_ffn *ffn;

    if (status)
        return status;
    ffn = calloc(1, sizeof(*ffn));
    if (!ffn)
        return weft_error_set(&group->error, WEFT_ERR_MEMORY, "moe: no memory for an expert");
    *ffn = (device_ffn){.group = group,
                        .moe = moe,
                        .inter = weights->inter,
                        .rows = moe->shape.ranks * moe->config.tokens * keys};
    weft_hold(group);
    status = ops_of(group)->ffn_pack(group, &shape, weights, &ffn->weights);
    if (!status)
        status = allocate(ffn, moe->config.hidden, &ffn->packed);
    if (!status)
        status = allocate(ffn, ffn->inter, &ffn->middle);
    if (!status)
        status = weft_moe_ffn_wrap(ffn, free_there, result);
    if (status)
        free_there(ffn);
    return status;
}

/* A product of rows that lie together by expert, by weights as they lie here. */
static weft_grouped_args product_of(const device_ffn *ffn, const int64_t *offset, const weft_device_matrix *b,
                                    int64_t n, int64_t k)
{
    weft_grouped_args args;

    weft_grouped_args_init(&args, ffn->moe->config.dtype, ffn->moe->experts_here, ffn->rows, n, k);
    args.b = b->memory;
    args.b_dtype = b->dtype;
    args.transb = b->transposed;
    args.ldb = b->ld;
    args.col_scale = b->col_scale;
    args.offset = offset;
    return args;
}

/* The first product, of rows that may still be on their way. */
static weft_status multiply_arriving(const device_ffn *ffn, int lane, weft_grouped_args *args)
{
    weft_status status = weft_grouped_complete(args, &ffn->group->error);

    return status ? status : ops_of(ffn->group)->multiply(ffn->moe->device, lane, args);
}

/* Both products. `arriving`: the first begins with rows that have arrived. */
static weft_status multiply(const device_ffn *ffn, int lane, const int64_t *offset, bool arriving)
{
    int64_t hidden = ffn->moe->config.hidden;
    weft_grouped_args args = product_of(ffn, offset, &ffn->weights.gate_up, ffn->inter, hidden);
    weft_status status;

    args.a = ffn->packed;
    args.d = ffn->middle;
    args.act = WEFT_ACT_SILU_GATED;
    status = arriving ? multiply_arriving(ffn, lane, &args) : weft_grouped_gemm(ffn->group, &args);
    if (status)
        return status;
    args = product_of(ffn, offset, &ffn->weights.down, hidden, ffn->inter);
    args.a = ffn->middle;
    args.d = ffn->packed;
    return weft_grouped_gemm(ffn->group, &args);
}

/* What is wrong with a call before anything is sent; NULL: nothing. */
static const char *fault_of(const weft_moe_lane *lane, const weft_moe_input *input, const device_ffn *ffn,
                            const void *y, weft_error_text *text)
{
    weft_group *group = lane->moe->group;

    if (!ffn || ffn->moe != lane->moe) {
        weft_error_set(text, WEFT_ERR_ARGUMENT,
                       "on %s weft_moe_forward takes the feed-forward expert of its layer "
                       "(weft_moe_ffn_create) alone",
                       weft_backend_of(group)->where);
        return text->text;
    }
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
    bool arriving;
    weft_status status;

    fault = fault ? fault : fault_of(lane, input, ffn, y, &text);
    arriving = !fault && input && ops_of(moe->group)->takes_arriving(moe->device, input->x);
    if (arriving) {
        status = weft_moe_device_dispatch_arriving(lane, input, ffn->packed);
    } else {
        status = weft_moe_device_dispatch_send(lane, input, fault);
        if (!status)
            status = weft_moe_device_dispatch_recv(lane, NULL);
    }
    if (!status)
        status = ops_of(moe->group)->view(moe->device, lane->index, false, &there);
    if (!status && moe->experts_here && !arriving)
        status = weft_moe_device_gather(lane, NULL, ffn->packed);
    if (!status && moe->experts_here)
        status = multiply(ffn, lane->index, there.offset, arriving);
    if (!status)
        status = weft_moe_device_combine_send(lane, ffn->packed, NULL);
    return status ? status : weft_moe_device_combine_recv(lane, y);
}
