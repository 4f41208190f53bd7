/*
 * The device's side of exchange.h: WIDTH columns of a row at a time.
 */
#ifndef WEFT_RUN_CUDA_EXCHANGE_CUH
#define WEFT_RUN_CUDA_EXCHANGE_CUH

#include "exchange.h"
#include "packet.cuh"
#include "plain.cuh"

namespace
{

constexpr int EXCHANGE_WIDTH = WEFT_CUDA_EXCHANGE_WIDTH, PACKET_BYTES = 16;
constexpr int EXCHANGE_TOGETHER = 4; /* ranks whose packets are on their way at a time */

/* Who adds up a row, and its first one: weft_part. */
__device__ __forceinline__ int owner_of(const weft_cuda_exchange &x, int row, int &first)
{
    int each = x.m / x.world, more = x.m % x.world, cut = more * (each + 1);
    int owner = row < cut ? row / (each + 1) : more + (row - cut) / each;
    first = owner * each + min(owner, more);
    return owner;
}

/* Where the packets of a row's columns begin, in bytes: 4 or 2 elements a packet. */
__device__ __forceinline__ int64_t packet_at(const weft_cuda_exchange &x, int row, int col, int dtype)
{
    return ((int64_t)row * x.n + col) / (dtype == DTYPE_F32 ? 2 : 4) * PACKET_BYTES;
}

__device__ __forceinline__ uint64_t pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* WIDTH elements as packets. */
__device__ __forceinline__ void put_wide(char *to, const float (&v)[EXCHANGE_WIDTH], int dtype,
                                         uint64_t epoch)
{
    if (dtype == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            packet_put(to + i * PACKET_BYTES, pair(__float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1])),
                       epoch);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++)
            packet_put(
                to + i * PACKET_BYTES,
                pair(narrow2(v[4 * i], v[4 * i + 1], dtype), narrow2(v[4 * i + 2], v[4 * i + 3], dtype)),
                epoch);
    }
}

/* Raw sums, to whoever adds them up. */
__device__ __forceinline__ void send_sums(const weft_cuda_exchange &x, uint64_t epoch, int row, int col,
                                          const float (&v)[EXCHANGE_WIDTH])
{
    int64_t parity = (int64_t)(epoch & 1) * x.inbox_bytes;
    if (x.scattered) {
        int first, owner = owner_of(x, row, first);
        put_wide(x.to[owner] + parity + packet_at(x, row - first, col, x.wire), v, x.wire, epoch);
        return;
    }
    int64_t at = parity + packet_at(x, row, col, x.wire);
#pragma unroll 1
    for (int step = 0; step < x.world; step++) {
        int r = x.rank + step < x.world ? x.rank + step : x.rank + step - x.world;
        put_wide(x.to[r] + at, v, x.wire, epoch);
    }
}

/* WIDTH elements of the packets at `from`, once they are there; `first` the first look at them. PACKETS of
 * them, so that a type's are in registers. */
template <int PACKETS>
__device__ __forceinline__ void take_wide(const weft_cuda_exchange &x, Watch &watch, const char *from,
                                          const Packet (&first)[PACKETS], int rank, uint64_t epoch, int dtype,
                                          float (&v)[EXCHANGE_WIDTH])
{
#pragma unroll
    for (int i = 0; i < PACKETS; i++) {
        uint64_t word = packet_await(x, watch, from + i * PACKET_BYTES, first[i], rank, epoch);
        if (PACKETS == 4) {
            v[2 * i] = __uint_as_float((uint32_t)word);
            v[2 * i + 1] = __uint_as_float((uint32_t)(word >> 32));
        } else {
            float2 low = widen2((uint32_t)word, dtype), high = widen2((uint32_t)(word >> 32), dtype);
            v[4 * i % EXCHANGE_WIDTH] = low.x, v[(4 * i + 1) % EXCHANGE_WIDTH] = low.y;
            v[(4 * i + 2) % EXCHANGE_WIDTH] = high.x, v[(4 * i + 3) % EXCHANGE_WIDTH] = high.y;
        }
    }
}

template <int PACKETS> __device__ __forceinline__ void look_wide(const char *from, Packet (&first)[PACKETS])
{
#pragma unroll
    for (int i = 0; i < PACKETS; i++)
        first[i] = packet_get(from + i * PACKET_BYTES);
}

