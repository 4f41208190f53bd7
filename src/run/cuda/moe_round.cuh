/* What every kernel of a mixture-of-experts layer does at its ends: the peers' memory, waiting for them,
 * telling them, and when a phase begins and ends. The protocol stands in moe_device.h. */
#ifndef WEFT_RUN_CUDA_MOE_ROUND_CUH
#define WEFT_RUN_CUDA_MOE_ROUND_CUH

#include "moe_device.h"
#include "order.cuh"

/* Four words into x, by the instruction `load`, where they are wanted. Without a branch: a load inside one is
 * waited for where the branch ends. */
#define WEFT_LOAD4_IF(load, x, wanted, from)                                                                 \
    asm volatile("{\n"                                                                                       \
                 ".reg .pred p;\n"                                                                           \
                 "setp.ne.u32 p, %5, 0;\n"                                                                   \
                 "@p " load " {%0, %1, %2, %3}, [%4];\n"                                                     \
                 "}"                                                                                         \
                 : "+r"((x).x), "+r"((x).y), "+r"((x).z), "+r"((x).w)                                        \
                 : "l"(from), "r"((unsigned)(wanted))                                                        \
                 : "memory")

namespace
{

enum { THREADS = WEFT_CUDA_MOE_THREADS };

template <class T> __device__ __forceinline__ T *at_rank(const weft_cuda_moe &p, T *mine, int rank)
{
    return (T *)((char *)mine + (rank - p.rank) * p.stride);
}

/* Where rank `from` has its lists of the round at `to`, or this rank those of rank `from`. */
__device__ __forceinline__ int64_t list_at(const weft_cuda_moe &p, uint64_t round, int from, int64_t token)
{
    return ((int64_t)((round & 1) * p.world + from) * p.capacity + token) * p.keys;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

/* The first expired wait of the rank writes the record, then raises every rank's abort word. */
__device__ void expired(const weft_cuda_moe &p, int from, int phase, uint64_t round, uint64_t have,
                        uint64_t want)
{
    weft_cuda_record *record = &p.control->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = (uint32_t)phase;
        record->signal = (uint32_t)from;
        record->lane = blockIdx.x;
        record->run = round;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < p.world; r++)
        atomicExch_system(&at_rank(p, p.control, r)->abort, 1u);
}

/* One thread: until as many CTAs of a rank as post in a round have posted in that many; partner:
 * post_everywhere there. False when the round is to be given up. */
__device__ bool await(const weft_cuda_moe &p, const uint64_t *signals, int from, int phase, uint64_t round,
                      uint32_t posts)
{
    const uint64_t *signal = signals + (int64_t)from * WEFT_CUDA_LINE_WORDS;
    uint64_t want = round * posts, began = 0;
    for (uint32_t looks = 1;; looks++) {
        uint64_t have = load_acquire(signal);
        if ((int64_t)(have - want) >= 0)
            return true;
        if (looks % 32)
            continue;
        if (load_relaxed(&p.control->abort))
            return false;
        if (looks % 2048 == 0 && p.stop && load_relaxed(p.stop)) { /* the host's word, across the bus */
            atomicExch_system(&p.control->abort, 1u);
            return false;
        }
        uint64_t now = now_ns();
        if (!began) {
            began = now;
        } else if (now - began > p.deadline_ns) {
            expired(p, from, phase, round, have, want);
            return false;
        }
    }
}

/* The CTA waits for every rank. */
__device__ __forceinline__ bool await_all(const weft_cuda_moe &p, const uint64_t *signals, int phase,
                                          uint64_t round, uint32_t posts)
{
    bool lost = false;
    for (int r = threadIdx.x; r < p.world; r += THREADS)
        lost |= !await(p, signals, r, phase, round, posts);
    return !__syncthreads_or(lost);
}

/* Everything the CTA has stored comes before; partner: await there. */
__device__ __forceinline__ void post_everywhere(const weft_cuda_moe &p, uint64_t *signals)
{
    __syncthreads();
    for (int r = threadIdx.x; r < p.world; r += THREADS)
        add_release(at_rank(p, signals + (int64_t)p.rank * WEFT_CUDA_LINE_WORDS, r));
}

/* How many rounds this CTA has finished in a phase: only it writes that. */
__device__ __forceinline__ uint64_t *runs_of(const weft_cuda_moe &p, int phase)
{
    return p.runs + (int64_t)(p.run0[phase] + blockIdx.x) * WEFT_CUDA_LINE_WORDS;
}

/* One thread of the rank: the phase begins. */
__device__ __forceinline__ void note_begin(const weft_cuda_moe &p, int phase, uint64_t round)
{
    weft_cuda_moe_state *s = p.state;
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    if (phase == WEFT_CUDA_MOE_DISPATCH_SEND && round > 1) {
        s->dispatch_ns += s->ended_ns[WEFT_CUDA_MOE_DISPATCH_RECV] - s->began_ns[WEFT_CUDA_MOE_DISPATCH_SEND];
        if (!s->skipped)
            s->combine_ns +=
                s->ended_ns[WEFT_CUDA_MOE_COMBINE_RECV] - s->began_ns[WEFT_CUDA_MOE_COMBINE_SEND];
    }
    s->began_ns[phase] = now_ns();
    __threadfence();
    *(volatile uint64_t *)&s->round[phase] = round; /* partner: weft_experts_link */
}

/* Every thread has read the number of the round. */
__device__ __forceinline__ void count_run(const weft_cuda_moe &p, int phase, uint64_t *runs, uint64_t round)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        *runs = round;
        atomicMax((unsigned long long *)&p.state->ended_ns[phase], (unsigned long long)now_ns());
    }
}

} // namespace

#endif
