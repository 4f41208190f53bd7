/*
 * Memory order on the GPU, in one place.
 *
 * Producer: every thread's stores, then a barrier of the threads that stored together, an acq_rel count over
 * the crew, then one red.release.sys by its last member (post). After bulk stores the storing thread itself
 * waits for their completion (cp.async.bulk.wait_group 0, never .read) before it posts. Consumer: one thread
 * polls with ld.acquire.sys (wait_for), then a barrier or mbarrier hands the order on to its crew; before the
 * copy engine reads what generic stores of others wrote, fence.proxy.async.
 */
#ifndef WEFT_RUN_CUDA_ORDER_CUH
#define WEFT_RUN_CUDA_ORDER_CUH

#include "ptx.cuh"
#include "task.h"

static __device__ __forceinline__ void fence_proxy_all()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Off, a timeline costs the test of a kernel parameter. Any member of a crew may write: they differ little.
 */
static __device__ __forceinline__ void trace_ready(const weft_cuda_args &g, uint32_t plan_task)
{
    if (g.trace)
        g.trace[2 * plan_task] = now_ns();
}

static __device__ __forceinline__ void trace_done(const weft_cuda_args &g, uint32_t plan_task)
{
    if (g.trace)
        g.trace[2 * plan_task + 1] = now_ns();
}

/* The first expired wait of the rank writes the record, then raises every rank's abort word; its partner is
 * the load_relaxed in wait_for. */
static __device__ __forceinline__ void give_up(const weft_cuda_args &g, uint32_t signal, uint32_t plan_task,
                                               uint64_t run, uint64_t have, uint64_t want)
{
    weft_cuda_record *record = &g.control->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = plan_task;
        record->signal = signal;
        record->lane = blockIdx.x;
        record->run = run;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < g.world; r++)
        atomicExch_system(&g.peers[r]->abort, 1u);
}

/* A task of this rank is done: its peers' patience with it begins anew. Partner: steps_of_all. */
static __device__ __forceinline__ void count_step(const weft_cuda_args &g)
{
    if (g.world > 1)
        count_relaxed(&g.control->steps);
}

static __device__ __forceinline__ uint32_t steps_of_all(const weft_cuda_args &g)
{
    uint32_t steps = 0;
#pragma unroll 1
    for (int r = 0; r < g.world; r++)
        steps += load_relaxed(&g.peers[r]->steps);
    return steps;
}

/* How long a wait has lasted in which no rank did anything. */
struct Patience {
    uint64_t since = 0; /* 0: it has not begun */
    uint32_t seen = 0;  /* 1 + the ranks' steps when half of the deadline had passed; 0: it has not */

    /* Whether it is at an end: so long after `since` nobody's steps have grown in half of that time. A rank
     * that has yet to enter makes none. */
    template <class Steps>
    __device__ __forceinline__ bool ends(uint64_t now, uint64_t limit, bool enters, const Steps &of_all)
    {
        if (now - since <= limit / 2)
            return false;
        uint32_t steps = enters ? 1 : 1 + of_all();
        if (!seen)
            seen = steps;
        if (now - since <= limit)
            return false;
        if (seen == steps)
            return true;
        since = now;
        seen = 0;
        return false;
    }

    /* A peer has the longer deadline to enter a run, so a wait for progress counts only once all have (see
     * enter_run); and from then on while nobody's tasks end. */
    __device__ __forceinline__ bool ends(const weft_cuda_args &g, const weft_cuda_wait &w, uint64_t run)
    {
        bool enters = w.number < g.ranks_enter;
        uint64_t now = now_ns(), limit = enters ? g.enter_deadline_ns : g.progress_deadline_ns;
        if (!since || (!enters && load_relaxed(&g.control->entered) != (uint32_t)run + 1)) {
            since = now;
            seen = 0;
        }
        return ends(now, limit, enters, [&] { return steps_of_all(g); });
    }
};

/*
 * Polls one signal. False when the run is to be given up; partner: the add_release of the posting task.
 */
static __device__ __forceinline__ bool wait_for(const weft_cuda_args &g, const weft_cuda_wait &w,
                                                uint32_t plan_task, uint64_t run)
{
    uint64_t want = run * w.total + w.count;
    Patience patience;
    for (uint32_t spins = 1;; spins++) {
        uint64_t have = load_acquire(w.signal);
        if ((int64_t)(have - want) >= 0)
            return true;
        if (spins % 32)
            continue;
        if (load_relaxed(&g.control->abort))
            return false;
        if (spins % 2048 == 0 && g.stop && load_relaxed(g.stop)) { /* the host's word, across the bus */
            atomicExch_system(&g.control->abort, 1u);
            return false;
        }
        if (patience.ends(g, w, run)) {
            give_up(g, w.number, plan_task, run, have, want);
            return false;
        }
    }
}

