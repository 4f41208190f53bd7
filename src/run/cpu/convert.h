/*
 * Loads and stores of one element as float, written so that a compiler turns a loop over them into vector
 * code. `dtype` must be a constant at the place of use.
 */
#ifndef WEFT_RUN_CPU_CONVERT_H
#define WEFT_RUN_CPU_CONVERT_H

#include "core/dtype.h"

#include <string.h>

#define WEFT_INLINE static inline __attribute__((always_inline))

WEFT_INLINE float weft_load_bf16(uint16_t brain)
{
    uint32_t bits = (uint32_t)brain << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

WEFT_INLINE uint16_t weft_store_bf16(float value)
{
    uint32_t bits, rounded, quiet;

    memcpy(&bits, &value, sizeof(bits));
    rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#if defined(__aarch64__)
typedef __fp16 weft_half; /* storage only: conversions are single vector instructions */
#else
typedef uint16_t weft_half;
#endif

WEFT_INLINE float weft_load_half(weft_half half)
{
#if defined(__aarch64__)
    return (float)half;
#else
    return weft_f16_to_f32(half);
#endif
}

WEFT_INLINE weft_half weft_store_half(float value)
{
#if defined(__aarch64__)
    return (weft_half)value;
#else
    return weft_f32_to_f16(value);
#endif
}

WEFT_INLINE float weft_load(weft_dtype dtype, const void *base, int64_t index)
{
    switch (dtype) {
    case WEFT_F16:
        return weft_load_half(((const weft_half *)base)[index]);
    case WEFT_BF16:
        return weft_load_bf16(((const uint16_t *)base)[index]);
    default:
        return ((const float *)base)[index];
    }
}

WEFT_INLINE void weft_store(weft_dtype dtype, void *base, int64_t index, float value)
{
    switch (dtype) {
    case WEFT_F16:
        ((weft_half *)base)[index] = weft_store_half(value);
        break;
    case WEFT_BF16:
        ((uint16_t *)base)[index] = weft_store_bf16(value);
        break;
    default:
        ((float *)base)[index] = value;
        break;
    }
}

#endif
