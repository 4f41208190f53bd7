/* Mixture of experts on a group of GPUs, as the calls of weft.h see it. */
#include "api/moe_ops.h"
#include "api/moe_gpu.h"

const weft_moe_ops weft_moe_on_gpus = {
    .measure = weft_moe_gpu_measure,
    .open = weft_moe_gpu_open,
    .close = weft_moe_gpu_close,
    .dispatch_send = weft_moe_gpu_dispatch_send,
    .dispatch_recv = weft_moe_gpu_dispatch_recv,
    .layout = weft_moe_gpu_layout,
    .gather = weft_moe_gpu_gather,
    .combine_send = weft_moe_gpu_combine_send,
    .combine_recv = weft_moe_gpu_combine_recv,
    .forward = weft_moe_gpu_forward,
    .stats = weft_moe_gpu_stats,
    .ffn_create = weft_moe_gpu_ffn_create,
};
