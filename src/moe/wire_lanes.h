/* BLOCK elements to float32 and back by vectors, for wire_loops.h. The including file has lanes_*.h. */
#ifndef WEFT_MOE_WIRE_LANES_H
#define WEFT_MOE_WIRE_LANES_H

#include "moe/wire.h"

INLINE void widen(weft_dtype dtype, float *x, const void *row)
{
    for (int i = 0; i < WEFT_MOE_WIRE_BLOCK; i += LANES)
        store_lanes(WEFT_F32, x, i, load_lanes(dtype, row, i));
}

INLINE void narrow(weft_dtype dtype, void *row, const float *x)
{
    for (int i = 0; i < WEFT_MOE_WIRE_BLOCK; i += LANES)
        store_lanes(dtype, row, i, load_lanes(WEFT_F32, x, i));
}

#include "moe/wire_loops.h"

#endif
