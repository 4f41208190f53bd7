/*
 * Kernels of one's own on weft's symmetric GPU memory, in CUDA C++: peers' addresses, puts, signals, waits
 * and sums. For compute capability 7.0 and later.
 *
 *     weft_signal_pad pad = {};
 *     pad.size = sizeof(pad);
 *     weft_signal_pad_create(group, blocks, &pad);      // collective; passed to kernels by value
 *     kernel<<<blocks, 512, 0, stream>>>(pad, x, …);    // x: memory of weft_alloc
 *     weft_signal_pad_wait(group, &pad, stream);        // how the waits went
 *
 * What lies on another rank is named by this rank's own address of it. Functions named block_… are called by
 * every thread of a block and contain barriers of it; the others by one thread. Order: a post comes after
 * everything its thread did before, and after what the block's other threads did before a barrier that came
 * first; what follows a wait (block_wait: in every thread) comes after everything that came before the posts
 * it waited for. No wait hangs: it ends, false, when a peer's wait was given up, when the group is lost and
 * after the pad's deadline; a kernel then posts nothing more and returns.
 */
#ifndef WEFT_DEVICE_CUH
#define WEFT_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <weft/weft.h>

namespace weft
{

/* Where `rank` has what this rank has at `mine`. */
template <class T> __device__ __forceinline__ T *peer(const weft_signal_pad &pad, T *mine, int rank)
{
    return (T *)((char *)mine + (rank - pad.rank) * pad.stride);
}

namespace detail
{

__device__ __forceinline__ uint64_t *signal(const weft_signal_pad &pad, uint32_t index, int rank)
{
    return peer(pad, pad.signals + (size_t)index * (WEFT_SIGNAL_BYTES / sizeof(uint64_t)), rank);
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t now_ns()
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

/* Partner: load_relaxed in wait, on every rank. */
static __device__ __noinline__ void end_all(const weft_signal_pad &pad)
{
    for (int rank = 0; rank < pad.ranks; rank++)
        atomicExch_system(&peer(pad, pad.record, rank)->ended, 1u);
}

static __device__ __noinline__ void give_up(const weft_signal_pad &pad, uint32_t index, uint64_t have,
                                            uint64_t want)
{
    if (atomicCAS(&pad.record->set, 0u, 1u) == 0) {
        pad.record->signal = index;
        pad.record->have = have;
        pad.record->want = want;
        __threadfence_system();
        atomicExch(&pad.record->set, 2u);
    }
    end_all(pad);
}

__device__ __forceinline__ unsigned thread()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ unsigned threads()
{
    return blockDim.x * blockDim.y * blockDim.z;
}

/* What sums are made in. */
template <class T> struct sum_of {
    typedef T type;
};
template <> struct sum_of<__half> {
    typedef float type;
};
template <> struct sum_of<__nv_bfloat16> {
    typedef float type;
};

template <class T> union pack {
    uint4 whole;
    T each[sizeof(uint4) / sizeof(T)];
    __device__ pack() : whole() {}
};

__device__ __forceinline__ bool aligned(const void *a, const void *b)
{
    return ((uintptr_t)a | (uintptr_t)b) % sizeof(uint4) == 0;
}

} // namespace detail

/* Adds to a signal of `rank`. Partner: wait. */
__device__ __forceinline__ void post(const weft_signal_pad &pad, uint32_t signal, uint64_t add, int rank)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(detail::signal(pad, signal, rank)), "l"(add)
                 : "memory");
}

/* Until this rank's own signal is at least `value` (as counts that may wrap). Partner: post. */
__device__ inline bool wait(const weft_signal_pad &pad, uint32_t signal, uint64_t value)
{
    const uint64_t *word = detail::signal(pad, signal, pad.rank);
    uint64_t began = 0;

    for (uint32_t polls = 1;; polls++) {
        uint64_t have = detail::load_acquire(word), now;

        if ((int64_t)(have - value) >= 0)
            return true;
        if (polls % 32)
            continue;
        if (detail::load_relaxed(&pad.record->ended))
            return false;
        if (polls % 2048 == 0 && detail::load_relaxed(pad.stop)) { /* across the bus: rarely */
            detail::end_all(pad);
            return false;
        }
        now = detail::now_ns();
        if (!began) {
            began = now;
        } else if (now - began > pad.deadline_ns) {
            detail::give_up(pad, signal, have, value);
            return false;
        }
    }
}

