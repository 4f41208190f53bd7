/* Mixture of experts in the memory of a backend (run/experts.h), as the calls of weft.h see it. */
#include "api/moe_ops.h"
#include "api/moe_device.h"

const weft_moe_ops weft_moe_on_device = {
    .measure = weft_moe_device_measure,
    .open = weft_moe_device_open,
    .close = weft_moe_device_close,
    .dispatch_send = weft_moe_device_dispatch_send,
    .dispatch_recv = weft_moe_device_dispatch_recv,
    .layout = weft_moe_device_layout,
    .gather = weft_moe_device_gather,
    .combine_send = weft_moe_device_combine_send,
    .combine_recv = weft_moe_device_combine_recv,
    .check_y = weft_moe_device_check_y,
    .forward = weft_moe_device_forward,
    .stats = weft_moe_device_stats,
    .ffn_create = weft_moe_device_ffn_create,
};
