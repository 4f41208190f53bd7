/* What the calls of weft.h about mixture of experts do: a table for layers on the CPU (moe_cpu.c), another
 * for those in the memory of a backend (moe_device_ops.c). A layer has one of them from when it is made. */
#ifndef WEFT_API_MOE_OPS_H
#define WEFT_API_MOE_OPS_H

#include "moe/moe.h"

typedef struct weft_moe_ops {
    /* See weft_moe_group_bytes. */
    weft_status (*measure)(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                           size_t *private_bytes);
    /* Collective. */
    weft_status (*open)(weft_group *group, const weft_moe_config *config, weft_moe **moe);
    weft_status (*close)(weft_moe *moe);
    /* In the order of a round; each an error when out of order. `fault`: why the input is rejected, or NULL.
     */
    weft_status (*dispatch_send)(weft_moe_lane *lane, const weft_moe_input *input, const char *fault);
    weft_status (*dispatch_recv)(weft_moe_lane *lane, weft_moe_view *view);
    weft_status (*layout)(weft_moe_lane *lane, int64_t alignment, int64_t *start, int64_t *rows);
    weft_status (*gather)(weft_moe_lane *lane, const int64_t *start, void *packed);
    weft_status (*combine_send)(weft_moe_lane *lane, const void *results, const int64_t *start);
    weft_status (*combine_recv)(weft_moe_lane *lane, void *y);
    /* Whether `y` can take the sums of the tokens that the lane has sent. */
    weft_status (*check_y)(const weft_moe_lane *lane, const void *y);
    /* All of them, with experts that are called. */
    weft_status (*forward)(weft_moe_lane *lane, const weft_moe_input *input, const weft_moe_expert *expert,
                           void *y, const char *fault);
    /* Brings the lane's figures up to date. */
    weft_status (*stats)(weft_moe_lane *lane, weft_moe_stats *stats);
    /* The feed-forward expert, whose pointers have been checked. */
    weft_status (*ffn_create)(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **ffn);
} weft_moe_ops;

extern const weft_moe_ops weft_moe_on_cpu, weft_moe_on_device;

#endif
