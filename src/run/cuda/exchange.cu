/*
 * Sums of a product as marked words, behind the kernel that multiplies: see exchange.h. Where that one has
 * sent them, this needs to wait for nothing else, and comes in while it runs; where it could not (cuBLASLt
 * made the product), they are sent from memory first.
 *
 * Card: weft_exchange does any of it: 256 threads, no shared memory; 8 columns a thread, those of 8 ranks (of
 * float32 4) in flight together. weft_exchange_bf16 and _f16 are for sums and a D of that type that a kernel
 * before them sends: 256 or 512 threads, at most 64 registers; a warp has the same 64 columns of 8 ranks, 8
 * threads those of two of them, so that a thread waits for two loads and a warp for 1 KiB.
 */
#include "core/round.h"
#include "early.cuh"
#include "emulate.cuh"
#include "exchange.cuh"

namespace
{

constexpr int THREADS = WEFT_CUDA_EXCHANGE_THREADS;

__device__ __forceinline__ void send_all(const weft_cuda_exchange &x, uint64_t epoch, int across, int begin,
                                         int step)
{
#pragma unroll 1
    for (int at = begin; at < x.m * across; at += step) {
        int row = at / across, col = at % across * EXCHANGE_WIDTH;
        float v[EXCHANGE_WIDTH];
#pragma unroll
        for (int i = 0; i < EXCHANGE_WIDTH; i += 4) {
            float4 y = load4(x.sums, row * x.sums_ld + col + i, x.wire);
            v[i] = y.x, v[i + 1] = y.y, v[i + 2] = y.z, v[i + 3] = y.w;
        }
        send_sums(x, epoch, row, col, v);
    }
}

/* For measurements: nothing is there before the link would have delivered all of it. */
__device__ __forceinline__ void hold(const weft_cuda_exchange &x)
{
    unsigned long long began = link_began(x.link), due = began + (unsigned long long)x.link->exchange_ns;
    link_wait(due);
    atomicMin((unsigned long long *)&x.link->first, began * 8);
    atomicMax((unsigned long long *)&x.link->free, (due - x.link->latency_ns) * 8);
}

template <bool LINK> __device__ __forceinline__ void exchange(const weft_cuda_exchange &x)
{
    int across = x.n / EXCHANGE_WIDTH, begin = (int)(blockIdx.x * THREADS + threadIdx.x),
        step = (int)(gridDim.x * THREADS);
    Watch watch = {0, 0, false};
    if (x.sums)
        wait_for_stream();
    else
        let_next_in(); /* of this run's product all CTAs are here */
    /* the kernel before this one began after the last run was counted */
    uint64_t epoch = run_number(x);
    if (x.sums)
        send_all(x, epoch, across, begin, step);
    if (LINK)
        hold(x);
#pragma unroll 1
    for (int at = begin; at < x.rows * across && !watch.lost; at += step)
        receive_sums(x, watch, epoch, x.row0 + at / across, at % across * EXCHANGE_WIDTH);
    if (LINK && x.returns) /* the same once more: as many bytes */
        __nanosleep((unsigned)min(x.link->exchange_ns, (int64_t)1000000));
    if (x.returns)
        receive_results(x, watch, epoch, begin, (x.m - x.rows) * across, step,
                        [&](int at, int &row, int &col) {
                            row = at / across, col = at % across * EXCHANGE_WIDTH;
                            row += row < x.row0 ? 0 : x.rows;
                            return true;
                        });
    if (!x.sums)
        wait_for_stream(); /* what follows may rely on the product's kernel having ended */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0) {
        count_run(x);
        if (LINK && atomicAdd(&x.control->finished, 1u) == gridDim.x - 1) {
            x.control->finished = 0;
            link_finish(x.link);
        }
    }
}

/* ---- 16 bits, sent by the kernel before: a warp at a time ---------------------------------------------
 *
 * A line is the units of 8 threads, side by side in an inbox: rows lie there without gaps, so it may go on in
 * the next one. What a thread has of a rank is one unit, four words. */

