/* Mixture of experts: the entry points of weft.h. */
#include "api/hold.h"
#include "api/least.h"
#include "api/moe_ops.h"
#include "api/no_group.h"
#include "core/dtype.h"
#include "core/part.h"
#include "moe/ffn.h"
#include "moe/moe.h"
#include "run/backend.h"

#include <string.h>

/* A backend that brings kernels for experts has layers in its own memory, one whose memory is the host's
 * those of src/moe. NULL, with the sentence written: there are none. */
static const weft_moe_ops *ops_for(weft_group *group, const char *call)
{
    const weft_backend *backend = weft_backend_of(group);

    if (backend->moe)
        return &weft_moe_on_device;
    if (backend->host_memory)
        return &weft_moe_on_cpu;
    weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED, "%s: a group on %s has no mixture of experts", call,
                   backend->where);
    return NULL;
}

static weft_status no_layer(const char *call)
{
    return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT, "%s: moe is NULL", call);
}

/* The lane of a layer whose group lives; else NULL, with the status and the sentence written. */
static weft_moe_lane *lane_of(const weft_moe *moe, int lane, const char *call, weft_status *status)
{
    *status = moe ? weft_group_check(moe->group) : no_layer(call);
    if (*status != WEFT_OK)
        return NULL;
    if (lane < 0 || lane >= moe->config.lanes) {
        *status =
            weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                           "%s: lane is %d; the layer has lanes 0 to %d", call, lane, moe->config.lanes - 1);
        return NULL;
    }
    return &moe->lanes[lane];
}

void weft_moe_config_init_sized(weft_moe_config *config, size_t size)
{
    const weft_moe_config defaults = {.dtype = WEFT_F16, .lanes = 1, .threads = 1};

    weft_sized_init(config, size, &defaults, sizeof(defaults), WEFT_MOE_CONFIG_LEAST);
}

weft_status weft_moe_bytes(const weft_moe_config *config, int ranks, size_t *symmetric_bytes,
                           size_t *private_bytes)
{
    weft_error_text *error = weft_error_thread();
    weft_moe_config read;

    if (!weft_sized_read(&read, sizeof(read), config, WEFT_MOE_CONFIG_LEAST) || !symmetric_bytes ||
        !private_bytes)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_moe_bytes: config must be set by weft_moe_config_init, and neither "
                              "result be NULL");
    return weft_moe_measure(&read, ranks, symmetric_bytes, private_bytes, error);
}

weft_status weft_moe_group_bytes(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                                 size_t *private_bytes)
{
    const weft_moe_ops *ops;
    weft_moe_config read;
    weft_status status;

    if (!group)
        return weft_no_group("weft_moe_group_bytes");
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (!weft_sized_read(&read, sizeof(read), config, WEFT_MOE_CONFIG_LEAST) || !symmetric_bytes ||
        !private_bytes)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_moe_group_bytes: config must be set by weft_moe_config_init, and neither "
                              "result be NULL");
    ops = ops_for(group, "weft_moe_group_bytes");
    return ops ? ops->measure(group, &read, symmetric_bytes, private_bytes) : WEFT_ERR_UNSUPPORTED;
}

weft_status weft_moe_create(weft_group *group, const weft_moe_config *config, weft_moe **moe)
{
    const weft_moe_ops *ops;
    weft_moe_config read;
    weft_moe *made;
    weft_status status;

    if (!group)
        return weft_no_group("weft_moe_create");
    group->entry = WEFT_ENTRY_MOE_CREATE;
    if (!moe || !weft_sized_read(&read, sizeof(read), config, WEFT_MOE_CONFIG_LEAST)) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "weft_moe_create: %s",
                       !config ? "config is NULL"
                       : !moe  ? "moe is NULL"
                               : "config->size is not that of weft_moe_config; weft_moe_config_init sets it");
        return weft_group_reject(group, WEFT_SYNC_AGREE);
    }
    ops = ops_for(group, "weft_moe_create");
    status = ops ? ops->open(group, &read, &made) : WEFT_ERR_UNSUPPORTED;
    if (status != WEFT_OK)
        return status;
    made->ops = ops;
    weft_hold(group);
    *moe = made;
    return WEFT_OK;
}

weft_status weft_moe_free(weft_moe *moe)
{
    weft_group *group = moe ? moe->group : NULL;
    weft_status status = moe ? moe->ops->close(moe) : WEFT_OK;

    if (group)
        weft_hold_drop(group);
    return status;
}

int weft_moe_local_experts(const weft_moe *moe, const int32_t **expert)
{
    if (!moe)
        return 0;
    if (expert)
        *expert = moe->local;
    return moe->experts_here;
}