static __device__ __forceinline__ bool wait_list(const weft_cuda_args &g, uint32_t wait0, uint32_t count,
                                                 uint32_t plan_task, uint64_t run)
{
    for (uint32_t i = 0; i < count; i++)
        if (!wait_for(g, g.waits[wait0 + i], plan_task, run))
            return false;
    return true;
}

/* The waits of a task. */
static __device__ __forceinline__ bool wait_all(const weft_cuda_args &g, uint32_t wait0, uint32_t count,
                                                uint32_t plan_task, uint64_t run)
{
    bool reached = wait_list(g, wait0, count, plan_task, run);
    if (count)
        trace_ready(g, plan_task);
    return reached;
}

/* Whether all waits hold now, for a thread that has other things to do meanwhile. At the end of its patience
 * the run is given up. True after an abort: there is nothing to wait for. */
static __device__ __forceinline__ bool poll_all(const weft_cuda_args &g, uint32_t wait0, uint32_t count,
                                                uint32_t plan_task, uint64_t run, Patience &patience)
{
    for (uint32_t i = 0; i < count; i++) {
        const weft_cuda_wait &w = g.waits[wait0 + i];
        uint64_t want = run * w.total + w.count, have = load_acquire(w.signal);
        if ((int64_t)(have - want) >= 0)
            continue;
        if (load_relaxed(&g.control->abort))
            return true;
        if (patience.ends(g, w, run))
            give_up(g, w.number, plan_task, run, have, want);
        return false;
    }
    patience = Patience();
    trace_ready(g, plan_task);
    return true;
}

/* After an abort nothing is posted: peers see the abort word instead. */
static __device__ __forceinline__ void post_all(const weft_cuda_args &g, uint32_t post0, uint32_t count)
{
    if (count && load_relaxed(&g.control->abort))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (g.world > 1)
            add_release(g.posts[post0 + i]);
        else
            add_release_here(g.posts[post0 + i]);
}

/* The posts of a task that its whole crew has done. */
static __device__ __forceinline__ void task_done(const weft_cuda_args &g, const weft_cuda_task &t)
{
    trace_done(g, t.plan_task);
    count_step(g);
    post_all(g, t.post0, t.post_count);
}

/*
 * One thread of the rank: its memory may be used in this run; notes when all peers say the same. Beside an
 * ENTER signal, doubled by parity, stands with which operands the peer entered: another one's addresses of
 * them would be wrong here, so the run is given up. Written before the add_release, read after the wait.
 */
static __device__ __forceinline__ void enter_run(const weft_cuda_args &g, uint64_t run, uint64_t began)
{
    if (g.trace)
        g.trace[2 * g.trace_tasks] = began;
    wait_list(g, g.enter_wait0, g.enter_waits, 0, run);
    for (uint32_t i = 0; i < g.enter_posts; i++)
        g.posts[g.enter_post0 + i][1 + run % 2] = g.meeting;
    post_all(g, g.enter_post0, g.enter_posts);
    for (int r = 0; r < g.world; r++) {
        weft_cuda_wait enter = {g.signals + r * WEFT_CUDA_LINE_WORDS, 1, 1, (uint32_t)r};
        if (r == g.rank)
            continue;
        if (!wait_for(g, enter, 0, run))
            return;
        uint64_t theirs = load_acquire(enter.signal + 1 + run % 2);
        if (theirs != g.meeting) {
            give_up(g, (uint32_t)r, WEFT_CUDA_OTHER_MEETING, run, theirs, g.meeting);
            return;
        }
    }
    atomicExch(&g.control->entered, (uint32_t)run + 1); /* partner: the load in wait_for */
}

/* One thread of the rank: nobody uses its memory any more. */
static __device__ __forceinline__ void exit_run(const weft_cuda_args &g, uint64_t run)
{
    wait_list(g, g.exit_wait0, g.exit_waits, ~0u, run);
    trace_done(g, g.trace_tasks);
}

/* The last CTA of the grid counts the run; every CTA read `run` before it came here. True for that one. */
static __device__ __forceinline__ bool finish(const weft_cuda_args &g)
{
    __threadfence();
    if (atomicAdd(&g.control->finished, 1u) != gridDim.x - 1)
        return false;
    g.control->finished = 0;
    g.control->run++;
    __threadfence();
    return true;
}

#endif
