/*
 * Walks plans of collectives: a lane is a CTA, tasks are COPY and REDUCE on rows of bytes, with at most as
 * many waits, posts and regions as a CTA has threads. What a task needs is loaded while the one before it
 * runs.
 *
 * Card: 256 threads, at most 128 registers, 2 KiB of shared memory: two CTAs fit an SM. REDUCE has 8 loads of
 * 16 bytes in flight a thread, COPY too.
 */
#include "collective.h"
#include "early.cuh"
#include "order.cuh"
#include "reduce.cuh"

namespace
{

enum { THREADS = WEFT_CUDA_COLLECTIVE_THREADS, DEPTH = 4, COPY_DEPTH = 8 };

/* A task as a thread needs it, loaded ahead: its own wait, post and view of the first THREADS of each. */
struct Fetched {
    uint32_t kind, flags, destinations, sources, wait_count, post_count, plan_task;
    int32_t rows, cols, copy_bytes;
    char *to;
    const char *from;
    weft_cuda_wait wait;
    uint64_t *post;
    char *view;
};

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
__device__ __forceinline__ void reduce_elements(const Fetched &t, char *const *v, int reduction,
                                                int64_t begin, int64_t end)
{
    typedef typename Type<DTYPE>::Stored Stored;
#pragma unroll 1
    for (int64_t at = begin + threadIdx.x; at < end; at += THREADS) {
        Elements<DTYPE, Stored> sum;
        sum.start(((const Stored *)v[t.destinations])[at]);
#pragma unroll 1
        for (int s = 1; s < (int)t.sources; s++)
            sum.template with<SUM_ONLY>(reduction, ((const Stored *)v[t.destinations + s])[at]);
        if (!SUM_ONLY)
            sum.end(reduction, (int)t.sources);
#pragma unroll 1
        for (int d = 0; d < (int)t.destinations; d++)
            ((Stored *)v[d])[at] = sum.word();
    }
}

template <int DEPTH> __device__ __forceinline__ void load_words(uint4 x[DEPTH], const char *row, int at)
{
#pragma unroll
    for (int j = 0; j < DEPTH; j++)
        x[j] = __ldcg((const uint4 *)row + at + j * THREADS);
}

/* DEPTH words of all rows, `offset` bytes into them: the next source's are on their way while one's are
 * added. */
template <int DTYPE, bool SUM_ONLY, int DEPTH>
__device__ __forceinline__ void reduce_words(const Fetched &t, char *const *v, int reduction, int offset,
                                             int at)
{
    Elements<DTYPE, uint4> sum[DEPTH];
    uint4 x[DEPTH], ahead[DEPTH];
    load_words<DEPTH>(x, v[t.destinations] + offset, at);
    if (t.sources > 1)
        load_words<DEPTH>(ahead, v[t.destinations + 1] + offset, at);
#pragma unroll
    for (int j = 0; j < DEPTH; j++)
        sum[j].start(x[j]);
#pragma unroll 1
    for (int s = 1; s < (int)t.sources; s++) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            x[j] = ahead[j];
        if (s + 1 < (int)t.sources)
            load_words<DEPTH>(ahead, v[t.destinations + s + 1] + offset, at);
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            sum[j].template with<SUM_ONLY>(reduction, x[j]);
    }
#pragma unroll
    for (int j = 0; j < DEPTH; j++) {
        if (!SUM_ONLY)
            sum[j].end(reduction, (int)t.sources);
        uint4 word = sum[j].word();
#pragma unroll 1
        for (int d = 0; d < (int)t.destinations; d++)
            ((uint4 *)(v[d] + offset))[at + j * THREADS] = word;
    }
}

/* WIDE: all rows are equally far from the next 16 bytes. */
template <int DTYPE, bool SUM_ONLY>
__device__ __forceinline__ void reduce_row(const Fetched &t, char *const *v, int reduction)
{
    enum { SIZE = sizeof(typename Type<DTYPE>::Stored), PER_WORD = 16 / SIZE };
    if (!(t.flags & WEFT_CUDA_WIDE)) {
        reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, t.cols);
        return;
    }
    int head = min((int)((16 - (uintptr_t)v[0] % 16) % 16 / SIZE), t.cols),
        words = (t.cols - head) / PER_WORD, offset = head * SIZE, at = threadIdx.x;
#pragma unroll 1
    for (; at + (DEPTH - 1) * THREADS < words; at += DEPTH * THREADS)
        reduce_words<DTYPE, SUM_ONLY, DEPTH>(t, v, reduction, offset, at);
#pragma unroll 1
    for (; at < words; at += THREADS)
        reduce_words<DTYPE, SUM_ONLY, 1>(t, v, reduction, offset, at);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, head);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, head + words * PER_WORD, t.cols);
}

template <int DTYPE> __device__ __forceinline__ void reduce(const Fetched &t, char *const *v, int reduction)
{
    if (reduction == WEFT_SUM)
        reduce_row<DTYPE, true>(t, v, reduction);
    else
        reduce_row<DTYPE, false>(t, v, reduction);
}