/* The same for a whole block, whose threads all go on after it. */
__device__ inline bool block_wait(const weft_signal_pad &pad, uint32_t signal, uint64_t value)
{
    int reached = 1;

    if (detail::thread() == 0)
        reached = wait(pad, signal, value);
    return __syncthreads_and(reached);
}

/* Copies `count` elements to where `rank` has `to`, by all threads of a block. */
template <class T>
__device__ void block_put(const weft_signal_pad &pad, T *to, const T *from, size_t count, int rank)
{
    T *there = peer(pad, to, rank);
    size_t packs = detail::aligned(there, from) ? count * sizeof(T) / sizeof(uint4) : 0;

    for (size_t i = detail::thread(); i < packs; i += detail::threads())
        ((uint4 *)there)[i] = ((const uint4 *)from)[i];
    for (size_t i = packs * (sizeof(uint4) / sizeof(T)) + detail::thread(); i < count; i += detail::threads())
        there[i] = from[i];
}

/* A put, then a post that says it has landed. */
template <class T>
__device__ void block_put_signal(const weft_signal_pad &pad, T *to, const T *from, size_t count,
                                 uint32_t signal, uint64_t add, int rank)
{
    block_put(pad, to, from, count, rank);
    __syncthreads();
    if (detail::thread() == 0)
        post(pad, signal, add, rank);
}

/*
 * Blocks of all ranks that call it with the same signal meet: what they did before is seen by all after it.
 * `round` counts the meetings on that signal, from 1. (A post of the next round may be counted for one of
 * this that is late: whoever made it has seen all of this round.)
 */
__device__ inline bool block_meet(const weft_signal_pad &pad, uint32_t signal, uint64_t round)
{
    __syncthreads();
    for (int rank = (int)detail::thread(); rank < pad.ranks; rank += (int)detail::threads())
        post(pad, signal, 1, rank);
    return block_wait(pad, signal, round * (uint64_t)pad.ranks);
}

/*
 * to[i] = the sum of every rank's from[i], in rank order (float16 and bfloat16: in float), by all threads of
 * a block. `from` is symmetric memory, `to` any of this GPU, and not `from`.
 */
template <class T> __device__ void block_sum(const weft_signal_pad &pad, T *to, const T *from, size_t count)
{
    typedef typename detail::sum_of<T>::type sum;
    enum { EACH = sizeof(uint4) / sizeof(T), AT_ONCE = 8 };
    size_t packs = detail::aligned(to, from) ? count / EACH : 0; /* strides of slots are multiples of more */

    for (size_t i = detail::thread(); i < packs; i += detail::threads()) {
        detail::pack<T> in[AT_ONCE], out;
        sum total[EACH];

        for (int first = 0; first < pad.ranks; first += AT_ONCE) {
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
                if (first + r < pad.ranks)
                    in[r].whole = ((const uint4 *)peer(pad, from, first + r))[i];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (first + r == 0)
                        total[e] = (sum)in[r].each[e];
                    else if (first + r < pad.ranks)
                        total[e] += (sum)in[r].each[e];
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
            out.each[e] = (T)total[e];
        ((uint4 *)to)[i] = out.whole;
    }
    for (size_t i = packs * EACH + detail::thread(); i < count; i += detail::threads()) {
        sum total = (sum)peer(pad, from, 0)[i];

        for (int rank = 1; rank < pad.ranks; rank++)
            total += (sum)peer(pad, from, rank)[i];
        to[i] = (T)total;
    }
}

} // namespace weft

#endif
