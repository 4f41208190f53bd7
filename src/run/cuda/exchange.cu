/*
 * Sums of a product as marked words, behind the kernel that multiplies: see exchange.h. Where that one has
 * sent them, this needs to wait for nothing else, and comes in while it runs; where it could not (cuBLASLt
 * made the product), they are sent from memory first.
 *
 * Card: 256 threads, no shared memory; 8 columns a thread, those of 8 ranks (of float32 4) in flight
 * together.
 */
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
    unsigned long long began = link_began(x.link), due = began + (unsigned long long)x.link_ns;
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
        __nanosleep((unsigned)min(x.link_ns, (int64_t)1000000));
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

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    weft_exchange(const __grid_constant__ weft_cuda_exchange x)
{
    exchange<false>(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weft_exchange_link(const __grid_constant__ weft_cuda_exchange x)
{
    exchange<true>(x);
}
