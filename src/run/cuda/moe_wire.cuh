/*
 * Rows that travel as fp8: a code of e4m3 for each element, then, from `scales_at` on, a float32 scale for
 * every 128 of them. The arithmetic is that of src/moe/wire.c, to the bit.
 *
 * A thread has 16 elements at a time, and eight threads a block: codes leave in stores of 16 bytes, and so do
 * the scales of the four blocks that a warp has. Loads of 4 x 16 bytes are in flight a thread.
 */
#ifndef WEFT_RUN_CUDA_MOE_WIRE_CUH
#define WEFT_RUN_CUDA_MOE_WIRE_CUH

#include "moe_rows.cuh"

#include <cuda_fp8.h>

namespace
{

enum { UNIT = 16, BLOCK_UNITS = WEFT_CUDA_MOE_BLOCK / UNIT, WARP_BLOCKS = 32 / BLOCK_UNITS };

/* 16 elements of a row from `column` on, behind its end zeros. */
template <int DTYPE, bool WIDE>
__device__ __forceinline__ void load_unit(typename Type<DTYPE>::Stored (&x)[UNIT], const char *row,
                                          int64_t column, int64_t hidden)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { EACH = 16 / sizeof(Stored), WORDS = UNIT / EACH };
    const Stored *from = (const Stored *)row + column;
    if (WIDE) {
        uint4 word[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            word[i] = load_if(column + i * EACH < hidden, (const uint4 *)from + i);
        memcpy(x, word, sizeof(x));
    } else {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            x[i] = load_if(column + i < hidden, from + i);
    }
}

template <int DTYPE, bool WIDE>
__device__ __forceinline__ void store_unit(const typename Type<DTYPE>::Stored (&x)[UNIT], char *row,
                                           int64_t column, int64_t hidden)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { EACH = 16 / sizeof(Stored), WORDS = UNIT / EACH };
    Stored *to = (Stored *)row + column;
    if (WIDE) {
        uint4 word[WORDS];
        memcpy(word, x, sizeof(x));
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            if (column + i * EACH < hidden)
                ((uint4 *)to)[i] = word[i];
    } else {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            if (column + i < hidden)
                to[i] = x[i];
    }
}

/* The largest magnitude of a block, at each of its eight threads, by the order of bits: infinities and NaN
 * are beyond all numbers. */
template <int DTYPE>
__device__ __forceinline__ float largest_of(const typename Type<DTYPE>::Stored (&x)[UNIT])
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { WORDS = sizeof(x) / 4 };
    uint32_t word[WORDS], most = 0;
    memcpy(word, x, sizeof(word));
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        most = sizeof(Stored) == 2 ? __vmaxu2(most, word[i] & 0x7fff7fffu) : max(most, word[i] & 0x7fffffffu);
    if (sizeof(Stored) == 2)
        most = max(most & 0xffffu, most >> 16);
    Stored largest;
    memcpy(&largest, &most, sizeof(largest));
    most = max(__float_as_uint((float)Type<DTYPE>::widen(largest)),
               (127u - 100u) << 23); /* 2^-100, so that what divides 448 is finite */
#pragma unroll
    for (int other = 1; other < BLOCK_UNITS; other *= 2)
        most = max(most, __shfl_xor_sync(~0u, most, other));
    return __uint_as_float(most);
}

/* A row to several places; warps stay together. */
template <int DTYPE, bool WIDE>
__device__ __forceinline__ void push_fp8(char *const *to, int places, const char *row, int64_t hidden,
                                         int64_t scales_at)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { UNITS = WIDE ? DEPTH * 16 / (UNIT * (int)sizeof(Stored)) : 1 };
    int total = (int)(weft_divide_up(hidden, 32 * UNIT) * 32);
