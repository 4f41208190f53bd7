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

constexpr int EXCHANGE_WIDTH = WEFT_CUDA_EXCHANGE_WIDTH, UNIT_BYTES = WEFT_CUDA_UNIT_BYTES;
constexpr int UNITS_TOGETHER = 8; /* on their way to a thread at a time */

/* Of numbers that are not negative, with 1 / by: a division takes as long as ten of these. */
__device__ __forceinline__ int quotient(int number, int by, float inverse)
{
    int guess = (int)((float)number * inverse), rest = number - guess * by;
    return rest < 0 ? guess - 1 : rest >= by ? guess + 1 : guess;
}

/* Who adds up a row, and its first one: weft_part. */
__device__ __forceinline__ int owner_of(const weft_cuda_exchange &x, int row, int &first)
{
    int each = x.m_each, more = x.m_more, cut = more * (each + 1);
    int owner = row < cut ? quotient(row, each + 1, x.inverse_long)
                          : more + quotient(row - cut, each, x.inverse_each);
    first = owner * each + min(owner, more);
    return owner;
}

/* ---- units of four words ---------------------------------------------------------------------------------
 *
 * WIDTH elements are one unit, of float32 two: UNITS.
 */

/* Where a row's columns begin, in bytes. */
template <int UNITS>
__device__ __forceinline__ int64_t units_at(const weft_cuda_exchange &x, int row, int col)
{
    return ((int64_t)row * x.n + col) * (UNITS == 2 ? 4 : 2);
}

/* The same turned over again gives what it was. */
__device__ __forceinline__ uint32_t marked(uint32_t word)
{
    return word == ~0u ? 0x80008000u : ~word;
}

