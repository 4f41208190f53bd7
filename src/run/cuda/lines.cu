/*
 * All-reduce by lines in two hops: see collective.h. A CTA has a chunk of every slice, eight threads
 * the same lines of all slices: they have read what they send before they store what comes, so recv may be
 * send.
 *
 * Card: no shared memory, no barrier before the payload is stored, the lines of 8 ranks in flight a thread.
 */
#include "collective.h"
#include "early.cuh"
#include "packet.cuh"
#include "reduce.cuh"
#include "row.cuh"

namespace
{

enum {
    THREADS = WEFT_CUDA_COLLECTIVE_THREADS,
    CTA_LINES = WEFT_CUDA_CTA_LINES,
    LINE_BYTES = WEFT_CUDA_LINE_BYTES,
    TOGETHER = 8
};

/* How lines are made; what a thread has of one. */
template <bool WHOLE> struct Line {
    enum { THREAD_WORDS = WHOLE ? 2 : 1, WORDS = WHOLE ? 15 : 8 };

    struct Payload {
        uint64_t word[THREAD_WORDS];
    };

    /* Of whole lines the last of the eight threads has the run's number instead of its second word. */
    static __device__ __forceinline__ bool has_number() { return !WHOLE || lane() == 7; }
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x % WEFT_CUDA_LINE_THREADS; }
    static __device__ __forceinline__ int64_t word_at(int64_t line, int i)
    {
        return line * WORDS + lane() + i * WEFT_CUDA_LINE_THREADS;
    }

    static __device__ __forceinline__ bool has_word(int i) { return i == 0 || !has_number(); }
};

/* What a CTA does in this run. */
struct Run {
    int64_t begin, end; /* lines of every slice */
    uint64_t epoch;
    int64_t parity; /* bytes into inboxes */
};

/* Whether a slice has such a line. */
template <bool WHOLE> __device__ __forceinline__ bool has_line(int64_t bytes, int64_t line)
{
    return line * Line<WHOLE>::WORDS * WORD < bytes;
}

/* ---- the caller's memory ----------------------------------------------------------------------------- */

template <bool WHOLE>
__device__ __forceinline__ typename Line<WHOLE>::Payload
load_line(const weft_cuda_packets &p, const char *row, int64_t bytes, int64_t line)
{
    typename Line<WHOLE>::Payload x;
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++)
        x.word[i] =
            row_load(p.aligned && Line<WHOLE>::has_word(i), row, bytes, Line<WHOLE>::word_at(line, i));
    return x;
}

/* What load_line left out: of odd addresses, and a row's end. */
template <bool WHOLE>
__device__ __forceinline__ void load_rest(const weft_cuda_packets &p, const char *row, int64_t bytes,
                                          int64_t line, typename Line<WHOLE>::Payload &x)
{
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++)
        if (Line<WHOLE>::has_word(i) && !row_has(p.aligned, bytes, Line<WHOLE>::word_at(line, i)))
            x.word[i] = row_get(p.aligned, row, bytes, Line<WHOLE>::word_at(line, i));
}

template <bool WHOLE>
__device__ __forceinline__ void store_line(const weft_cuda_packets &p, char *row, int64_t bytes, int64_t line,
                                           const typename Line<WHOLE>::Payload &x)
{
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++)
        if (Line<WHOLE>::has_word(i))
            row_set(p.aligned, row, bytes, Line<WHOLE>::word_at(line, i), x.word[i]);
}

/* ---- lines ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ int64_t bytes_at(int64_t line)
{
    return line * LINE_BYTES + (int)threadIdx.x % WEFT_CUDA_LINE_THREADS * WEFT_CUDA_PACKET_BYTES;
}

/* Whole lines are stored and loaded by their eight threads in one instruction each. */
template <bool WHOLE> __device__ __forceinline__ void meet_line()
{
    if (WHOLE)
        __syncwarp(0xffu << threadIdx.x % 32 / WEFT_CUDA_LINE_THREADS * WEFT_CUDA_LINE_THREADS);
}

