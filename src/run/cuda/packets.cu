/*
 * Small collectives in one hop: see collective.h. A CTA has a chunk of every row, a thread the same packets
 * of all rows: it has read what it sends before it stores what comes, so recv may be send.
 *
 * Card: no shared memory, no barrier before the payload is stored; 4 packets in flight a thread.
 */
#include "collective.h"
#include "order.cuh"
#include "reduce.cuh"

namespace
{

enum { THREADS = WEFT_CUDA_COLLECTIVE_THREADS, TOGETHER = 4 };

struct Packet {
    uint64_t payload, epoch;
};

/* Payload and flag in one store; partner: packet_get there. */
__device__ __forceinline__ void packet_put(char *to, uint64_t payload, uint64_t epoch)
{
    asm volatile("{ .reg .b128 p; mov.b128 p, {%1, %2}; st.relaxed.sys.global.b128 [%0], p; }" ::"l"(to),
                 "l"(payload), "l"(epoch)
                 : "memory");
}

__device__ __forceinline__ Packet packet_get(const char *from)
{
    Packet p;
    asm volatile("{ .reg .b128 p; ld.relaxed.sys.global.b128 p, [%2]; mov.b128 {%0, %1}, p; }"
                 : "=l"(p.payload), "=l"(p.epoch)
                 : "l"(from)
                 : "memory");
    return p;
}

/* ---- the caller's memory ----------------------------------------------------------------------------- */

/* The 8 bytes of a row that packet `at` carries; the last one of a row may have fewer. */
__device__ __forceinline__ uint64_t row_get(const weft_cuda_packets &p, const char *row, int64_t at)
{
    int64_t begin = at * WEFT_CUDA_PACKET_PAYLOAD, left = p.bytes - begin;
    if (p.aligned && left >= WEFT_CUDA_PACKET_PAYLOAD)
        return *(const uint64_t *)(row + begin);
    uint64_t word = 0;
    for (int i = 0; i < WEFT_CUDA_PACKET_PAYLOAD && i < left; i++)
        word |= (uint64_t)(uint8_t)row[begin + i] << 8 * i;
    return word;
}

__device__ __forceinline__ void row_set(const weft_cuda_packets &p, char *row, int64_t at, uint64_t word)
{
    int64_t begin = at * WEFT_CUDA_PACKET_PAYLOAD, left = p.bytes - begin;
    if (p.aligned && left >= WEFT_CUDA_PACKET_PAYLOAD) {
        *(uint64_t *)(row + begin) = word;
        return;
    }
    for (int i = 0; i < WEFT_CUDA_PACKET_PAYLOAD && i < left; i++)
        row[begin + i] = (char)(word >> 8 * i);
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

/* The first expired wait of the rank writes the record, then raises every rank's abort word. */
__device__ void packet_expired(const weft_cuda_packets &p, int from, uint64_t have, uint64_t want)
{
    weft_cuda_record *record = &p.control->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = 0;
        record->signal = (uint32_t)from;
        record->lane = blockIdx.x;
        record->run = want - 1;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < p.world; r++)
        atomicExch_system(&p.peers[r]->abort, 1u);
}

struct Watch {
    uint64_t began;
    uint32_t looks;
    bool lost;
};

/* A look that found nothing: whether to go on asking. */
__device__ __forceinline__ bool keep_waiting(const weft_cuda_packets &p, Watch &watch, int from,
                                             uint64_t have, uint64_t want)
{
    if (++watch.looks % 64)
        return true;
    if (load_relaxed(&p.control->abort)) {
        watch.lost = true;
    } else if (watch.looks % 4096 == 0 && p.stop && load_relaxed(p.stop)) { /* across the bus */
        atomicExch_system(&p.control->abort, 1u);
        watch.lost = true;
    } else {
        uint64_t now = now_ns();
        if (!watch.began) {
            watch.began = now;
        } else if (now - watch.began > p.deadline_ns) {
            packet_expired(p, from, have, want);
            watch.lost = true;
        }
    }
    return !watch.lost;
}

/* The packet of run `epoch`; anything when the run is given up. */
__device__ __forceinline__ uint64_t packet_await(const weft_cuda_packets &p, Watch &watch, const char *inbox,
                                                 Packet packet, int from, uint64_t epoch)
{
    while ((int64_t)(packet.epoch - epoch) < 0 && keep_waiting(p, watch, from, packet.epoch, epoch))
        packet = packet_get(inbox);
    return packet.payload;
}

/* ---- sending and receiving --------------------------------------------------------------------------- */

__device__ __forceinline__ void send(const weft_cuda_packets &p, int64_t at, int64_t first, uint64_t epoch)
{
    const char *held = NULL;
    uint64_t word = 0;
    for (int step = 1; step < p.world; step++) {
        int r = p.rank + step < p.world ? p.rank + step : p.rank + step - p.world;
        const char *row = p.send[r];
        if (!p.to[r] || (!row && at != first))
            continue;
        if (row && row != held)
            word = row_get(p, row, at);
        held = row;
        packet_put(p.to[r] + (epoch & 1) * p.parity_bytes + at * WEFT_CUDA_PACKET_BYTES, word, epoch);
    }
}

template <int DTYPE>
__device__ __forceinline__ void receive_sum(const weft_cuda_packets &p, Watch &watch, const char *inbox,
                                            int64_t at, uint64_t epoch)
{
    Elements<DTYPE, uint64_t> sum;
    inbox += at * WEFT_CUDA_PACKET_BYTES;
    for (int r0 = 0; r0 < p.world && !watch.lost; r0 += TOGETHER) {
        Packet x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (r0 + j < p.world)
                x[j] = r0 + j == p.rank ? Packet{row_get(p, p.send[p.rank], at), epoch}
                                        : packet_get(inbox + (r0 + j) * p.row_bytes);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int r = r0 + j;
            if (r >= p.world)
                break;
            uint64_t word = packet_await(p, watch, inbox + r * p.row_bytes, x[j], r, epoch);
            if (r == 0)
                sum.start(word);
            else
                sum.template with<false>(p.reduction, word);
        }
    }
    if (!watch.lost)
        row_set(p, p.recv[0], at, sum.word());
}

