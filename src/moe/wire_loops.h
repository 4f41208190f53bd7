/*
 * The loops of rows as fp8, written once for all instruction sets: plain ones over a whole block, which
 * compilers make vectors of. They compare signed numbers, since SSE2 has no other comparison, and choose
 * between values instead of branching. A product is rounded before anything is added to it: files that
 * include this are compiled without contraction. Such a file has INLINE and says
 *
 *     widen(dtype, x, row), narrow(dtype, row, x)
 *                          how the elements of a block become float32, and are made of them
 */
#ifndef WEFT_MOE_WIRE_LOOPS_H
#define WEFT_MOE_WIRE_LOOPS_H

#include "moe/wire_kernels.h"

#include <string.h>

enum { BLOCK = WEFT_MOE_WIRE_BLOCK };

static const float LARGEST = 448;                    /* of e4m3 */
static const int32_t LEAST_BITS = (127 - 100) << 23; /* 2^-100, so that what divides 448 is finite */

/* The largest magnitude, and that of infinities and NaN beyond all numbers: an order of bits. */
INLINE float largest_of(const float *x)
{
    int32_t most = LEAST_BITS;
    float value;

    for (int i = 0; i < BLOCK; i++) {
        int32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    memcpy(&value, &most, sizeof(value));
    return value;
}

/*
 * Rounded to nearest even, as weft_f32_to_fp8 does. Below 2^-6 the last bit of what 2^14 is added to is worth
 * as much as e4m3's. Else the bias of the exponent is taken off and what is behind e4m3's last bit rounded
 * away. No number is beyond 448 by more than two roundings, which rounds to it, so the bound is there for
 * NaN.
 */
INLINE void encode(uint8_t *restrict code, const float *restrict x, float inverse)
{
    for (int i = 0; i < BLOCK; i++) {
        float scaled = x[i] * inverse, magnitude, shifted;
        int32_t bits, rest, tiny, normal;

        memcpy(&bits, &scaled, sizeof(bits));
        rest = bits & 0x7fffffff;
        memcpy(&magnitude, &rest, sizeof(magnitude));
        shifted = magnitude + 0x1p14f;
        memcpy(&tiny, &shifted, sizeof(tiny)); /* its last byte */
        normal = (rest + (0x7ffff - (120 << 23)) + ((rest >> 20) & 1)) >> 20;
        normal = normal < 0x7f ? normal : 0x7f;
        code[i] = (uint8_t)(((bits >> 24) & 0x80) | (rest < 121 << 23 ? tiny : normal));
    }
}

/* By way of float16, which has one bit of the exponent more: with its bits in the same places a code's number
 * is 2^-8 of what it is, below the smallest normal one too. */
INLINE void decode(float *restrict x, const uint8_t *restrict code, float scale)
{
    uint16_t half[BLOCK];

    for (int i = 0; i < BLOCK; i++) {
        int16_t rest = code[i] & 0x7f;

        half[i] = (uint16_t)(((code[i] & 0x80) << 8) | (rest == 0x7f ? 0x7e00 : rest << 7));
    }
    widen(WEFT_F16, x, half);
    for (int i = 0; i < BLOCK; i++)
        x[i] *= scale * 0x1p8f;
}

/* Returns its scale. */
INLINE float quantise_block(weft_dtype dtype, uint8_t *code, const void *row)
{
    float x[BLOCK], largest;

    widen(dtype, x, row);
    largest = largest_of(x);
    encode(code, x, LARGEST / largest);
    return largest / LARGEST;
}

INLINE void quantise_row(weft_dtype dtype, int64_t hidden, void *to, const void *row)
{
    int64_t size = dtype == WEFT_F32 ? 4 : 2, at = weft_moe_scales_at(hidden), begin = 0;
    uint8_t *codes = to;
    float *scale = (float *)(void *)(codes + at);

    memset(codes + hidden, 0, (size_t)(at - hidden));
    memset(scale, 0, (size_t)(weft_moe_fp8_bytes(hidden) - at));
    for (; begin + BLOCK <= hidden; begin += BLOCK)
        scale[begin / BLOCK] = quantise_block(dtype, codes + begin, (const char *)row + begin * size);
    if (begin < hidden) {
        float padded[BLOCK] = {0}; /* room for any type, and zero in each */
        uint8_t last[BLOCK];

        memcpy(padded, (const char *)row + begin * size, (size_t)((hidden - begin) * size));
        scale[begin / BLOCK] = quantise_block(dtype, last, padded);
        memcpy(codes + begin, last, (size_t)(hidden - begin));
    }
}

INLINE void expand_row(weft_dtype dtype, int64_t hidden, void *row, const void *from)
{
    int64_t size = dtype == WEFT_F32 ? 4 : 2, begin = 0;
    const uint8_t *codes = from;
    const float *scale = (const float *)(const void *)(codes + weft_moe_scales_at(hidden));
    float x[BLOCK];

    for (; begin + BLOCK <= hidden; begin += BLOCK) {
        decode(x, codes + begin, scale[begin / BLOCK]);
        narrow(dtype, (char *)row + begin * size, x);
    }
    if (begin < hidden) {
        float padded[BLOCK];
        uint8_t last[BLOCK] = {0};

        memcpy(last, codes + begin, (size_t)(hidden - begin));
        decode(x, last, scale[begin / BLOCK]);
        narrow(dtype, padded, x);
        memcpy((char *)row + begin * size, padded, (size_t)((hidden - begin) * size));
    }
}

/* The kernel, with the type as a constant in each of its loops. */
static void quantise(weft_dtype dtype, int64_t hidden, void *to, const void *row)
{
    if (dtype == WEFT_F16)
        quantise_row(WEFT_F16, hidden, to, row);
    else if (dtype == WEFT_BF16)
        quantise_row(WEFT_BF16, hidden, to, row);
    else
        quantise_row(WEFT_F32, hidden, to, row);
}

static void expand(weft_dtype dtype, int64_t hidden, void *row, const void *from)
{
    if (dtype == WEFT_F16)
        expand_row(WEFT_F16, hidden, row, from);
    else if (dtype == WEFT_BF16)
        expand_row(WEFT_BF16, hidden, row, from);
    else
        expand_row(WEFT_F32, hidden, row, from);
}

#endif
