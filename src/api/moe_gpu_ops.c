/* Mixture of experts on a group of GPUs, as the calls of weft.h see it. */
#include "api/moe_ops.h"
#include "api/moe_gpu.h"

const weft_moe_ops weft_moe_on_gpus = {
    .measure = weft_moe_gpu_measure,
    .open = weft_moe_gpu_open,
    .close = weft_moe_gpu_close,
    .send = weft_moe_gpu_send,
    .receive = weft_moe_gpu_receive,
    .layout = weft_moe_gpu_layout,
    .gather = weft_moe_gpu_gather,
    .give = weft_moe_gpu_give,
    .take = weft_moe_gpu_take,
    .forward = weft_moe_gpu_forward,
    .stats = weft_moe_gpu_stats,
    .ffn_create = weft_moe_gpu_ffn_create,
};