__device__ __forceinline__ void receive_rows(const weft_cuda_packets &p, Watch &watch, const char *inbox,
                                             int64_t at, int64_t first, uint64_t epoch)
{
    inbox += at * WEFT_CUDA_PACKET_BYTES;
    for (int r0 = 0; r0 < p.world && !watch.lost; r0 += TOGETHER) {
        Packet x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int r = r0 + j;
            bool comes = r < p.world && r != p.rank && (p.recv[r] || (p.to[r] && p.send[r] && at == first));
            x[j] = Packet{0, epoch}; /* nothing to wait for */
            if (comes)
                x[j] = packet_get(inbox + r * p.row_bytes);
            else if (r == p.rank && p.recv[r])
                x[j].payload = row_get(p, p.send[r], at);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int r = r0 + j;
            if (r >= p.world)
                break;
            uint64_t word = packet_await(p, watch, inbox + r * p.row_bytes, x[j], r, epoch);
            if (p.recv[r] && !watch.lost)
                row_set(p, p.recv[r], at, word);
        }
    }
}

__device__ __forceinline__ void receive(const weft_cuda_packets &p, Watch &watch, const char *inbox,
                                        int64_t at, int64_t first, uint64_t epoch)
{
    if (!p.reduces)
        return receive_rows(p, watch, inbox, at, first, epoch);
    switch (p.dtype) {
    case WEFT_F16:
        return receive_sum<WEFT_F16>(p, watch, inbox, at, epoch);
    case WEFT_BF16:
        return receive_sum<WEFT_BF16>(p, watch, inbox, at, epoch);
    case WEFT_I32:
        return receive_sum<WEFT_I32>(p, watch, inbox, at, epoch);
    case WEFT_I64:
        return receive_sum<WEFT_I64>(p, watch, inbox, at, epoch);
    default:
        return receive_sum<WEFT_F32>(p, watch, inbox, at, epoch);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    weft_packets(const __grid_constant__ weft_cuda_packets p)
{
    uint64_t *mine = p.epochs + (int64_t)blockIdx.x * WEFT_CUDA_LINE_WORDS, epoch = __ldcg(mine) + 1;
    int64_t total = (p.bytes + WEFT_CUDA_PACKET_PAYLOAD - 1) / WEFT_CUDA_PACKET_PAYLOAD,
            first = blockIdx.x * p.chunk_packets, end = min(total, first + p.chunk_packets);
    const char *inbox = p.inbox + (epoch & 1) * p.parity_bytes;
    Watch watch = {0, 0, false};
    for (int64_t at = first + threadIdx.x; at < end; at += THREADS)
        send(p, at, first, epoch);
    for (int64_t at = first + threadIdx.x; at < end && !watch.lost; at += THREADS)
        receive(p, watch, inbox, at, first, epoch);
    /* every thread has read the number, and of a run that was given up none is counted */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0)
        *mine = epoch;
}