/* Partner: await_lines there. */
template <bool WHOLE>
__device__ __forceinline__ void put_line(char *row, const Run &run, int64_t line,
                                         const typename Line<WHOLE>::Payload &x)
{
    meet_line<WHOLE>();
    packet_put(row + run.parity + bytes_at(line), x.word[0],
               Line<WHOLE>::has_number() ? run.epoch : x.word[Line<WHOLE>::THREAD_WORDS - 1]);
}

template <bool WHOLE> __device__ __forceinline__ typename Line<WHOLE>::Payload payload_of(const Packet &x)
{
    typename Line<WHOLE>::Payload out;
    out.word[0] = x.payload;
    if (WHOLE)
        out.word[Line<WHOLE>::THREAD_WORDS - 1] = x.epoch;
    return out;
}

/*
 * The lines of ranks r0 and on, of those that `wanted` has a bit for. All are asked for together until all
 * are there, of all lines of a warp: one round trip after the last has come, whichever that is. Where there
 * is none to look for, what lies there is not used. False when the run is given up.
 */
template <bool WHOLE>
__device__ __forceinline__ bool await_lines(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                            const char *rows, int64_t line, int r0, uint32_t wanted,
                                            Packet x[TOGETHER])
{
    const char *first = rows + run.parity + bytes_at(wanted ? line : run.begin);
    while (true) {
        int missing = -1;
        uint64_t have = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            x[j] = packet_get(first + min(r0 + j, p.world - 1) * p.row_bytes);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (Line<WHOLE>::has_number() && wanted >> j & 1 && (int64_t)(x[j].epoch - run.epoch) < 0) {
                missing = r0 + j;
                have = x[j].epoch;
            }
        if (!__any_sync(~0u, missing >= 0))
            return true;
        if (missing >= 0)
            keep_waiting(p, watch, missing, have, run.epoch);
        watch.lost = __any_sync(~0u, watch.lost);
        if (watch.lost)
            return false;
    }
}

/* ---- hops -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ int rank_after(const weft_cuda_packets &p, int step)
{
    return p.rank + step < p.world ? p.rank + step : p.rank + step - p.world;
}

/* Of each slice its line to whoever adds it up. */
template <bool WHOLE>
__device__ __forceinline__ void send_slices(const weft_cuda_packets &p, const Run &run, int64_t line)
{
#pragma unroll 1
    for (int step = 1; step < p.world; step += TOGETHER) {
        typename Line<WHOLE>::Payload x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const weft_cuda_packet_peer &to = p.peer[rank_after(p, min(step + j, p.world - 1))];
            x[j] = load_line<WHOLE>(p, to.send, to.bytes, line);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const weft_cuda_packet_peer &to = p.peer[rank_after(p, min(step + j, p.world - 1))];
            if (step + j >= p.world || !has_line<WHOLE>(to.bytes, line))
                continue;
            load_rest<WHOLE>(p, to.send, to.bytes, line, x[j]);
            put_line<WHOLE>(to.to, run, line, x[j]);
        }
    }
}

/* What all ranks have of this rank's slice, in their order; then back to all. */
template <int DTYPE, bool WHOLE>
__device__ __forceinline__ void add_up(const weft_cuda_packets &p, const Run &run, Watch &watch, int64_t line)
{
    typedef typename Line<WHOLE>::Payload Payload;
    const weft_cuda_packet_peer &mine = p.peer[p.rank];
    bool here = line < run.end && has_line<WHOLE>(mine.bytes, line);
    Elements<DTYPE, Payload> sum;
    Payload own = {};
    if (here) {
        own = load_line<WHOLE>(p, mine.send, mine.bytes, line);
        load_rest<WHOLE>(p, mine.send, mine.bytes, line, own);
    }
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        uint32_t wanted = 0;
        Packet x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            wanted |= (uint32_t)(here && r0 + j < p.world && r0 + j != p.rank) << j;
        if (!await_lines<WHOLE>(p, run, watch, p.inbox, line, r0, wanted, x))
            return;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (r0 + j >= p.world)
                break;
            Payload word = r0 + j == p.rank ? own : payload_of<WHOLE>(x[j]);
            if (r0 + j == 0)
                sum.start(word);
            else
                sum.template with<false>(p.reduction, word);
        }
    }
    if (!here)
        return;
    sum.end(p.reduction, p.world);
    Payload result = sum.word();
    store_line<WHOLE>(p, mine.recv, mine.bytes, line, result);