/* ---- order ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ Fetched fetch(const weft_cuda_args &g, uint32_t index)
{
    const weft_cuda_task &t = g.tasks[index];
    Fetched f = {t.kind,       t.flags,      t.destinations,    t.sources,
                 t.wait_count, t.post_count, t.plan_task,       t.rows,
                 t.cols,       t.copy_bytes, (char *)t.copy_to, (const char *)t.copy_from};
    if (threadIdx.x < f.wait_count)
        f.wait = g.waits[t.wait0 + threadIdx.x];
    if (threadIdx.x < f.post_count)
        f.post = g.posts[t.post0 + threadIdx.x];
    if (threadIdx.x < f.destinations + f.sources)
        f.view = (char *)g.views[t.view0 + threadIdx.x].ptr;
    return f;
}

/* enter_run of order.cuh, a thread for each peer. */
__device__ __forceinline__ bool enter_together(const weft_cuda_args &g, uint64_t *post, uint64_t run)
{
    bool lost = false;
    if (threadIdx.x < g.enter_posts) {
        post[1 + run % 2] = g.meeting;
        add_release(post);
    }
    if (threadIdx.x < g.world && threadIdx.x != g.rank) {
        uint32_t r = threadIdx.x;
        weft_cuda_wait enter = {g.signals + r * WEFT_CUDA_LINE_WORDS, 1, 1, r};
        lost = !wait_for(g, enter, 0, run);
        uint64_t theirs = lost ? g.meeting : load_acquire(enter.signal + 1 + run % 2);
        if (theirs != g.meeting) {
            give_up(g, r, WEFT_CUDA_OTHER_MEETING, run, theirs, g.meeting);
            lost = true;
        }
    }
    lost = __syncthreads_or(lost);
    if (threadIdx.x == 0 && !lost)
        atomicExch(&g.control->entered, (uint32_t)run + 1); /* partner: the load in wait_for */
    return !lost;
}

/* A thread for each wait and post, since each is a round trip; barriers hand their order on. False when the
 * run is given up. */
template <int DTYPE>
__device__ __forceinline__ bool run_task(const weft_cuda_args &g, int reduction, const Fetched &f,
                                         uint32_t next, bool more, Fetched *later, uint64_t run)
{
    __shared__ char *views[THREADS];
    bool lost = false;
    Fetched ahead;
    if (more)
        ahead = fetch(g, next);
    if (threadIdx.x < f.destinations + f.sources)
        views[threadIdx.x] = f.view;
    if (threadIdx.x < f.wait_count)
        lost = !wait_for(g, f.wait, f.plan_task, run);
    if (more)
        *later = ahead;
    if (__syncthreads_or(lost))
        return false;
    if (f.kind == WEFT_CUDA_REDUCE)
        reduce<DTYPE>(f, views, reduction);
    else if (f.rows > 0)
        copy_row(f.to, f.from, f.copy_bytes);
    __syncthreads();
    if (threadIdx.x < f.post_count)
        add_release(f.post); /* partner: wait_for; the barrier before brought the others' stores */
    return true;
}

/* `runs`: how often each CTA has run, a signal's line apart. The tables of a plan do not change, so they are
 * read before the stream has come here. */
template <int DTYPE>
__device__ __forceinline__ void walk(const weft_cuda_args &g, int reduction, uint64_t *runs)
{
    weft_cuda_lane lane = g.lanes[blockIdx.x];
    uint64_t *mine = runs + blockIdx.x * WEFT_CUDA_LINE_WORDS, *enter = NULL;
    __shared__ Fetched later[THREADS]; /* a thread's own: its registers are for the task that runs */
    bool goes_on = true;
    Fetched f;
    if (blockIdx.x == 0 && threadIdx.x < g.enter_posts)
        enter = g.posts[g.enter_post0 + threadIdx.x];
    if (lane.task_count)
        f = fetch(g, lane.task0);
    wait_for_stream();
    uint64_t run = __ldcg(mine);
    if (blockIdx.x == 0)
        goes_on = enter_together(g, enter, run);
    for (uint32_t i = 0; i < lane.task_count && goes_on; i++) {
        goes_on = run_task<DTYPE>(g, reduction, f, lane.task0 + i + 1, i + 1 < lane.task_count,
                                  &later[threadIdx.x], run);
        f = later[threadIdx.x];
    }
    if (blockIdx.x == 0 && threadIdx.x < g.exit_waits && goes_on)
        wait_for(g, g.waits[g.exit_wait0 + threadIdx.x], ~0u, run);
    __syncthreads();
    if (threadIdx.x == 0)
        *mine = run + 1;
}

} // namespace

/* By what is reduced, so that a kernel has the registers of one type; movement takes any. */
#define WEFT_COLLECTIVE(name, dtype)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                 \
        weft_collective_##name(const __grid_constant__ weft_cuda_args g, int reduction, uint64_t *runs)      \
    {                                                                                                        \
        walk<dtype>(g, reduction, runs);                                                                     \
    }

WEFT_COLLECTIVE(f32, WEFT_F32)
WEFT_COLLECTIVE(f16, WEFT_F16)
WEFT_COLLECTIVE(bf16, WEFT_BF16)
WEFT_COLLECTIVE(i32, WEFT_I32)
WEFT_COLLECTIVE(i64, WEFT_I64)
WEFT_COLLECTIVE(f64, WEFT_F64)
WEFT_COLLECTIVE(i8, WEFT_I8)
WEFT_COLLECTIVE(u8, WEFT_U8)
