/* Mixture of experts in the memory of a backend (run/experts.h): what the two files of it share. moe_ops.h
 * has the table of them.
 */
#ifndef WEFT_API_MOE_DEVICE_H
#define WEFT_API_MOE_DEVICE_H

#include "moe/moe.h"

weft_status weft_moe_device_measure(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                                    size_t *private_bytes);
weft_status weft_moe_device_open(weft_group *group, const weft_moe_config *config, weft_moe **moe);
weft_status weft_moe_device_close(weft_moe *moe);
weft_status weft_moe_device_stats(weft_moe_lane *lane, weft_moe_stats *stats);

/* In the order of a round; each an error when out of order. `fault` as in weft_moe_lane_dispatch_send. */
weft_status weft_moe_device_dispatch_send(weft_moe_lane *lane, const weft_moe_input *input,
                                          const char *fault);
weft_status weft_moe_device_dispatch_recv(weft_moe_lane *lane, weft_moe_view *view);
/* Both halves, of experts that begin with rows that have arrived: these are packed by expert. */
weft_status weft_moe_device_dispatch_arriving(weft_moe_lane *lane, const weft_moe_input *input, void *packed);
weft_status weft_moe_device_layout(weft_moe_lane *lane, int64_t alignment, int64_t *start, int64_t *rows);
weft_status weft_moe_device_gather(weft_moe_lane *lane, const int64_t *start, void *packed);
weft_status weft_moe_device_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start);
weft_status weft_moe_device_combine_recv(weft_moe_lane *lane, void *y);
weft_status weft_moe_device_check_y(const weft_moe_lane *lane, const void *y);

/* The feed-forward expert (moe_device_ffn.c), whose pointers have been checked, and a whole round with it. */
weft_status weft_moe_device_ffn_create(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **ffn);
weft_status weft_moe_device_forward(weft_moe_lane *lane, const weft_moe_input *input,
                                    const weft_moe_expert *expert, void *y, const char *fault);

#endif
