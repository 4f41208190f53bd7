#include "moe/wire.h"

#include "gemm/convert.h"

#include <string.h>

enum { BLOCK = WEFT_MOE_WIRE_BLOCK };

static const float LARGEST = 448;                       /* of e4m3 */
static const uint32_t LEAST_BITS = (127u - 100u) << 23; /* 2^-100, so that what divides 448 is finite */

/* The largest magnitude, and that of infinities and NaN beyond all numbers: an order of bits, which compilers
 * make vectors of. */
static float largest_of(const float *x, int64_t n)
{
    uint32_t most = LEAST_BITS;
    float value;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    memcpy(&value, &most, sizeof(value));
    return value;
}

void weft_moe_quantise(weft_dtype dtype, int64_t hidden, void *to, const void *row)
{
    int64_t size = (int64_t)weft_dtype_size(dtype), at = weft_moe_scales_at(hidden);
    uint8_t *codes = to;
    float x[BLOCK], *scale = (float *)(void *)(codes + at);

    memset(codes + hidden, 0, (size_t)(at - hidden));
    memset(scale, 0, (size_t)(weft_moe_fp8_bytes(hidden) - at));
    for (int64_t begin = 0; begin < hidden; begin += BLOCK) {
        int64_t n = hidden - begin < BLOCK ? hidden - begin : BLOCK;
        float largest, inverse;

        weft_convert_row(WEFT_F32, x, dtype, (const char *)row + begin * size, n);
        largest = largest_of(x, n);
        inverse = LARGEST / largest;
        for (int64_t i = 0; i < n; i++)
            x[i] *= inverse;
        weft_convert_row(WEFT_FP8_E4M3, codes + begin, WEFT_F32, x, n);
        scale[begin / BLOCK] = largest / LARGEST;
    }
}

void weft_moe_expand(weft_dtype dtype, int64_t hidden, void *row, const void *from)
{
    int64_t size = (int64_t)weft_dtype_size(dtype);
    const uint8_t *codes = from;
    const float *scale = (const float *)(const void *)(codes + weft_moe_scales_at(hidden));
    float x[BLOCK];

    for (int64_t begin = 0; begin < hidden; begin += BLOCK) {
        int64_t n = hidden - begin < BLOCK ? hidden - begin : BLOCK;
        float factor = scale[begin / BLOCK];

        weft_convert_row(WEFT_F32, x, WEFT_FP8_E4M3, codes + begin, n);
        for (int64_t i = 0; i < n; i++)
            x[i] *= factor;
        weft_convert_row(dtype, (char *)row + begin * size, WEFT_F32, x, n);
    }
}
