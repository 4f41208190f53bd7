/*
 * Walks plans of collectives: a lane is a CTA, tasks are COPY and REDUCE on rows of bytes. Waits and posts
 * are divided over the threads, since each costs a round trip. No dynamic shared memory: what else runs on an
 * SM keeps its own.
 *
 * Card: REDUCE has 2 x 4 loads of 16 bytes in flight a thread, COPY 8.
 */
#include "collective.h"
#include "order.cuh"
#include "reduce.cuh"

namespace
{

enum { THREADS = WEFT_CUDA_COLLECTIVE_THREADS, DEPTH = 2, SOURCES = 4, COPY_DEPTH = 8 };

/* ---- tasks ------------------------------------------------------------------------------------------- */

template <class Word> __device__ __forceinline__ void copy_words(char *to, const char *from, int64_t bytes)
{
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < total; base += THREADS * COPY_DEPTH) {
        Word x[COPY_DEPTH];
#pragma unroll
        for (int j = 0; j < COPY_DEPTH; j++)
            if (base + j * THREADS < total)
                x[j] = __ldcg((const Word *)from + base + j * THREADS);
#pragma unroll
        for (int j = 0; j < COPY_DEPTH; j++)
            if (base + j * THREADS < total)
                ((Word *)to)[base + j * THREADS] = x[j];
    }
    for (int64_t at = total * (int64_t)sizeof(Word) + threadIdx.x; at < bytes; at += THREADS)
        to[at] = __ldcg(from + at);
}

/* A row of bytes, by the widest words that both addresses allow. */
__device__ __forceinline__ void copy_row(char *to, const char *from, int64_t bytes)
{
    uintptr_t ends = (uintptr_t)to | (uintptr_t)from;
    if (to == from)
        return;
    if (ends % 16 == 0)
        copy_words<uint4>(to, from, bytes);
    else if (ends % 4 == 0)
        copy_words<uint32_t>(to, from, bytes);
    else if (ends % 2 == 0)
        copy_words<unsigned short>(to, from, bytes);
    else
        copy_words<unsigned char>(to, from, bytes);
}

template <int DTYPE, bool SUM_ONLY>
__device__ __forceinline__ void reduce_elements(const weft_cuda_task &t, const weft_cuda_view *v,
                                                int reduction, int64_t begin, int64_t end)
{
    typedef typename Type<DTYPE>::Stored Stored;
#pragma unroll 1
    for (int64_t at = begin + threadIdx.x; at < end; at += THREADS) {
        Elements<DTYPE, Stored> sum;
        sum.start(((const Stored *)v[t.destinations].ptr)[at]);
#pragma unroll 1
        for (int s = 1; s < t.sources; s++)
            sum.template with<SUM_ONLY>(reduction, ((const Stored *)v[t.destinations + s].ptr)[at]);
#pragma unroll 1
        for (int d = 0; d < t.destinations; d++)
            ((Stored *)v[d].ptr)[at] = sum.word();
    }
}

/* Words [0, total) of rows that begin `skip` elements into the views. */
template <int DTYPE, bool SUM_ONLY>
__device__ __forceinline__ void reduce_words(const weft_cuda_task &t, const weft_cuda_view *v, int reduction,
                                             int64_t skip, int64_t total)
{
    typedef Elements<DTYPE, uint4> Sum;
    const weft_cuda_view *sources = v + t.destinations;
    int64_t offset = skip * (int64_t)sizeof(typename Type<DTYPE>::Stored);
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < total; base += THREADS * DEPTH) {
        Sum sum[DEPTH];
#pragma unroll 1
        for (int s0 = 0; s0 < t.sources; s0 += SOURCES) {
            uint4 x[SOURCES][DEPTH];
#pragma unroll
            for (int s = 0; s < SOURCES; s++) {
                const uint4 *from =
                    (const uint4 *)((const char *)sources[min(s0 + s, t.sources - 1)].ptr + offset);
#pragma unroll
                for (int j = 0; j < DEPTH; j++)
                    if (s0 + s < t.sources && base + j * THREADS < total)
                        x[s][j] = __ldcg(from + base + j * THREADS);
            }
#pragma unroll
            for (int s = 0; s < SOURCES; s++)
#pragma unroll
                for (int j = 0; j < DEPTH; j++) {
                    if (s0 + s == 0)
                        sum[j].start(x[s][j]);
                    else if (s0 + s < t.sources)
                        sum[j].template with<SUM_ONLY>(reduction, x[s][j]);
                }
        }
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            if (base + j * THREADS >= total)
                break;
            uint4 word = sum[j].word();
#pragma unroll 1
            for (int d = 0; d < t.destinations; d++)
                ((uint4 *)((char *)v[d].ptr + offset))[base + j * THREADS] = word;
        }
    }
}