/* What is wrong with the size of an input that is given, or NULL. */
static const char *read_input(const weft_moe_input *input, weft_moe_input *read)
{
    *read = (weft_moe_input){0};
    return !input || weft_sized_read(read, sizeof(*read), input, WEFT_MOE_INPUT_LEAST)
               ? NULL
               : "input->size is not that of weft_moe_input";
}

weft_status weft_moe_dispatch_send(weft_moe *moe, int lane, const weft_moe_input *input)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_dispatch_send", &status);
    weft_moe_input read;
    const char *fault = read_input(input, &read);

    if (!at)
        return status;
    moe->group->entry = WEFT_ENTRY_MOE_DISPATCH_SEND;
    return moe->ops->dispatch_send(at, input ? &read : NULL, fault);
}

/* A lane that can show what it receives in `view`, or NULL with the status and the sentence written. */
static weft_moe_lane *viewed_lane(const weft_moe *moe, int lane, const weft_moe_view *view, const char *call,
                                  weft_status *status)
{
    weft_moe_lane *at = lane_of(moe, lane, call, status);

    if (at && view && !weft_sized_fits(view, WEFT_MOE_VIEW_LEAST)) {
        *status = weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                                 "%s: view->size is not that of weft_moe_view", call);
        return NULL;
    }
    return at;
}

weft_status weft_moe_dispatch_recv(weft_moe *moe, int lane, weft_moe_view *view)
{
    weft_status status;
    weft_moe_lane *at = viewed_lane(moe, lane, view, "weft_moe_dispatch_recv", &status);

    if (!at)
        return status;
    moe->group->entry = WEFT_ENTRY_MOE_DISPATCH_RECV;
    return moe->ops->dispatch_recv(at, view);
}

/* The view is looked at first: a call that is refused has sent nothing, and can be made again. */
weft_status weft_moe_dispatch(weft_moe *moe, int lane, const weft_moe_input *input, weft_moe_view *view)
{
    weft_status status;

    if (viewed_lane(moe, lane, view, "weft_moe_dispatch", &status))
        status = weft_moe_dispatch_send(moe, lane, input);
    return status ? status : weft_moe_dispatch_recv(moe, lane, view);
}

/* A lane that holds received rows, or NULL with the sentence written. */
static weft_moe_lane *received_lane(const weft_moe *moe, int lane, const char *call, weft_status *status)
{
    weft_moe_lane *at = lane_of(moe, lane, call, status);

    if (at && at->state != WEFT_MOE_RECEIVED) {
        *status = weft_error_set(&moe->group->error, WEFT_ERR_STATE,
                                 "%s: no dispatch has been received on lane %d", call, lane);
        return NULL;
    }
    return at;
}

weft_status weft_moe_layout(weft_moe *moe, int lane, int64_t alignment, int64_t *start, int64_t *rows)
{
    weft_status status;
    weft_moe_lane *at = received_lane(moe, lane, "weft_moe_layout", &status);

    if (!at)
        return status;
    if (!alignment || alignment < -INT32_MAX || alignment > INT32_MAX || !start || !rows)
        return weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                              "weft_moe_layout: alignment is %lld and must be 1 to 2^31 - 1, or the negative "
                              "of that; start and rows must not be NULL",
                              (long long)alignment);
    return moe->ops->layout(at, alignment, start, rows);
}

weft_status weft_moe_gather(weft_moe *moe, int lane, const int64_t *start, void *packed)
{
    weft_status status;
    weft_moe_lane *at = received_lane(moe, lane, "weft_moe_gather", &status);

    return at ? moe->ops->gather(at, start, packed) : status;
}

weft_status weft_moe_combine_send(weft_moe *moe, int lane, const void *results, const int64_t *start)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_combine_send", &status);

    if (!at)
        return status;
    moe->group->entry = WEFT_ENTRY_MOE_COMBINE_SEND;
    return moe->ops->combine_send(at, results, start);
}

weft_status weft_moe_combine_recv(weft_moe *moe, int lane, void *y)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_combine_recv", &status);

    if (!at)
        return status;
    moe->group->entry = WEFT_ENTRY_MOE_COMBINE_RECV;
    return moe->ops->combine_recv(at, y);
}

/* As with a dispatch, what the second half would refuse is refused before anything is sent. */
weft_status weft_moe_combine(weft_moe *moe, int lane, const void *results, const int64_t *start, void *y)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_combine", &status);

    if (!at)
        return status;
    if (at->state == WEFT_MOE_RECEIVED)
        status = moe->ops->check_y(at, y);
    if (!status)
        status = weft_moe_combine_send(moe, lane, results, start);
    return status ? status : weft_moe_combine_recv(moe, lane, y);
}