/* Each word by itself; partner: unit_get there. */
__device__ __forceinline__ void unit_put(char *to, const uint4 &x)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ uint4 unit_get(const char *from)
{
    uint4 x;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ bool has_come(const uint4 &x)
{
    return x.x && x.y && x.z && x.w;
}

template <int UNITS>
__device__ __forceinline__ void pack(const float (&v)[EXCHANGE_WIDTH], int dtype, uint4 (&units)[UNITS])
{
#pragma unroll
    for (int i = 0; i < UNITS; i++)
        if (UNITS == 2)
            units[i] = make_uint4(marked(__float_as_uint(v[4 * i % EXCHANGE_WIDTH])),
                                  marked(__float_as_uint(v[(4 * i + 1) % EXCHANGE_WIDTH])),
                                  marked(__float_as_uint(v[(4 * i + 2) % EXCHANGE_WIDTH])),
                                  marked(__float_as_uint(v[(4 * i + 3) % EXCHANGE_WIDTH])));
        else
            units[i] = make_uint4(marked(narrow2(v[0], v[1], dtype)), marked(narrow2(v[2], v[3], dtype)),
                                  marked(narrow2(v[4], v[5], dtype)), marked(narrow2(v[6], v[7], dtype)));
}

template <int UNITS>
__device__ __forceinline__ void unpack(const uint4 *units, int dtype, float (&v)[EXCHANGE_WIDTH])
{
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        uint32_t word[4] = {~units[i].x, ~units[i].y, ~units[i].z, ~units[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (UNITS == 2) {
                v[(4 * i + j) % EXCHANGE_WIDTH] = __uint_as_float(word[j]);
            } else {
                float2 two = widen2(word[j], dtype);
                v[2 * j] = two.x, v[2 * j + 1] = two.y;
            }
    }
}

template <int UNITS> __device__ __forceinline__ void put_units(char *to, const uint4 (&units)[UNITS])
{
#pragma unroll
    for (int i = 0; i < UNITS; i++)
        unit_put(to + i * UNIT_BYTES, units[i]);
}

/*
 * The units at `from`, NULL where there is none to take. All are asked for together until all are there: one
 * round trip after the last has come, whichever that is. Then there is room for those of the next run but
 * one. False when the run is given up; `who(i)`: the rank that sends unit i.
 */
template <class Who>
__device__ __forceinline__ bool take_units(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                           char *const (&from)[UNITS_TOGETHER],
                                           uint4 (&units)[UNITS_TOGETHER], Who who)
{
    while (true) {
        int missing = -1;
#pragma unroll
        for (int i = 0; i < UNITS_TOGETHER; i++)
            if (from[i])
                units[i] = unit_get(from[i]);
#pragma unroll
        for (int i = 0; i < UNITS_TOGETHER; i++)
            if (from[i] && !has_come(units[i]))
                missing = i;
        if (missing < 0)
            break;
        if (!keep_waiting(x, watch, who(missing), epoch - 1, epoch))
            return false;
    }
#pragma unroll
    for (int i = 0; i < UNITS_TOGETHER; i++)
        if (from[i])
            *(uint4 *)from[i] = make_uint4(0, 0, 0, 0);
    return true;
}

/* ---- sums ------------------------------------------------------------------------------------------------
 */

/* What WIDTH columns of a row are on the wire, to whoever adds them up. */
template <int UNITS>
__device__ __forceinline__ void send_units(const weft_cuda_exchange &x, uint64_t epoch, int row, int col,
                                           const uint4 (&units)[UNITS])
{
    int64_t parity = (int64_t)(epoch & 1) * x.inbox_bytes;
    if (x.scattered) {
        int first, owner = owner_of(x, row, first);
        put_units(x.to[owner] + parity + units_at<UNITS>(x, row - first, col), units);
        return;
    }
    int64_t at = parity + units_at<UNITS>(x, row, col);
#pragma unroll 1
    for (int step = 0; step < x.world; step++) {
        int r = x.rank + step < x.world ? x.rank + step : x.rank + step - x.world;
        put_units(x.to[r] + at, units);
    }
}

/* Raw sums of WIDTH columns. */
__device__ __forceinline__ void send_sums(const weft_cuda_exchange &x, uint64_t epoch, int row, int col,
                                          const float (&v)[EXCHANGE_WIDTH])
{
    if (x.wire == DTYPE_F32) {
        uint4 units[2];
        pack(v, x.wire, units);
        send_units(x, epoch, row, col, units);
    } else {
        uint4 units[1];
        pack(v, x.wire, units);
        send_units(x, epoch, row, col, units);
    }
}

/* The sum over all ranks, in their order. */
template <int UNITS>
__device__ __forceinline__ void sum_ranks(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch, int row,
                                          int col, float (&sum)[EXCHANGE_WIDTH])
{
    constexpr int RANKS = UNITS_TOGETHER / UNITS;
    char *mine = x.inbox + (int64_t)(epoch & 1) * x.inbox_bytes + units_at<UNITS>(x, row - x.row0, col);
#pragma unroll 1
    for (int r0 = 0; r0 < x.world; r0 += RANKS) {
        char *from[UNITS_TOGETHER];
        uint4 units[UNITS_TOGETHER];
#pragma unroll
        for (int i = 0; i < UNITS_TOGETHER; i++)
            from[i] = r0 + i / UNITS < x.world
                          ? mine + (r0 + i / UNITS) * x.row_bytes + i % UNITS * UNIT_BYTES
                          : NULL;
        if (!take_units(x, watch, epoch, from, units, [&](int i) { return r0 + i / UNITS; }))
            return;
#pragma unroll
        for (int j = 0; j < RANKS; j++) {
            float v[EXCHANGE_WIDTH];
            if (r0 + j >= x.world)
                break;
            unpack<UNITS>(units + j * UNITS, x.wire, v);
#pragma unroll
            for (int i = 0; i < EXCHANGE_WIDTH; i++)
                sum[i] = r0 + j ? sum[i] + v[i] : v[i];
        }
    }
}

/* The epilogue of a sum; `row` counts from D's first. */
__device__ __forceinline__ float finish_one(const weft_cuda_exchange &x, int row, int col, float v)
{
    v *= x.alpha;
    if (x.c)
        v = fmaf(x.beta, element_get(x.c, row * x.c_ld + col, x.dtype), v);
    if (x.bias)
        v += element_get(x.bias, col, x.dtype);
    return activate(v, x.act);
}

__device__ __forceinline__ void finish_sums(const weft_cuda_exchange &x, int row, int col,
                                            float (&v)[EXCHANGE_WIDTH])
{
#pragma unroll
    for (int i = 0; i < EXCHANGE_WIDTH; i++)
        v[i] = finish_one(x, row, col + i, v[i]);
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
        float4 *to = (float4 *)((float *)x.d + at);
        to[0] = make_float4(v[0], v[1], v[2], v[3]), to[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        uint4 packed = make_uint4(narrow2(v[0], v[1], x.dtype), narrow2(v[2], v[3], x.dtype),
                                  narrow2(v[4], v[5], x.dtype), narrow2(v[6], v[7], x.dtype));
        *(uint4 *)((uint16_t *)x.d + at) = packed;
    }
}

__device__ __forceinline__ bool owns(const weft_cuda_exchange &x, int row)
{
    return row >= x.row0 && row < x.row0 + x.rows;
}

template <int UNITS>
__device__ __forceinline__ void send_results(const weft_cuda_exchange &x, uint64_t epoch, int row, int col,
                                             const float (&v)[EXCHANGE_WIDTH])
{
    int64_t at = (int64_t)(epoch & 1) * x.results_bytes + units_at<UNITS>(x, row, col);
    uint4 units[UNITS];
    pack(v, x.dtype, units);
#pragma unroll 1
    for (int step = 1; step < x.world; step++) {
        int r = x.rank + step < x.world ? x.rank + step : x.rank + step - x.world;
        put_units(x.results[r] + at, units);
    }
}

/* Adds up WIDTH columns of a row that this rank owns, finishes them, and where owners do sends them on. */
__device__ __forceinline__ void receive_sums(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                             int row, int col)
{
    float sum[EXCHANGE_WIDTH];
    if (x.wire == DTYPE_F32)
        sum_ranks<2>(x, watch, epoch, row, col, sum);
    else
        sum_ranks<1>(x, watch, epoch, row, col, sum);
    if (watch.lost)
        return;
    if (x.changes)
        finish_sums(x, row - x.d_from_row, col, sum);
    if (x.returns && x.dtype == DTYPE_F32)
        send_results<2>(x, epoch, row, col, sum);
    else if (x.returns)
        send_results<1>(x, epoch, row, col, sum);
    store_wide(x, row - x.d_from_row, col, sum);
}

template <int UNITS, class Place>
__device__ __forceinline__ void receive_units(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                              int begin, int end, int step, Place place)
{
    constexpr int PLACES = UNITS_TOGETHER / UNITS;
    char *mine = x.results[x.rank] + (int64_t)(epoch & 1) * x.results_bytes;
#pragma unroll 1
    for (int base = begin; base < end && !watch.lost; base += PLACES * step) {
        char *from[UNITS_TOGETHER];
        uint4 units[UNITS_TOGETHER];
        int row[PLACES], col[PLACES];
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            bool here = base + j * step < end && place(base + j * step, row[j], col[j]);
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                from[j * UNITS + i] =
                    here ? mine + units_at<UNITS>(x, row[j], col[j]) + i * UNIT_BYTES : NULL;
        }
        auto owner = [&](int unit) {
            int at = base + unit / UNITS * step, r = 0, c = 0, first;
            place(at, r, c);
            return owner_of(x, r, first);
        };
        if (!take_units(x, watch, epoch, from, units, owner))
            return;
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            float v[EXCHANGE_WIDTH];
            if (!from[j * UNITS])
                continue;
            unpack<UNITS>(units + j * UNITS, x.dtype, v);
            store_wide(x, row[j], col[j], v);
        }
    }
}

/* Takes what others have finished: of begin, begin + step, ... up to end those for which place(at, row, col)
 * is true, WIDTH columns each. */
template <class Place>
__device__ __forceinline__ void receive_results(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                                int begin, int end, int step, Place place)
{
    if (x.dtype == DTYPE_F32)
        receive_units<2>(x, watch, epoch, begin, end, step, place);
    else
        receive_units<1>(x, watch, epoch, begin, end, step, place);
}

/* A run is so many shares, whatever its grid: one of every CTA, and the rest of the first. */
constexpr uint64_t RUN_SHARES = 1 << 24;

/* The number of this run: as many as have ended, and one. */
__device__ __forceinline__ uint64_t run_number(const weft_cuda_exchange &x)
{
    return *(volatile uint64_t *)&x.control->shares / RUN_SHARES + 1;
}

/* One thread of each CTA, at its end. Nobody waits for the sum: with the last CTA the run has been counted.
 */
__device__ __forceinline__ void count_run(const weft_cuda_exchange &x)
{
    uint64_t share = blockIdx.x ? 1 : RUN_SHARES - (gridDim.x - 1);
    atomicAdd((unsigned long long *)&x.control->shares, (unsigned long long)share);
}

} // namespace

#endif
