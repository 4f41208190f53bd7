/*
 * Small collectives in one hop: see collective.h. A CTA has a chunk of every row, a thread the same packets
 * of all rows: it has read what it sends before it stores what comes, so recv may be send.
 *
 * Card: no shared memory, no barrier before the payload is stored, the packets of 4 ranks in flight a thread.
 */
#include "collective.h"
#include "core/round.h"
#include "early.cuh"
#include "packet.cuh"
#include "reduce.cuh"
#include "row.cuh"

namespace
{

enum { TOGETHER = 4 };

/* What a thread has of every row: packets at, at + blockDim.x, ... before `end`. */
struct Share {
    int64_t at, end, first; /* first: of the CTA */
    uint64_t epoch;
    const char *inbox; /* of this run's parity */
};

/* ---- sending and receiving --------------------------------------------------------------------------- */

__device__ __forceinline__ void send(const weft_cuda_packets &p, const Share &s)
{
    const char *held = NULL;
    uint64_t word = 0;
    for (int step = 1; step < p.world; step++) {
        int r = p.rank + step < p.world ? p.rank + step : p.rank + step - p.world;
        const weft_cuda_packet_peer &peer = p.peer[r];
        if (!peer.to || (!peer.send && s.at != s.first))
            continue;
        if (peer.send && peer.send != held)
            word = row_get(p.aligned, peer.send, p.bytes, s.at);
        held = peer.send;
        packet_put(peer.to + (s.epoch & 1) * p.parity_bytes + s.at * WEFT_CUDA_PACKET_BYTES, word, s.epoch);
    }
}

/* Whether rank r sends this rank a packet at that place. */
__device__ __forceinline__ bool comes(const weft_cuda_packets &p, const Share &s, int r)
{
    return r != p.rank &&
           (p.reduces || p.peer[r].recv || (p.peer[r].to && p.peer[r].send && s.at == s.first));
}

/* The first look at the packets of some ranks. Without a branch, so that all are in flight together: where
 * there is none to look for, what lies there is not used. */
__device__ __forceinline__ void look(const weft_cuda_packets &p, const Share &s, int r0, Packet x[TOGETHER])
{
#pragma unroll
    for (int j = 0; j < TOGETHER; j++)
        x[j] = packet_get(s.inbox + min(r0 + j, p.world - 1) * p.row_bytes + s.at * WEFT_CUDA_PACKET_BYTES);
}

/* The payload of rank r, `x` being the first look at its packet. */
__device__ __forceinline__ uint64_t take(const weft_cuda_packets &p, Watch &watch, const Share &s, int r,
                                         Packet x, uint64_t own)
{
    if (r == p.rank)
        return own;
    return comes(p, s, r) ? packet_await(p, watch, s.inbox + r * p.row_bytes + s.at * WEFT_CUDA_PACKET_BYTES,
                                         x, r, s.epoch)
                          : 0;
}

template <int DTYPE>
__device__ __forceinline__ void receive(const weft_cuda_packets &p, Watch &watch, const Share &s)
{
    Elements<DTYPE, uint64_t> sum;
    bool adds = p.reduction == WEFT_SUM || p.reduction == WEFT_AVERAGE;
    uint64_t own = p.peer[p.rank].send ? row_get(p.aligned, p.peer[p.rank].send, p.bytes, s.at) : 0;
#pragma unroll 1
    for (int r0 = 0; r0 < p.world && !watch.lost; r0 += TOGETHER) {
        Packet x[TOGETHER];
        look(p, s, r0, x);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int r = r0 + j;
            if (r >= p.world)
                break;
            uint64_t word = take(p, watch, s, r, x[j], own);
            if (!p.reduces) {
                if (p.peer[r].recv && !watch.lost)
                    row_set(p.aligned, p.peer[r].recv, p.bytes, s.at, word);
            } else if (r == 0) {
                sum.start(word);
            } else if (adds) {
                sum.template with<true>(p.reduction, word);
            } else {
                sum.template with<false>(p.reduction, word);
            }
        }
    }
    if (p.reduces && !watch.lost) {
        sum.end(p.reduction, p.world);
        row_set(p.aligned, p.peer[0].recv, p.bytes, s.at, sum.word());
    }
}

/* Parameters come from memory, too: this has them here before the stream has come. */
__device__ __forceinline__ bool touch_parameters(const weft_cuda_packets &p)
{
    uintptr_t all = 0;
    for (int r = 0; r < p.world; r++)
        all |= (uintptr_t)p.peer[r].send | (uintptr_t)p.peer[r].to | (uintptr_t)p.peer[r].recv;
    return all != 0;
}

/* All is sent before anything is waited for. */
template <int DTYPE> __device__ __forceinline__ void run(const weft_cuda_packets &p)
{
    int64_t total = weft_divide_up(p.bytes, WEFT_CUDA_PACKET_PAYLOAD), first = blockIdx.x * p.chunk_packets,
            begin = first + threadIdx.x;
    uint64_t *mine = p.epochs + (int64_t)blockIdx.x * WEFT_CUDA_LINE_WORDS;
    Share s = {begin, min(total, first + p.chunk_packets), first};
    Watch watch = {0, 0, false};
    if (!touch_parameters(p))
        return;
    wait_for_stream();
    s.epoch = __ldcg(mine) + 1;
    s.inbox = p.inbox + (s.epoch & 1) * p.parity_bytes;
    for (; s.at < s.end; s.at += blockDim.x)
        send(p, s);
    for (s.at = begin; s.at < s.end && !watch.lost; s.at += blockDim.x)
        receive<DTYPE>(p, watch, s);
    /* every thread has read the number, and of a run that was given up none is counted */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0)
        *mine = s.epoch;
}

} // namespace

/* By what is reduced, so that a kernel has the registers of one type; movement takes any. */
#define WEFT_PACKETS(name, dtype)                                                                            \
    extern "C" __global__ void __launch_bounds__(WEFT_CUDA_PACKETS_THREADS, 2)                               \
        weft_packets_##name(const __grid_constant__ weft_cuda_packets p)                                     \
    {                                                                                                        \
        run<dtype>(p);                                                                                       \
    }

WEFT_PACKETS(f32, WEFT_F32)
WEFT_PACKETS(f16, WEFT_F16)
WEFT_PACKETS(bf16, WEFT_BF16)
WEFT_PACKETS(i32, WEFT_I32)
WEFT_PACKETS(i64, WEFT_I64)
WEFT_PACKETS(f64, WEFT_F64)
WEFT_PACKETS(i8, WEFT_I8)
WEFT_PACKETS(u8, WEFT_U8)