/* The sum over all ranks, in their order. */
template <int PACKETS>
__device__ __forceinline__ void sum_ranks(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch, int row,
                                          int col, float (&sum)[EXCHANGE_WIDTH])
{
    const char *from =
        x.inbox + (int64_t)(epoch & 1) * x.inbox_bytes + packet_at(x, row - x.row0, col, x.wire);
#pragma unroll 1
    for (int r0 = 0; r0 < x.world && !watch.lost; r0 += EXCHANGE_TOGETHER) {
        Packet first[EXCHANGE_TOGETHER][PACKETS];
#pragma unroll
        for (int j = 0; j < EXCHANGE_TOGETHER; j++) /* where there is none to look for, it is not used */
            look_wide(from + min(r0 + j, x.world - 1) * x.row_bytes, first[j]);
#pragma unroll
        for (int j = 0; j < EXCHANGE_TOGETHER; j++) {
            float v[EXCHANGE_WIDTH];
            if (r0 + j >= x.world)
                break;
            take_wide(x, watch, from + (r0 + j) * x.row_bytes, first[j], r0 + j, epoch, x.wire, v);
#pragma unroll
            for (int i = 0; i < EXCHANGE_WIDTH; i++)
                sum[i] = r0 + j ? sum[i] + v[i] : v[i];
        }
    }
}

/* The epilogue of WIDTH sums; `row` counts from D's first. */
__device__ __forceinline__ void finish_sums(const weft_cuda_exchange &x, int row, int col,
                                            float (&v)[EXCHANGE_WIDTH])
{
#pragma unroll
    for (int i = 0; i < EXCHANGE_WIDTH; i++) {
        v[i] *= x.alpha;
        if (x.c)
            v[i] = fmaf(x.beta, element_get(x.c, row * x.c_ld + col + i, x.dtype), v[i]);
        if (x.bias)
            v[i] += element_get(x.bias, col + i, x.dtype);
        v[i] = activate(v[i], x.act);
    }
}

__device__ __forceinline__ void store_wide(const weft_cuda_exchange &x, int row, int col,
                                           const float (&v)[EXCHANGE_WIDTH])
{
    int64_t at = row * x.d_ld + col;
    if (!x.wide) {
#pragma unroll
        for (int i = 0; i < EXCHANGE_WIDTH; i++)
            element_set(x.d, at + i, v[i], x.dtype);
    } else if (x.dtype == DTYPE_F32) {
        ((float4 *)((float *)x.d + at))[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)((float *)x.d + at))[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        *(uint4 *)((uint16_t *)x.d + at) =
            make_uint4(narrow2(v[0], v[1], x.dtype), narrow2(v[2], v[3], x.dtype),
                       narrow2(v[4], v[5], x.dtype), narrow2(v[6], v[7], x.dtype));
    }
}

__device__ __forceinline__ bool owns(const weft_cuda_exchange &x, int row)
{
    return row >= x.row0 && row < x.row0 + x.rows;
}

/* Adds up WIDTH columns of a row that this rank owns, finishes them, and where owners do sends them on. */
__device__ __forceinline__ void receive_sums(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                             int row, int col)
{
    float sum[EXCHANGE_WIDTH];
    if (x.wire == DTYPE_F32)
        sum_ranks<4>(x, watch, epoch, row, col, sum);
    else
        sum_ranks<2>(x, watch, epoch, row, col, sum);
    if (watch.lost)
        return;
    if (x.changes)
        finish_sums(x, row - x.d_from_row, col, sum);
    int64_t at = (int64_t)(epoch & 1) * x.results_bytes + packet_at(x, row, col, x.dtype);
#pragma unroll 1
    for (int step = 1; step < x.world && x.returns; step++) {
        int r = x.rank + step < x.world ? x.rank + step : x.rank + step - x.world;
        put_wide(x.results[r] + at, sum, x.dtype, epoch);
    }
    store_wide(x, row - x.d_from_row, col, sum);
}

/* Takes WIDTH columns of a row that another rank has finished. */
__device__ __forceinline__ void receive_results(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                                int row, int col)
{
    float v[EXCHANGE_WIDTH];
    const char *from =
        x.results[x.rank] + (int64_t)(epoch & 1) * x.results_bytes + packet_at(x, row, col, x.dtype);
    int unused, owner = owner_of(x, row, unused);
    if (x.dtype == DTYPE_F32) {
        Packet first[4];
        look_wide(from, first);
        take_wide(x, watch, from, first, owner, epoch, x.dtype, v);
    } else {
        Packet first[2];
        look_wide(from, first);
        take_wide(x, watch, from, first, owner, epoch, x.dtype, v);
    }
    if (!watch.lost)
        store_wide(x, row, col, v);
}

/* One thread of each CTA, at its end: the last one counts the run, and is told. Every CTA has read its number
 * before. */
__device__ __forceinline__ bool count_run(const weft_cuda_exchange &x)
{
    if (atomicAdd(&x.control->finished, 1u) != gridDim.x - 1)
        return false;
    x.control->finished = 0;
    x.control->run++;
    return true;
}

} // namespace

#endif
