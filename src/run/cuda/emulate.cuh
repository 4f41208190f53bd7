/*
 * The device's side of an emulated link: see emulate.h. Honest about what a rank feels of a link: whoever
 * stores at peers has its boxes back when the link has taken them, and not before; whoever fetches from them
 * has what it asked for a latency after the link came to it; posts to peers stand for those of peers, which
 * do the same at the same time (or `late_ns` later), and take a latency; ENTER and DONE too.
 */
#ifndef WEFT_RUN_CUDA_EMULATE_CUH
#define WEFT_RUN_CUDA_EMULATE_CUH

#include "emulate.h"
#include "order.cuh"

/* When the run began: the first thread that asks decides. */
static __device__ __forceinline__ uint64_t link_began(weft_cuda_emulation *e)
{
    unsigned long long now = now_ns(), first = atomicCAS((unsigned long long *)&e->began_ns, 0ull, now);
    return first ? first : now;
}

struct Carried {
    uint64_t begin, cost; /* eighths of a nanosecond */

    /* When the link has taken so many of `parts` equal parts, in nanoseconds. */
    __device__ uint64_t taken(uint32_t part, uint32_t parts) const
    {
        return (begin + cost * part / parts) / 8;
    }
    __device__ uint64_t taken() const { return (begin + cost) / 8; }
};

/* Gives the link something to carry. Two additions that cannot fail: crews that retried a comparison kept
 * each other from it for many transfers. */
static __device__ __forceinline__ Carried link_carry(weft_cuda_emulation *e, uint32_t bytes)
{
    unsigned long long *free = (unsigned long long *)&e->free;
    uint64_t cost = (uint64_t)((float)bytes * e->eighths_per_byte + 0.5f);
    atomicMax(free, (unsigned long long)now_ns() * 8);
    uint64_t begin = atomicAdd(free, (unsigned long long)cost);
    atomicMin((unsigned long long *)&e->first, (unsigned long long)begin);
    return {begin, cost};
}

static __device__ __forceinline__ void link_wait(uint64_t ns)
{
    while (now_ns() < ns)
        __nanosleep(20);
}

/* When what peers do as this rank does it now has come here. */
static __device__ __forceinline__ uint64_t link_answer(const weft_cuda_emulation *e)
{
    return now_ns() + e->latency_ns + e->late_ns;
}

/* A thread for each peer: it enters the run. */
static __device__ __forceinline__ void link_enter(const weft_cuda_args &g, uint32_t peer)
{
    weft_cuda_emulation *e = g.link;
    if (!e->peers || peer >= (uint32_t)g.world || peer == (uint32_t)g.rank)
        return;
    link_wait(link_began(e) + e->latency_ns + e->late_ns);
    add_release((uint64_t *)g.signals + peer * WEFT_CUDA_LINE_WORDS);
}

/* The last thread of a run. */
static __device__ __forceinline__ void link_finish(weft_cuda_emulation *e)
{
    e->run_first = e->first;
    e->run_end = e->free;
    e->first = ~0ull;
    e->began_ns = 0;
    __threadfence();
}

#endif
