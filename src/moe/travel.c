/* Rows on and off the wire: as they are given, or as fp8 (wire.h). */
#include "moe/moe.h"

#include <string.h>

static bool as_fp8(const weft_moe *moe)
{
    return moe->config.wire == WEFT_MOE_WIRE_FP8;
}

void weft_moe_put_row(const weft_moe *moe, void *wire, const void *row)
{
    if (as_fp8(moe))
        weft_moe_quantise(moe->config.dtype, moe->config.hidden, wire, row);
    else
        memcpy(wire, row, (size_t)moe->row_bytes);
}

void weft_moe_take_row(const weft_moe *moe, void *row, const void *wire)
{
    if (as_fp8(moe))
        weft_moe_expand(moe->config.dtype, moe->config.hidden, row, wire);
    else
        memcpy(row, wire, (size_t)moe->row_bytes);
}

const void *weft_moe_row_of(const weft_moe_lane *lane, int64_t i)
{
    const weft_moe *moe = lane->moe;
    const weft_moe_received *in = &lane->in;
    char *expanded = lane->expanded + i * moe->row_stride;

    if (as_fp8(moe) && in->row[i] != expanded) {
        weft_moe_take_row(moe, expanded, in->row[i]);
        in->row[i] = expanded;
    }
    return in->row[i];
}

static void expand(void *context, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        weft_moe_row_of(context, i);
}

void weft_moe_expand_rows(weft_moe_lane *lane, int64_t begin, int64_t end)
{
    if (as_fp8(lane->moe))
        weft_moe_share(lane->moe, begin, end, lane->moe->row_bytes, expand, lane);
}