/* WIDE: all rows are equally far from the next 16 bytes. */
template <int DTYPE, bool SUM_ONLY>
__device__ __forceinline__ void reduce_row(const weft_cuda_task &t, const weft_cuda_view *v, int reduction)
{
    enum { SIZE = sizeof(typename Type<DTYPE>::Stored), PER_WORD = 16 / SIZE };
    if (!(t.flags & WEFT_CUDA_WIDE)) {
        reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, t.cols);
        return;
    }
    int64_t head = (16 - (int64_t)((uintptr_t)v[0].ptr % 16)) % 16 / SIZE;
    head = head < t.cols ? head : t.cols;
    int64_t words = (t.cols - head) / PER_WORD;
    reduce_words<DTYPE, SUM_ONLY>(t, v, reduction, head, words);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, head);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, head + words * PER_WORD, t.cols);
}

template <int DTYPE>
__device__ __forceinline__ void reduce(const weft_cuda_task &t, const weft_cuda_view *v, int reduction)
{
    if (reduction == WEFT_SUM)
        reduce_row<DTYPE, true>(t, v, reduction);
    else
        reduce_row<DTYPE, false>(t, v, reduction);
}

/* ---- order ------------------------------------------------------------------------------------------- */

/* A thread for each wait, then a barrier hands their order on. False when the run is given up. */
__device__ __forceinline__ bool wait_together(const weft_cuda_args &g, uint32_t wait0, uint32_t count,
                                              uint32_t plan_task, uint64_t run)
{
    bool lost = false;
    for (uint32_t i = threadIdx.x; i < count && !lost; i += THREADS)
        lost = !wait_for(g, g.waits[wait0 + i], plan_task, run);
    return !__syncthreads_or(lost);
}

/* enter_run of order.cuh, a thread for each peer. */
__device__ __forceinline__ bool enter_together(const weft_cuda_args &g, uint64_t run)
{
    bool lost = !wait_together(g, g.enter_wait0, g.enter_waits, 0, run);
    for (uint32_t i = threadIdx.x; i < g.enter_posts && !lost; i += THREADS) {
        uint64_t *post = g.posts[g.enter_post0 + i];
        post[1 + run % 2] = g.meeting;
        add_release(post);
    }
    for (int r = threadIdx.x; r < g.world && !lost; r += THREADS) {
        weft_cuda_wait enter = {g.signals + r * WEFT_CUDA_LINE_WORDS, 1, 1, (uint32_t)r};
        if (r == g.rank)
            continue;
        lost = !wait_for(g, enter, 0, run);
        uint64_t theirs = lost ? g.meeting : load_acquire(enter.signal + 1 + run % 2);
        if (theirs != g.meeting) {
            give_up(g, (uint32_t)r, WEFT_CUDA_OTHER_MEETING, run, theirs, g.meeting);
            lost = true;
        }
    }
    lost = __syncthreads_or(lost);
    if (threadIdx.x == 0 && !lost)
        atomicExch(&g.control->entered, (uint32_t)run + 1); /* partner: the load in wait_for */
    return !lost;
}

template <int DTYPE>
__device__ __forceinline__ bool run_task(const weft_cuda_args &g, int reduction, const weft_cuda_task &t,
                                         uint64_t run)
{
    const weft_cuda_view *v = &g.views[t.view0];
    if (!wait_together(g, t.wait0, t.wait_count, t.plan_task, run))
        return false;
    if (threadIdx.x == 0 && t.wait_count)
        trace_ready(g, t.plan_task);
    if (t.kind == WEFT_CUDA_REDUCE)
        reduce<DTYPE>(t, v, reduction);
    else if (t.rows > 0)
        copy_row((char *)t.copy_to, (const char *)t.copy_from, t.copy_bytes);
    __syncthreads();
    if (t.due_ns) {
        if (threadIdx.x == 0)
            link_hold(g, t);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < t.post_count; i += THREADS)
        add_release(
            g.posts[t.post0 + i]); /* partner: wait_for; the barrier before brought the others' stores */
    if (threadIdx.x == 0)
        trace_done(g, t.plan_task);
    return true;
}

template <int DTYPE> __device__ __forceinline__ void walk(const weft_cuda_args &g, int reduction)
{
    weft_cuda_lane lane = g.lanes[blockIdx.x];
    uint64_t run = g.control->run;
    bool goes_on = true;
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0 && g.trace)
            g.trace[2 * g.trace_tasks] = now_ns();
        goes_on = enter_together(g, run);
    }
    for (uint32_t i = 0; i < lane.task_count && goes_on; i++)
        goes_on = run_task<DTYPE>(g, reduction, g.tasks[lane.task0 + i], run);
    if (blockIdx.x == 0 && goes_on) {
        wait_together(g, g.exit_wait0, g.exit_waits, ~0u, run);
        if (threadIdx.x == 0)
            trace_done(g, g.trace_tasks);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        finish(g);
}

} // namespace

/* By what is reduced, so that a kernel has the registers of one type; movement takes any. */
#define WEFT_COLLECTIVE(name, dtype)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                 \
        weft_collective_##name(const __grid_constant__ weft_cuda_args g, int reduction)                      \
    {                                                                                                        \
        walk<dtype>(g, reduction);                                                                           \
    }

WEFT_COLLECTIVE(f32, WEFT_F32)
WEFT_COLLECTIVE(f16, WEFT_F16)
WEFT_COLLECTIVE(bf16, WEFT_BF16)
WEFT_COLLECTIVE(i32, WEFT_I32)
WEFT_COLLECTIVE(i64, WEFT_I64)