weft_status weft_moe_forward(weft_moe *moe, int lane, const weft_moe_input *input,
                             const weft_moe_expert *expert, void *y)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_forward", &status);
    weft_moe_input read;
    weft_moe_expert called = {0};
    const char *fault = read_input(input, &read);

    if (!fault && !weft_sized_read(&called, sizeof(called), expert, WEFT_MOE_EXPERT_LEAST))
        fault = expert ? "expert->size is not that of weft_moe_expert" : "expert is NULL";
    if (!at)
        return status;
    moe->group->entry = WEFT_ENTRY_MOE_FORWARD;
    return moe->ops->forward(at, input ? &read : NULL, &called, y, fault);
}

weft_status weft_moe_get_stats(const weft_moe *moe, int lane, weft_moe_stats *stats)
{
    weft_status status;
    weft_moe_lane *at = lane_of(moe, lane, "weft_moe_get_stats", &status);

    if (at)
        status = moe->ops->stats(at, &at->stats);
    if (status != WEFT_OK)
        return status;
    if (!stats || !weft_sized_write(stats, &at->stats, sizeof(at->stats), WEFT_MOE_STATS_LEAST))
        return weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                              "weft_moe_get_stats: stats is NULL or its size is not set");
    return WEFT_OK;
}

static weft_status check_weights(const weft_moe *moe, const char *call, const weft_moe_weights *w,
                                 weft_moe_ffn **ffn)
{
    weft_status status = weft_group_check(moe->group);

    if (status != WEFT_OK)
        return status;
    if (w->inter < 1 || !weft_extents_fit(moe->config.hidden, w->inter, moe->experts_here) || !ffn)
        return weft_error_set(
            &moe->group->error, WEFT_ERR_ARGUMENT,
            "%s: inter is %lld and must be at least 1, the weights fewer than 2^46; ffn must "
            "not be NULL",
            call, (long long)w->inter);
    for (int e = 0; e < moe->experts_here; e++)
        if (!w->gate || !w->up || !w->down || !w->gate[e] || !w->up[e] || !w->down[e])
            return weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                                  "%s: a weight matrix of expert %d is NULL", call, moe->local[e]);
    return WEFT_OK;
}

weft_status weft_moe_ffn_create(weft_moe *moe, int64_t inter, const void *const *gate, const void *const *up,
                                const void *const *down, weft_moe_ffn **ffn)
{
    weft_moe_weights weights = {.inter = inter, .gate = gate, .up = up, .down = down};
    weft_status status;

    if (!moe)
        return no_layer("weft_moe_ffn_create");
    weights.dtype = moe->config.dtype;
    status = check_weights(moe, "weft_moe_ffn_create", &weights, ffn);
    return status ? status : moe->ops->ffn_create(moe, &weights, ffn);
}

weft_status weft_moe_ffn_create_stored(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **ffn)
{
    weft_moe_weights read;
    weft_status status;

    if (!moe)
        return no_layer("weft_moe_ffn_create_stored");
    if (!weft_sized_read(&read, sizeof(read), weights, WEFT_MOE_WEIGHTS_LEAST))
        return weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                              "weft_moe_ffn_create_stored: weights is NULL, or its size is not that of "
                              "weft_moe_weights");
    if (read.dtype != WEFT_F32 && read.dtype != WEFT_F16 && read.dtype != WEFT_BF16 &&
        read.dtype != WEFT_I8 && !weft_dtype_is_fp8(read.dtype))
        return weft_error_set(&moe->group->error, WEFT_ERR_ARGUMENT,
                              "weft_moe_ffn_create_stored: weights are %s, which a product of %s cannot read",
                              weft_dtype_name(read.dtype), weft_dtype_name(moe->config.dtype));
    status = check_weights(moe, "weft_moe_ffn_create_stored", &read, ffn);
    return status ? status : moe->ops->ffn_create(moe, &read, ffn);
}

weft_status weft_moe_ffn_expert(weft_moe_ffn *ffn, weft_moe_expert *expert)
{
    weft_moe_expert callbacks = ffn ? weft_moe_ffn_callbacks(ffn) : (weft_moe_expert){0};

    if (!ffn || !expert || !weft_sized_write(expert, &callbacks, sizeof(callbacks), WEFT_MOE_EXPERT_LEAST))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "weft_moe_ffn_expert: ffn or expert is NULL, or expert->size is not set");
    return WEFT_OK;
}

void weft_moe_ffn_free(weft_moe_ffn *ffn)
{
    weft_moe_ffn_close(ffn);
}
