/*
 * The peers of a rank in the loop: see link.h.
 *
 * Card: 256 threads (of lines 512), at most 64 registers, no shared memory: a CTA fits beside one of the
 * kernel that it answers, and stays for as many of its runs as it was launched for. More than some 66 of each
 * (WEFT_CUDA_LINK_LINES_CTAS of lines) on a GPU of 132 SMs get into each other's way.
 */
#include "link.h"
#include "run/cuda/collective.h"
#include "run/cuda/packet.cuh"

namespace
{

enum {
    THREADS = WEFT_CUDA_LINK_THREADS,
    DEPTH = 8,
    PEERS = WEFT_CUDA_LINK_PEERS,
    ROUND_LINES = THREADS / WEFT_CUDA_LINE_THREADS
};

/* Says that this CTA is there, and how many runs it has answered. */
__device__ __forceinline__ uint64_t begin(const weft_cuda_link &p)
{
    uint64_t run = p.answered[blockIdx.x * WEFT_CUDA_LINE_WORDS];
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(p.up, 1u);
    return run;
}

/* When the rank made the post or the packet that has just been seen. */
__device__ __forceinline__ uint64_t noticed(const weft_cuda_link &p)
{
    return now_ns() - (uint64_t)p.notice_ns;
}

/* How long after what the rank made an answer is stored, so that the rank sees it a latency after: its way
 * back takes as long as the rank's took here. */
__device__ __forceinline__ uint64_t stored_after(const weft_cuda_link &p, int64_t latency_ns)
{
    return (uint64_t)max(latency_ns - p.notice_ns, (int64_t)0);
}

/* When the link has carried this, too: transfers follow one another. */
__device__ __forceinline__ uint64_t carry(const weft_cuda_link &p, int64_t busy_ns)
{
    unsigned long long *free = (unsigned long long *)p.free_ns;
    atomicMax(free, (unsigned long long)noticed(p));
    return atomicAdd(free, (unsigned long long)busy_ns) + (uint64_t)busy_ns;
}

__device__ __forceinline__ void sleep_until(uint64_t due)
{
    while (now_ns() < due)
        ;
}

/* The rank's posts at a peer; partner: add_release there. False when nothing came for too long: then the rank
 * has given up, and says why. */
__device__ __forceinline__ bool watch(const weft_cuda_link &p, const uint64_t *signal, uint64_t want)
{
    uint64_t until = now_ns() + p.deadline_ns;
    while ((int64_t)(load_acquire(signal) - want) < 0)
        if (now_ns() > until)
            return false;
    return true;
}

__device__ __forceinline__ bool answer_enter(const weft_cuda_link &p, uint64_t run)
{
    int peer = 1 + (int)threadIdx.x;
    if (peer >= p.world)
        return true;
    const uint64_t *theirs = p.signals + peer * p.stride;
    uint64_t *mine = p.signals + peer * WEFT_CUDA_LINE_WORDS;
    if (!watch(p, theirs, run + 1))
        return false;
    sleep_until(noticed(p) + stored_after(p, p.latency_ns));
    mine[1 + run % 2] = theirs[1 + run % 2];
    add_release(mine); /* partner: wait_for of the rank */
    return true;
}

/* With many loads in flight: that a link's bytes come out of this memory first must not show. */
__device__ __forceinline__ void store(const weft_cuda_link_store &s)
{
    bool wide = ((uintptr_t)s.from | (uintptr_t)s.to) % 16 == 0;
    int64_t words = wide ? s.bytes / 16 : 0;
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < words; base += THREADS * DEPTH) {
        uint4 x[DEPTH];
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            if (base + j * THREADS < words)
                x[j] = __ldg((const uint4 *)s.from + base + j * THREADS);
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            if (base + j * THREADS < words)
                ((uint4 *)s.to)[base + j * THREADS] = x[j];
    }
    for (int64_t i = words * 16 + threadIdx.x; i < s.bytes; i += THREADS)
        s.to[i] = s.from[i];
}

__device__ __forceinline__ bool answer_done(const weft_cuda_link &p, uint32_t lane, uint64_t run)
{
    weft_cuda_link_lane l = p.lanes[lane];
    int peer = 1 + (int)threadIdx.x;
    bool lost = false;
    if (peer < p.world)
        lost = !watch(p, p.signals + peer * p.stride + p.world * WEFT_CUDA_LINE_WORDS,
                      run * p.sent[peer] + min(lane + 1, p.sent[peer]));
    if (__syncthreads_or(lost))
        return false;
    if (threadIdx.x == 0)
        sleep_until(carry(p, l.busy_ns) + stored_after(p, l.latency_ns));
    __syncthreads();
    for (uint32_t i = 0; i < l.store_count; i++)
        store(p.stores[l.store0 + i]);
    __syncthreads();
    if (peer < p.world && lane < p.heard[peer])
        add_release(p.signals + (p.world + peer) * WEFT_CUDA_LINE_WORDS); /* partner: wait_for of the rank */
    return true;
}

