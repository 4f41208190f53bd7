/*
 * All-reduce by lines in two hops: see collective.h. A CTA has a chunk of every slice, eight threads
 * the same lines of all slices: they have read what they send before they store what comes, so recv may be
 * send.
 *
 * Its code is fetched anew by every launch, and waited for: what is rare is not unrolled, nor inlined many
 * times.
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
    int64_t stop;       /* where a thread's own begin that are beyond them */
    uint64_t epoch;
    int64_t parity; /* bytes into inboxes */
    uint32_t peers; /* a bit for each rank but this one */
    bool odd;       /* the caller's memory, in places: not of whole words */
};

/* Whether a slice has such a line. */
template <bool WHOLE> __device__ __forceinline__ bool has_line(int64_t bytes, int64_t line)
{
    return line * Line<WHOLE>::WORDS * WORD < bytes;
}

/* ---- the caller's memory ----------------------------------------------------------------------------- */

/* Words that are one access, as all are unless the run is odd, and 0 of others. */
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

template <bool WHOLE>
__device__ __forceinline__ void store_line(const weft_cuda_packets &p, char *row, int64_t bytes, int64_t line,
                                           const typename Line<WHOLE>::Payload &x)
{
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++)
        if (Line<WHOLE>::has_word(i) && row_has(p.aligned, bytes, Line<WHOLE>::word_at(line, i)))
            ((uint64_t *)row)[Line<WHOLE>::word_at(line, i)] = x.word[i];
}

/* Any words. */
template <bool WHOLE>
__device__ __forceinline__ typename Line<WHOLE>::Payload
load_odd_line(const weft_cuda_packets &p, const char *row, int64_t bytes, int64_t line)
{
    typename Line<WHOLE>::Payload x = {};
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++)
        if (Line<WHOLE>::has_word(i))
            x.word[i] = row_get(p.aligned, row, bytes, Line<WHOLE>::word_at(line, i));
    return x;
}

template <bool WHOLE>
__device__ __forceinline__ void store_odd_line(const weft_cuda_packets &p, char *row, int64_t bytes,
                                               int64_t line, const typename Line<WHOLE>::Payload &x)
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

/* Whole lines are stored and loaded by their eight threads in one instruction each, so the warp comes
 * together here, those without a line too: meeting eight at a time takes many instructions. Partner:
 * await_lines there. */
template <bool WHOLE>
__device__ __forceinline__ void put_line(bool here, char *row, const Run &run, int64_t line,
                                         const typename Line<WHOLE>::Payload &x)
{
    __syncwarp();
    if (here)
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
        const weft_cuda_packet_peer *to[TOGETHER];
        bool here[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            to[j] = &p.peer[rank_after(p, min(step + j, p.world - 1))];
            int64_t bytes = line < run.end ? to[j]->bytes : 0;
            here[j] = (step + j < p.world) & has_line<WHOLE>(bytes, line);
            x[j] = load_line<WHOLE>(p, to[j]->send, bytes, line);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            put_line<WHOLE>(here[j], to[j]->to, run, line, x[j]);
    }
}

template <bool WHOLE>
__device__ __forceinline__ void send_odd_slices(const weft_cuda_packets &p, const Run &run, int64_t line)
{
#pragma unroll 1
    for (int step = 1; step < p.world; step++) {
        const weft_cuda_packet_peer &to = p.peer[rank_after(p, step)];
        bool here = line < run.end && has_line<WHOLE>(to.bytes, line);
        typename Line<WHOLE>::Payload x = {};
        if (here)
            x = load_odd_line<WHOLE>(p, to.send, to.bytes, line);
        put_line<WHOLE>(here, to.to, run, line, x);
    }
}

/* Of ranks r0 and on, whose own is this rank's. */
template <int DTYPE, bool SUM_ONLY, class Payload>
__device__ __forceinline__ void combine_lines(const weft_cuda_packets &p, int r0, const Payload &own,
                                              const Payload x[TOGETHER], Elements<DTYPE, Payload> &sum)
{
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
        Payload word = r0 + j == p.rank ? own : x[j];
        if (j == 0 && r0 == 0)
            sum.start(word);
        else if (r0 + j < p.world)
            sum.template with<SUM_ONLY>(p.reduction, word);
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
    if (here)
        own = run.odd ? load_odd_line<WHOLE>(p, mine.send, mine.bytes, line)
                      : load_line<WHOLE>(p, mine.send, mine.bytes, line);
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        Packet x[TOGETHER];
        Payload words[TOGETHER];
        if (!await_lines<WHOLE>(p, run, watch, p.inbox, line, r0, here ? run.peers >> r0 : 0, x))
            return;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            words[j] = payload_of<WHOLE>(x[j]);
        if (p.reduction == WEFT_SUM || p.reduction == WEFT_AVERAGE)
            combine_lines<DTYPE, true>(p, r0, own, words, sum);
        else
            combine_lines<DTYPE, false>(p, r0, own, words, sum);
    }
    sum.end(p.reduction, p.world);
    Payload result = sum.word();
