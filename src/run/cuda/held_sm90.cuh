/*
 * Posts that an emulated link holds back, in the walker that is compiled for one (LINK of crew_sm90.cuh): who
 * has stored goes on, and another warp posts when the link would have delivered.
 */
#ifndef WEFT_RUN_CUDA_HELD_SM90_CUH
#define WEFT_RUN_CUDA_HELD_SM90_CUH

#include "crew_sm90.cuh"
#include "emulate.cuh"

namespace
{

constexpr uint32_t NO_MORE = ~0u;

/* Whether a task's posts wait for the link. */
__device__ __forceinline__ bool is_held(const weft_cuda_args &g, const weft_cuda_task &t)
{
    weft_cuda_transfer x = g.link->transfers[t.plan_task];
    return x.bytes || x.tells;
}

/* Hands the posts of a finished task to the warp that holds them until `due`; its partner is hold_posts.
 * Holders: the two storers, then the two consumers. */
__device__ void hand_over(uint32_t smem, uint32_t holder, uint32_t &handed, uint64_t due, uint32_t task)
{
    uint32_t at = smem + Layout::held + 16 * (holder * HELD + handed++ % HELD);
    while (word_acquire(at + 12))
        __nanosleep(100);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};\nst.shared.u32 [%0 + 8], %3;" ::"r"(at),
                 "r"((uint32_t)due), "r"((uint32_t)(due >> 32)), "r"(task)
                 : "memory");
    word_release(at + 12, 1);
}

/*
 * One warp of a CTA: makes the posts of storers and consumers when the emulated link delivers. A lane has one
 * place where posts are handed over; all lanes together pay for what takes time, before the posts are due. In
 * the last CTA the lanes that have none let the peers enter.
 */
__device__ void hold_posts(const weft_cuda_args &g, uint32_t smem)
{
    uint32_t at = smem + Layout::held + 16 * (threadIdx.x % 32), task = 0, count = 0, closed = 0;
    uint64_t due = 0, *first = NULL;
    bool mine = threadIdx.x % 32 < HOLDERS * HELD, known = false, idle = false;
    if (blockIdx.x == gridDim.x - 1 && !mine)
        link_enter(g, threadIdx.x % 32 - HOLDERS * HELD);
    __syncwarp();
    while (closed < HOLDERS || !idle) {
        bool fresh = mine && !known && word_acquire(at + 12);
        if (fresh) {
            uint32_t lo, hi;
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%3];\nld.shared.u32 %2, [%3 + 8];"
                         : "=&r"(lo), "=&r"(hi), "=r"(task)
                         : "r"(at)
                         : "memory");
            due = lo | (uint64_t)hi << 32;
            if (task != NO_MORE && !load_relaxed(&g.control->abort)) {
                count = g.tasks[task].post_count;
                first = count ? g.posts[g.tasks[task].post0] : NULL;
            }
            known = true;
        }
        idle = !__any_sync(~0u, known);
        if (__any_sync(~0u, fresh))
            asm volatile("fence.acq_rel.sys;" ::: "memory"); /* for add_relaxed */
        uint64_t now = now_ns();
        bool made = known && now >= due, end = made && task == NO_MORE;
        closed += __popc(__ballot_sync(~0u, end));
        if (made && !end) {
            if (count)
                add_relaxed(first);
            for (uint32_t i = 1; i < count; i++)
                add_relaxed(g.posts[g.tasks[task].post0 + i]);
            count_step(g);
            trace_done(g, g.tasks[task].plan_task);
        }
        if (made) {
            known = false;
            count = 0;
            word_release(at + 12, 0);
        }
        __syncwarp();
        __nanosleep(40);
    }
}

} // namespace

#endif