/* A thread's packet of a chunk, of every peer. */
__device__ __forceinline__ bool answer_packets(const weft_cuda_link &p, int64_t first, uint64_t epoch)
{
    int64_t at = first + threadIdx.x, end = min(p.packets, (blockIdx.x + 1) * p.chunk_packets),
            parity = (int64_t)(epoch & 1) * p.parity_bytes;
    uint64_t until = now_ns() + p.deadline_ns;
    bool here = at < end, lost = false;
    uint64_t payload[PEERS];
#pragma unroll
    for (int i = 0; i < PEERS; i++)
        if (here && i + 1 < p.world)
            payload[i] = p.payload[(i + 1) * p.packets + at];
    while (here && !lost &&
           (int64_t)(packet_get(p.watched + parity + at * WEFT_CUDA_PACKET_BYTES).epoch - epoch) < 0)
        lost = now_ns() > until;
    if (__syncthreads_or(lost))
        return false;
    if (threadIdx.x == 0)
        sleep_until(carry(p, (min(end, first + THREADS) - first) * p.busy_ps / 1000) +
                    stored_after(p, p.latency_ns));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PEERS; i++)
        if (here && i + 1 < p.world)
            packet_put(p.inbox + parity + (i + 1) * p.row_bytes + at * WEFT_CUDA_PACKET_BYTES, payload[i],
                       epoch);
    return true;
}

/* All threads of a hop meet at a barrier of their own; whether one of them says yes. */
#define ANY_AT(barrier)                                                                                      \
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, " #barrier ", %2, p; "         \
                 "selp.u32 %0, 1, 0, q; }"                                                                   \
                 : "=r"(any)                                                                                 \
                 : "r"((uint32_t)yes), "r"((uint32_t)THREADS)                                                \
                 : "memory")

__device__ __forceinline__ bool any_of_hop(int hop, bool yes)
{
    uint32_t any;
    if (hop == 0)
        ANY_AT(1);
    else
        ANY_AT(2);
    return any;
}

/*
 * A round of a hop: as many lines as its threads have, as many of each of the CTA's chunks, from `first` of
 * theirs on.
 */
struct Round {
    int64_t first;
    int64_t line;    /* of which the thread has its part; -1: none */
    int64_t carried; /* lines */
    uint64_t due;    /* of the first thread */
};

/* How many of a round's lines are of one chunk. */
__device__ __forceinline__ int part_of(const weft_cuda_link &p)
{
    return ROUND_LINES / (int)p.chunks;
}

/* All before it is waited for: a link's time counts from what is noticed. */
__device__ __forceinline__ Round round_of(const weft_cuda_link &p, int hop, int64_t first)
{
    int slot = (int)threadIdx.x % THREADS / WEFT_CUDA_LINE_THREADS, part = part_of(p);
    Round r = {first, -1, 0, 0};
    for (int i = 0; i < (int)p.chunks; i++) {
        int64_t begin = (blockIdx.x + i * gridDim.x) * p.chunk_packets + first,
                count = min(min((int64_t)part, p.chunk_packets - first), p.hop[hop].lines - begin);
        r.carried += max(count, (int64_t)0);
        if (slot >= i * part && slot < i * part + count)
            r.line = begin + slot - i * part;
    }
    return r;
}

__device__ __forceinline__ int64_t bytes_at(int64_t line)
{
    return line * WEFT_CUDA_LINE_BYTES + (int)threadIdx.x % WEFT_CUDA_LINE_THREADS * WEFT_CUDA_PACKET_BYTES;
}

enum { LAST = WEFT_CUDA_LINE_THREADS - 1 };

/* A thread's words of a line, all there; there is room for others then. */
__device__ __forceinline__ bool take_marked(const char *at)
{
    uint4 x = __ldcv((const uint4 *)at);
    if (!x.x || !x.y || !x.z || !x.w)
        return false;
    *(uint4 *)at = make_uint4(0, 0, 0, 0);
    return true;
}

/* Until the rank's lines have arrived; then the link carries those of every peer. */
__device__ __forceinline__ bool notice_lines(const weft_cuda_link &p, int hop, Round &r, uint64_t epoch)
{
    const weft_cuda_link_hop &h = p.hop[hop];
    int lane = (int)threadIdx.x % WEFT_CUDA_LINE_THREADS;
    const char *watched = h.watched + (int64_t)(epoch & 1) * p.parity_bytes +
                          min(max(r.line, (int64_t)0), h.watched_lines - 1) * WEFT_CUDA_LINE_BYTES +
                          (p.marked ? lane : LAST) * WEFT_CUDA_PACKET_BYTES;
    uint64_t until = now_ns() + p.deadline_ns;
    bool looks = r.line >= 0 && (p.marked || lane == LAST), lost = false;
    while (looks && !lost &&
           !(p.marked ? take_marked(watched) : (int64_t)(packet_get(watched).epoch - epoch) >= 0))
        lost = now_ns() > until;
    if (any_of_hop(hop, lost))
        return false;
    if (threadIdx.x % THREADS == 0)
        r.due = carry(p, r.carried * p.busy_ps / 1000) + stored_after(p, p.latency_ns);
    return true;
}