#pragma unroll 1
    for (int base = (int)threadIdx.x; base < total; base += THREADS * UNITS) {
        Stored x[UNITS][UNIT];
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            load_unit<DTYPE, WIDE>(x[u], row, (int64_t)(base + u * THREADS) * UNIT, hidden);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int64_t column = (int64_t)(base + u * THREADS) * UNIT;
            if (base + u * THREADS >= total)
                break;
            float largest = largest_of<DTYPE>(x[u]), inverse = __fdiv_rn(448.0f, largest),
                  scale = column < hidden ? __fdiv_rn(largest, 448.0f) : 0;
            float4 scales = {__shfl_sync(~0u, scale, 0), __shfl_sync(~0u, scale, BLOCK_UNITS),
                             __shfl_sync(~0u, scale, 2 * BLOCK_UNITS),
                             __shfl_sync(~0u, scale, 3 * BLOCK_UNITS)};
            unsigned short pairs[UNIT / 2];
            uint4 codes;
#pragma unroll
            for (int i = 0; i < UNIT / 2; i++)
                pairs[i] = __nv_cvt_float2_to_fp8x2(
                    make_float2((float)Type<DTYPE>::widen(x[u][2 * i]) * inverse,
                                (float)Type<DTYPE>::widen(x[u][2 * i + 1]) * inverse),
                    __NV_SATFINITE, __NV_E4M3);
            memcpy(&codes, pairs, sizeof(codes));
            int64_t block = (base + u * THREADS) / 32 * WARP_BLOCKS;
            for (int i = threadIdx.x % 32; i < places; i += 32)
                *(float4 *)(to[i] + scales_at + block * (int64_t)sizeof(float)) = scales;
#pragma unroll 1
            for (int i = 0; i < places && column < scales_at; i++)
                *(uint4 *)(to[i] + column) = codes;
        }
    }
}

template <int DTYPE, bool WIDE>
__device__ __forceinline__ void expand_fp8(char *row, const char *from, int64_t hidden, int64_t scales_at)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { UNITS = 2 };
#pragma unroll 1
    for (int64_t base = threadIdx.x; base * UNIT < hidden; base += THREADS * UNITS) {
        uint4 codes[UNITS];
        float scale[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int64_t column = (base + u * THREADS) * UNIT;
            codes[u] = load_if(column < hidden, (const uint4 *)(from + column));
            scale[u] =
                load_if(column < hidden, (const float *)(from + scales_at) + column / WEFT_CUDA_MOE_BLOCK);
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            unsigned short pairs[UNIT / 2];
            Stored x[UNIT];
            memcpy(pairs, &codes[u], sizeof(pairs));
#pragma unroll
            for (int i = 0; i < UNIT / 2; i++) {
                float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pairs[i], __NV_E4M3)));
                x[2 * i] = Type<DTYPE>::narrow(two.x * scale[u]);
                x[2 * i + 1] = Type<DTYPE>::narrow(two.y * scale[u]);
            }
            store_unit<DTYPE, WIDE>(x, row, (base + u * THREADS) * UNIT, hidden);
        }
    }
}

/* A token to the places where it is received. */
template <int DTYPE>
__device__ __forceinline__ void quantise_row(const weft_cuda_moe &p, char *const *to, int places,
                                             const char *row)
{
    if (((uintptr_t)row | (uintptr_t)p.row_bytes) % 16 == 0)
        push_fp8<DTYPE, true>(to, places, row, p.hidden, p.scales_at);
    else
        push_fp8<DTYPE, false>(to, places, row, p.hidden, p.scales_at);
}

template <int DTYPE>
__device__ __forceinline__ void expand_row(const weft_cuda_moe &p, char *row, const char *from)
{
    if (((uintptr_t)row | (uintptr_t)p.row_bytes) % 16 == 0)
        expand_fp8<DTYPE, true>(row, from, p.hidden, p.scales_at);
    else
        expand_fp8<DTYPE, false>(row, from, p.hidden, p.scales_at);
}

__device__ __forceinline__ void quantise_any(const weft_cuda_moe &p, char *const *to, int places,
                                             const char *row)
{
    if (p.dtype == WEFT_F16)
        quantise_row<WEFT_F16>(p, to, places, row);
    else if (p.dtype == WEFT_BF16)
        quantise_row<WEFT_BF16>(p, to, places, row);
    else
        quantise_row<WEFT_F32>(p, to, places, row);
}

__device__ __forceinline__ void expand_any(const weft_cuda_moe &p, char *row, const char *from)
{
    if (p.dtype == WEFT_F16)
        expand_row<WEFT_F16>(p, row, from);
    else if (p.dtype == WEFT_BF16)
        expand_row<WEFT_BF16>(p, row, from);
    else
        expand_row<WEFT_F32>(p, row, from);
}

} // namespace

#endif
