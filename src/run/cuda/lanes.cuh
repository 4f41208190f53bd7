/*
 * Walks a plan's lanes, a CTA each, where no task is a product: COPY and REDUCE, with at most as many waits,
 * posts and regions as a CTA has threads. What a task needs is loaded while the one before it runs. What a
 * task does is the kernel's own: see Body of walk.
 */
#ifndef WEFT_RUN_CUDA_LANES_CUH
#define WEFT_RUN_CUDA_LANES_CUH

#include "collective.h"
#include "early.cuh"
#include "emulate.cuh"
#include "order.cuh"

namespace
{

enum { THREADS = WEFT_CUDA_COLLECTIVE_THREADS };

/* A task as a thread needs it, loaded ahead: its own wait, post and view of the first THREADS of each. */
struct Fetched {
    uint32_t kind, flags, destinations, sources, wait_count, post_count, plan_task, index;
    int32_t rows, cols, copy_bytes;
    char *to;
    const char *from;
    weft_cuda_wait wait;
    uint64_t *post;
    char *view;
};

__device__ __forceinline__ Fetched fetch(const weft_cuda_args &g, uint32_t index)
{
    const weft_cuda_task &t = g.tasks[index];
    Fetched f = {t.kind,
                 t.flags,
                 t.destinations,
                 t.sources,
                 t.wait_count,
                 t.post_count,
                 t.plan_task,
                 index,
                 t.rows,
                 t.cols,
                 t.copy_bytes,
                 (char *)t.copy_to,
                 (const char *)t.copy_from};
    if (threadIdx.x < f.wait_count)
        f.wait = g.waits[t.wait0 + threadIdx.x];
    if (threadIdx.x < f.post_count)
        f.post = g.posts[t.post0 + threadIdx.x];
    if (threadIdx.x < f.destinations + f.sources)
        f.view = (char *)g.views[t.view0 + threadIdx.x].ptr;
    return f;
}

/* Where an address of the tables is in this run: see WEFT_CUDA_OPERAND_SHIFT. Not asked before a task begins:
 * what is fetched ahead is still on its way. */
__device__ __forceinline__ char *in_this_run(const weft_cuda_args &g, const void *at)
{
    return (char *)at + g.moved[(uintptr_t)at >> WEFT_CUDA_OPERAND_SHIFT];
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
template <bool LINK, class Body>
__device__ __forceinline__ bool run_task(const weft_cuda_args &g, Body body, Fetched &f, uint32_t next,
                                         bool more, Fetched *later, uint64_t run)
{
    __shared__ char *views[THREADS];
    bool lost = false;
    uint64_t comes = 0; /* LINK, one thread */
    Fetched ahead;
    if (more)
        ahead = fetch(g, next);
    if (threadIdx.x < f.destinations + f.sources)
        views[threadIdx.x] = in_this_run(g, f.view);
    f.to = in_this_run(g, f.to);
    f.from = in_this_run(g, f.from);
    if (threadIdx.x < f.wait_count)
        lost = !wait_for(g, f.wait, f.plan_task, run);
    if (more)
        *later = ahead;
    if (__syncthreads_or(lost))
        return false;
    if (LINK && threadIdx.x == 0) {
        weft_cuda_transfer over = g.link->transfers[f.plan_task];
        if (over.bytes)
            comes = link_carry(g.link, over.bytes).taken() + g.link->latency_ns +
                    (over.tells ? g.link->late_ns : 0);
        else if (over.tells)
            comes = link_answer(g.link);
    }
    body(f, views);
    if (LINK)
        link_wait(comes);
    __syncthreads();
    if (threadIdx.x == 0)
        count_step(g);
    if (threadIdx.x < f.post_count)
        add_release(f.post); /* partner: wait_for; the barrier before brought the others' stores */
    return true;
}

/*
 * `body(fetched, views)` does one task, with all threads of the CTA. `runs`: how often each CTA has run, a
 * signal's line apart. The tables of a plan do not change, so they are read before the stream has come here.
 * LINK: over an emulated link, for measurements.
 */
template <bool LINK, class Body>
__device__ __forceinline__ void walk(const weft_cuda_args &g, Body body, uint64_t *runs)
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
    if (LINK && blockIdx.x == 0)
        link_enter(g, threadIdx.x);
    if (blockIdx.x == 0)
        goes_on = enter_together(g, enter, run);
    for (uint32_t i = 0; i < lane.task_count && goes_on; i++) {
        goes_on =
            run_task<LINK>(g, body, f, lane.task0 + i + 1, i + 1 < lane.task_count, &later[threadIdx.x], run);
        f = later[threadIdx.x];
    }
    if (blockIdx.x == 0 && threadIdx.x < g.exit_waits && goes_on)
        wait_for(g, g.waits[g.exit_wait0 + threadIdx.x], ~0u, run);
    __syncthreads();
    if (threadIdx.x == 0)
        *mine = run + 1;
    if (LINK && threadIdx.x == 0 && finish(g))
        link_finish(g.link);
}

} // namespace

#endif