__device__ __forceinline__ void load_images(const weft_cuda_link &p, int hop, const Round &r,
                                            ulonglong2 image[PEERS])
{
#pragma unroll
    for (int i = 0; i < PEERS; i++)
        if (r.line >= 0 && i + 1 < p.world)
            image[i] =
                __ldg((const ulonglong2 *)(p.hop[hop].images + (i + 1) * p.row_bytes + bytes_at(r.line)));
}

__device__ __forceinline__ void put_lines(const weft_cuda_link &p, int hop, const Round &r, uint64_t epoch,
                                          const ulonglong2 image[PEERS])
{
    char *inbox = p.hop[hop].inbox + (int64_t)(epoch & 1) * p.parity_bytes + bytes_at(r.line);
    if (threadIdx.x % THREADS == 0)
        sleep_until(r.due);
    any_of_hop(hop, false);
#pragma unroll
    for (int i = 0; i < PEERS; i++)
        if (r.line >= 0 && i + 1 < p.world)
            packet_put(inbox + (i + 1) * p.row_bytes, image[i].x,
                       !p.marked && threadIdx.x % WEFT_CUDA_LINE_THREADS == LAST ? epoch : image[i].y);
}

/* The CTA's chunks, of every peer: a round is noticed while the one before it is under way, as a link carries
 * what follows. */
__device__ __forceinline__ bool answer_lines(const weft_cuda_link &p, int hop, uint64_t epoch)
{
    Round now = round_of(p, hop, 0);
    ulonglong2 image[PEERS];
    load_images(p, hop, now, image);
    if (!notice_lines(p, hop, now, epoch))
        return false;
    while (true) {
        Round next = round_of(p, hop, now.first + part_of(p));
        bool ends = next.first >= p.chunk_packets;
        if (!ends && !notice_lines(p, hop, next, epoch))
            return false;
        put_lines(p, hop, now, epoch, image);
        if (ends)
            return true;
        now = next;
        load_images(p, hop, now, image);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_link_signals(const __grid_constant__ weft_cuda_link p)
{
    uint64_t run = begin(p), end = run + p.runs;
    bool goes_on = true;
    for (; run < end && goes_on; run++)
        goes_on = blockIdx.x == 0 ? answer_enter(p, run) : answer_done(p, blockIdx.x - 1, run);
    __syncthreads();
    if (threadIdx.x == 0)
        p.answered[blockIdx.x * WEFT_CUDA_LINE_WORDS] = end;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_link_packets(const __grid_constant__ weft_cuda_link p)
{
    uint64_t run = begin(p), end = run + p.runs;
    bool goes_on = true;
    for (; run < end && goes_on; run++)
        for (int64_t first = blockIdx.x * p.chunk_packets;
             first < min(p.packets, (blockIdx.x + 1) * p.chunk_packets) && goes_on; first += THREADS)
            goes_on = answer_packets(p, first, run + 1);
    __syncthreads();
    if (threadIdx.x == 0)
        p.answered[blockIdx.x * WEFT_CUDA_LINE_WORDS] = end;
}

extern "C" __global__ void __launch_bounds__(2 * THREADS, 2)
    weft_link_lines(const __grid_constant__ weft_cuda_link p)
{
    int hop = (int)threadIdx.x / THREADS;
    uint64_t run = begin(p), end = run + p.runs;
    bool goes_on = true;
    for (; run < end && goes_on && blockIdx.x * p.chunk_packets < p.hop[hop].lines; run++)
        goes_on = answer_lines(p, hop, run + 1);
    __syncthreads();
    if (threadIdx.x == 0)
        p.answered[blockIdx.x * WEFT_CUDA_LINE_WORDS] = end;
}

/* The posts of a MoE round's other ranks: one thread. */
extern "C" __global__ void weft_experts_link(const __grid_constant__ weft_cuda_moe_link p)
{
    uint64_t round = *p.runs + 1;
    while (*(volatile uint64_t *)&p.state->round[p.phase] < round)
        __nanosleep(50);
    __threadfence();
    uint64_t due = *(volatile uint64_t *)&p.state->began_ns[p.phase] + p.delay_ns;
    for (int i = 1; i < p.world; i++, due += p.step_ns) {
        int r = p.rank >= i ? p.rank - i : p.rank - i + p.world;
        while (now_ns() < due)
            __nanosleep(50);
        atomicAdd_system((unsigned long long *)p.signals + (int64_t)r * WEFT_CUDA_LINE_WORDS,
                         (unsigned long long)p.posts);
    }
    *p.runs = round;
}
