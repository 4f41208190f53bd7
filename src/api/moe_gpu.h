/* Mixture of experts on a group of GPUs: the calls of weft.h once their lane is known. */
#ifndef WEFT_API_MOE_GPU_H
#define WEFT_API_MOE_GPU_H

#include "moe/moe.h"

/* See weft_moe_group_bytes. */
weft_status weft_moe_gpu_bytes(weft_group *group, const weft_moe_config *config, size_t *symmetric_bytes,
                               size_t *private_bytes);

/* Collective: the GPU's part of a layer that weft_moe_open has made. */
weft_status weft_moe_gpu_open(weft_moe *moe);
weft_status weft_moe_gpu_close(weft_moe *moe);

/* In the order of a round; each an error when out of order. `fault` as in weft_moe_begin. */
weft_status weft_moe_gpu_send(weft_moe_lane *lane, const weft_moe_input *input, const char *fault);
weft_status weft_moe_gpu_receive(weft_moe_lane *lane, weft_moe_view *view);
weft_status weft_moe_gpu_layout(weft_moe_lane *lane, int64_t alignment, int64_t *start, int64_t *rows);
weft_status weft_moe_gpu_gather(weft_moe_lane *lane, const int64_t *start, void *packed);
weft_status weft_moe_gpu_give(weft_moe_lane *lane, const void *results, const int64_t *start);
weft_status weft_moe_gpu_take(weft_moe_lane *lane, void *y);

/* The feed-forward expert (moe_gpu_ffn.c), whose pointers have been checked, and a whole round with it. */
weft_status weft_moe_gpu_ffn_create(weft_moe *moe, int64_t inter, const void *const *gate,
                                    const void *const *up, const void *const *down, weft_moe_ffn **ffn);
void weft_moe_gpu_ffn_free(void *wrapped);
weft_status weft_moe_gpu_forward(weft_moe_lane *lane, const weft_moe_input *input,
                                 const weft_moe_expert *expert, void *y, const char *fault);

weft_status weft_moe_gpu_stats(weft_moe_lane *lane, weft_moe_stats *stats);

#endif