constexpr int WARP = 32, LINE = WEFT_CUDA_EXCHANGE_LINE, GROUPS = WARP / LINE,
              TOGETHER = WEFT_CUDA_EXCHANGE_TOGETHER,
              HELD = TOGETHER / GROUPS; /* ranks' units, or other lines', of a thread */

__device__ __forceinline__ int lines_of(int units)
{
    return weft_divide_up(units, LINE);
}

__device__ __forceinline__ int group()
{
    return (int)threadIdx.x % WARP / LINE;
}

/* Word i becomes word i ^ group(): so each group has what is for itself first, or from itself. */
__device__ __forceinline__ void turn(uint32_t (&word)[GROUPS])
{
    bool odd = group() & 1, upper = group() & 2;
    uint32_t x[GROUPS] = {odd ? word[1] : word[0], odd ? word[0] : word[1], odd ? word[3] : word[2],
                          odd ? word[2] : word[3]};
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        word[i] = upper ? x[i ^ 2] : x[i];
}

/* The units at `from`, of the whole warp, NULL where there is none to take: as take_units. */
template <class Who>
__device__ __forceinline__ bool take_lines(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                           char *const (&from)[HELD], uint4 (&units)[HELD], Who who)
{
    while (true) {
        int missing = -1;
#pragma unroll
        for (int j = 0; j < HELD; j++)
            units[j] = from[j] ? unit_get(from[j]) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < HELD; j++)
            if (from[j] && !has_come(units[j]))
                missing = j;
        if (!__any_sync(~0u, missing >= 0))
            break;
        if (missing >= 0)
            keep_waiting(x, watch, who(missing), epoch - 1, epoch);
        watch.lost = __any_sync(~0u, watch.lost);
        if (watch.lost)
            return false;
    }
#pragma unroll
    for (int j = 0; j < HELD; j++)
        if (from[j])
            *(uint4 *)from[j] = make_uint4(0, 0, 0, 0);
    return true;
}

/* Called, lest code that is rare be fetched with that around it. */
__device__ __noinline__ float2 finish_two(const weft_cuda_exchange &x, int row, int col, float2 v)
{
    return make_float2(finish_one(x, row, col, v.x), finish_one(x, row, col + 1, v.y));
}

__device__ __forceinline__ void store_unit(const weft_cuda_exchange &x, int row, int col, const uint4 &unit)
{
    *(uint4 *)((uint16_t *)x.d + (row - x.d_from_row) * x.d_ld + col) = unit;
}

__device__ __forceinline__ uint4 turned_over(const uint4 &x)
{
    return make_uint4(~x.x, ~x.y, ~x.z, ~x.w);
}

/* What all ranks have of unit `at` of this rank's rows, in their order: each group adds up two of its
 * columns; then, where owners do, on to all. `here`: false behind the last unit. */
template <int DTYPE>
__device__ __forceinline__ void add_up_line(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                            int across, int at, bool here)
{
    char *mine = x.inbox + (int64_t)(epoch & 1) * x.inbox_bytes + (int64_t)at * UNIT_BYTES;
    int row = x.row0 + at / across, col = at % across * EXCHANGE_WIDTH;
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int r0 = 0; r0 < x.world; r0 += TOGETHER) {
        int first = r0 + group() * HELD;
        char *from[HELD];
        uint4 units[HELD];
        uint32_t word[HELD][GROUPS];
#pragma unroll
        for (int j = 0; j < HELD; j++)
            from[j] = here && first + j < x.world ? mine + (first + j) * x.row_bytes : NULL;
        if (!take_lines(x, watch, epoch, from, units, [&](int j) { return first + j; }))
            return;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            word[j][0] = units[j].x, word[j][1] = units[j].y, word[j][2] = units[j].z,
            word[j][3] = units[j].w;
            turn(word[j]);
#pragma unroll
            for (int i = 1; i < GROUPS; i++)
                word[j][i] = __shfl_xor_sync(~0u, word[j][i], i * LINE);
            turn(word[j]);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            float2 v = widen2(~word[i % HELD][i / HELD], DTYPE);
            if (i == 0 && r0 == 0)
                sum = v;
            else if (r0 + i < x.world)
                sum.x += v.x, sum.y += v.y;
        }
    }
    if (x.changes && here)
        sum = finish_two(x, row - x.d_from_row, col + 2 * group(), sum);
    uint32_t all[GROUPS] = {narrow2(sum.x, sum.y, DTYPE)};
