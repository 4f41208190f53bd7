/*
 * A token as it travels. As it was given; or as fp8 (weft_moe_config.wire): a code of e4m3 for each element,
 * then, from the next 16 bytes on, a float32 scale for every WEFT_MOE_WIRE_BLOCK of them, zeros up to the
 * next 16 bytes. docs/contract.md has the arithmetic; kernels of GPUs (run/cuda/moe_wire.cuh) have the same,
 * to the bit.
 */
#ifndef WEFT_MOE_WIRE_H
#define WEFT_MOE_WIRE_H

#include "core/round.h"

#include <weft/weft.h>

enum { WEFT_MOE_WIRE_BLOCK = 128 };

static inline int64_t weft_moe_scales_at(int64_t hidden)
{
    return weft_round_up(hidden, 16);
}

static inline int64_t weft_moe_fp8_bytes(int64_t hidden)
{
    int64_t blocks = weft_divide_up(hidden, WEFT_MOE_WIRE_BLOCK);

    return weft_moe_scales_at(hidden) + weft_round_up(blocks * (int64_t)sizeof(float), 16);
}

/* A row of `hidden` elements to fp8, and back. */
void weft_moe_quantise(weft_dtype dtype, int64_t hidden, void *to, const void *row);
void weft_moe_expand(weft_dtype dtype, int64_t hidden, void *row, const void *from);

#endif