#pragma unroll 1
    for (int step = 1; step < p.world; step += TOGETHER)
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            put_line<WHOLE>(here & (step + j < p.world),
                            p.peer[rank_after(p, min(step + j, p.world - 1))].back, run, line, result);
    if (here && run.odd)
        store_odd_line<WHOLE>(p, mine.recv, mine.bytes, line, result);
    else if (here)
        store_line<WHOLE>(p, mine.recv, mine.bytes, line, result);
}

/* Odd ones are here and are looked at once more: what a loop takes cannot lie in registers. */
template <bool WHOLE>
__device__ __forceinline__ void store_odd_results(const weft_cuda_packets &p, const Run &run, int64_t line,
                                                  int r0, uint32_t wanted)
{
#pragma unroll 1
    for (; wanted; wanted &= wanted - 1) {
        int r = r0 + __ffs((int)wanted) - 1;
        Packet x = packet_get(p.results + r * p.row_bytes + run.parity + bytes_at(line));
        store_odd_line<WHOLE>(p, p.peer[r].recv, p.peer[r].bytes, line, payload_of<WHOLE>(x));
    }
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
            wanted |= (uint32_t)has_line<WHOLE>(p.peer[min(r0 + j, p.world - 1)].bytes, line) << j;
        wanted &= line < run.end ? run.peers >> r0 : 0;
        if (!await_lines<WHOLE>(p, run, watch, p.results, line, r0, wanted, x))
            return;
        if (run.odd) {
            store_odd_results<WHOLE>(p, run, line, r0, wanted);
            continue;
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (wanted >> j & 1)
                store_line<WHOLE>(p, p.peer[r0 + j].recv, p.peer[r0 + j].bytes, line,
                                  payload_of<WHOLE>(x[j]));
    }
}

/* Parameters come from memory, too: this has them here before the stream has come. Whether any access is of
 * less than a word. */
__device__ __forceinline__ bool touch_parameters(const weft_cuda_packets &p)
{
    uintptr_t all = 0, bytes = 0;
#pragma unroll 1
    for (int r = 0; r < p.world; r++) {
        all |= (uintptr_t)p.peer[r].send | (uintptr_t)p.peer[r].to | (uintptr_t)p.peer[r].recv |
               (uintptr_t)p.peer[r].back;
        bytes |= (uintptr_t)p.peer[r].bytes;
    }
    return !all || !p.aligned || bytes % WORD;
}

/* All lines of the CTA, the same number for every thread: a warp's go together. */
template <bool WHOLE>
__device__ __forceinline__ void send_all(const weft_cuda_packets &p, const Run &run, int64_t base)
{
    do {
        if (run.odd)
            send_odd_slices<WHOLE>(p, run, base);
        else
            send_slices<WHOLE>(p, run, base);
    } while ((base += CTA_LINES) < run.stop);
}

template <int DTYPE, bool WHOLE>
__device__ __forceinline__ void finish_all(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                           int64_t begin)
{
    int64_t base = begin;
    do
        add_up<DTYPE, WHOLE>(p, run, watch, base);
    while ((base += CTA_LINES) < run.stop && !watch.lost);
    base = begin;
    do
        take_results<WHOLE>(p, run, watch, base);
    while ((base += CTA_LINES) < run.stop && !watch.lost);
}

/*
 * All of a hop is sent before anything is waited for. Each half is gone through twice, first with lines that
 * nobody has: so its code is here before the stream has come, and the other half's while peers' lines are
 * under way.
 */
template <int DTYPE, bool WHOLE> __device__ __forceinline__ void run_lines(const weft_cuda_packets &p)
{
    uint64_t *mine = p.epochs + (int64_t)blockIdx.x * WEFT_CUDA_LINE_WORDS;
    int64_t begin = blockIdx.x * p.chunk_packets, own = threadIdx.x / WEFT_CUDA_LINE_THREADS;
    Run run = {begin, min(p.row_bytes / LINE_BYTES, begin + p.chunk_packets)};
    Watch watch = {0, 0, false};
    run.stop = run.end + own;
    run.peers = (uint32_t)(((1ull << p.world) - 1) & ~(1ull << p.rank));
    run.odd = touch_parameters(p);
#pragma unroll 1
    for (int dry = 1; dry >= 0; dry--) {
        if (!dry) {
            wait_for_stream();
            run.epoch = __ldcg(mine) + 1;
            run.parity = (int64_t)(run.epoch & 1) * p.parity_bytes;
        }
        send_all<WHOLE>(p, run, (dry ? run.end : begin) + own);
    }
#pragma unroll 1
    for (int dry = 1; dry >= 0; dry--)
        finish_all<DTYPE, WHOLE>(p, run, watch, (dry ? run.end : begin) + own);
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