#pragma unroll
    for (int i = 1; i < GROUPS; i++)
        all[i] = __shfl_xor_sync(~0u, all[0], i * LINE);
    turn(all);
    uint4 unit = make_uint4(marked(all[0]), marked(all[1]), marked(all[2]), marked(all[3]));
    int64_t there = (int64_t)(epoch & 1) * x.results_bytes + ((int64_t)x.row0 * across + at) * UNIT_BYTES;
#pragma unroll 1
    for (int r0 = 0; r0 < x.world && x.returns; r0 += TOGETHER)
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            int r = r0 + group() * HELD + j;
            if (here && r < x.world && r != x.rank)
                unit_put(x.results[r] + there, unit);
        }
    if (here && group() == 0)
        store_unit(x, row, col, make_uint4(all[0], all[1], all[2], all[3]));
}

/* What others have finished: of all but this rank's rows the lines from `first` on, two a group. */
__device__ __forceinline__ void take_results(const weft_cuda_exchange &x, Watch &watch, uint64_t epoch,
                                             int across, int first)
{
    char *mine = x.results[x.rank] + (int64_t)(epoch & 1) * x.results_bytes, *from[HELD];
    int begin = x.row0 * across, own = x.rows * across, total = x.m * across - own, at[HELD];
    uint4 units[HELD];
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        at[j] = (first + group() * HELD + j) * LINE + (int)threadIdx.x % LINE;
        bool has = at[j] < total;
        at[j] += at[j] < begin ? 0 : own;
        from[j] = has ? mine + (int64_t)at[j] * UNIT_BYTES : NULL;
    }
    auto owner = [&](int j) {
        int unused;
        return owner_of(x, at[j] / across, unused);
    };
    if (!take_lines(x, watch, epoch, from, units, owner))
        return;
#pragma unroll
    for (int j = 0; j < HELD; j++)
        if (from[j])
            store_unit(x, at[j] / across, at[j] % across * EXCHANGE_WIDTH, turned_over(units[j]));
}

template <int DTYPE> __device__ __forceinline__ void exchange_lines(const weft_cuda_exchange &x)
{
    int across = x.n / EXCHANGE_WIDTH, units = x.rows * across, lines = lines_of(units),
        others = x.returns ? lines_of(x.m * across - units) : 0,
        warp = (int)(blockIdx.x * blockDim.x + threadIdx.x) / WARP,
        warps = (int)(gridDim.x * blockDim.x) / WARP;
    Watch watch = {0, 0, false};
    let_next_in(); /* of this run's product all CTAs are here */
    /* the kernel before this one began after the last run was counted */
    uint64_t epoch = run_number(x);
#pragma unroll 1
    for (int line = warp; line < lines && !watch.lost; line += warps) {
        int at = line * LINE + (int)threadIdx.x % LINE;
        add_up_line<DTYPE>(x, watch, epoch, across, at, at < units);
    }
#pragma unroll 1
    for (int line = warp * TOGETHER; line < others && !watch.lost; line += warps * TOGETHER)
        take_results(x, watch, epoch, across, line);
    wait_for_stream(); /* what follows may rely on the product's kernel having ended */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0)
        count_run(x);
}

} // namespace

#ifndef WEFT_LINK
extern "C" __global__ void __launch_bounds__(2 * THREADS, 2)
    weft_exchange_bf16(const __grid_constant__ weft_cuda_exchange x)
{
    exchange_lines<DTYPE_BF16>(x);
}

extern "C" __global__ void __launch_bounds__(2 * THREADS, 2)
    weft_exchange_f16(const __grid_constant__ weft_cuda_exchange x)
{
    exchange_lines<DTYPE_F16>(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weft_exchange(const __grid_constant__ weft_cuda_exchange x)
{
    exchange<false>(x);
}
#else /* see emulate.h */
extern "C" __global__ void __launch_bounds__(THREADS)
    weft_exchange_link(const __grid_constant__ weft_cuda_exchange x)
{
    exchange<true>(x);
}
#endif