#pragma unroll 1
    for (int step = 1; step < p.world; step++)
        put_line<WHOLE>(p.peer[rank_after(p, step)].back, run, line, result);
}

template <bool WHOLE>
__device__ __forceinline__ void take_results(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                             int64_t line)
{
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        uint32_t wanted = 0;
        Packet x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            wanted |= (uint32_t)(line < run.end && r0 + j < p.world && r0 + j != p.rank &&
                                 has_line<WHOLE>(p.peer[min(r0 + j, p.world - 1)].bytes, line))
                      << j;
        if (!await_lines<WHOLE>(p, run, watch, p.results, line, r0, wanted, x))
            return;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (wanted >> j & 1)
                store_line<WHOLE>(p, p.peer[r0 + j].recv, p.peer[r0 + j].bytes, line,
                                  payload_of<WHOLE>(x[j]));
    }
}

/* Parameters come from memory, too: this has them here before the stream has come. */
__device__ __forceinline__ bool touch_parameters(const weft_cuda_packets &p)
{
    uintptr_t all = 0;
    for (int r = 0; r < p.world; r++)
        all |= (uintptr_t)p.peer[r].send | (uintptr_t)p.peer[r].to | (uintptr_t)p.peer[r].recv |
               (uintptr_t)p.peer[r].back | (uintptr_t)p.peer[r].bytes;
    return all != 0;
}

/* All of a hop is sent before anything is waited for; a warp's lines go together. */
template <int DTYPE, bool WHOLE> __device__ __forceinline__ void run_lines(const weft_cuda_packets &p)
{
    uint64_t *mine = p.epochs + (int64_t)blockIdx.x * WEFT_CUDA_LINE_WORDS;
    int64_t begin = blockIdx.x * p.chunk_packets, own = threadIdx.x / WEFT_CUDA_LINE_THREADS;
    Run run = {begin, min(p.row_bytes / LINE_BYTES, begin + p.chunk_packets)};
    Watch watch = {0, 0, false};
    if (!touch_parameters(p))
        return;
    wait_for_stream();
    run.epoch = __ldcg(mine) + 1;
    run.parity = (int64_t)(run.epoch & 1) * p.parity_bytes;
    for (int64_t line = begin + own; line < run.end; line += CTA_LINES)
        send_slices<WHOLE>(p, run, line);
    for (int64_t base = begin; base < run.end && !watch.lost; base += CTA_LINES)
        add_up<DTYPE, WHOLE>(p, run, watch, base + own);
    for (int64_t base = begin; base < run.end && !watch.lost; base += CTA_LINES)
        take_results<WHOLE>(p, run, watch, base + own);
    /* every thread has read the number, and of a run that was given up none is counted */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0)
        *mine = run.epoch;
}

} // namespace

/* By what is reduced, so that a kernel has the registers of one type. */
#define WEFT_LINES_AS(name, dtype, whole)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                 \
        weft_lines_##name(const __grid_constant__ weft_cuda_packets p)                                       \
    {                                                                                                        \
        run_lines<dtype, whole>(p);                                                                          \
    }

#define WEFT_LINES(name, dtype)                                                                              \
    WEFT_LINES_AS(name, dtype, true)                                                                         \
    WEFT_LINES_AS(parted_##name, dtype, false)

WEFT_LINES(f32, WEFT_F32)
WEFT_LINES(f16, WEFT_F16)
WEFT_LINES(bf16, WEFT_BF16)
WEFT_LINES(i32, WEFT_I32)
WEFT_LINES(i64, WEFT_I64)
WEFT_LINES(f64, WEFT_F64)
WEFT_LINES(i8, WEFT_I8)
WEFT_LINES(u8, WEFT_U8)
