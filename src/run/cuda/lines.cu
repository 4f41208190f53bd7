/*
 * Collectives by lines: see collective.h. A CTA has a chunk of every slice, a warp the same line of all of
 * them, eight threads of it those of two ranks: they have read what they send before they store what comes,
 * so recv may be send.
 *
 * Its code is fetched anew by every launch, and waited for: so it is short, and what is rare stands apart.
 *
 * Card: no shared memory, no barrier before the payload is stored, the lines of 8 ranks in flight a warp, of
 * which each of its four groups of threads adds up a part: 62 registers, none spilled (bf16).
 */
#include "collective.h"
#include "early.cuh"
#include "packet.cuh"
#include "reduce.cuh"
#include "row.cuh"

namespace
{

enum {
    LINE_BYTES = WEFT_CUDA_LINE_BYTES,
    LINE_THREADS = WEFT_CUDA_LINE_THREADS,
    WARP = 32,
    HELD = 2,                              /* ranks' lines of a thread, */
    TOGETHER = HELD * WARP / LINE_THREADS, /* and of a warp */
    MOVED = -1                             /* instead of a type: nothing is added up */
};

/* Its own of the eight threads of a line; the first of the two ranks that they have of r0 and on. */
__device__ __forceinline__ int lane()
{
    return (int)threadIdx.x % LINE_THREADS;
}

__device__ __forceinline__ int first_rank(int r0)
{
    return r0 + (int)threadIdx.x % WARP / LINE_THREADS * HELD;
}

/* How lines are made; what a thread has of one. */
template <bool WHOLE> struct Line {
    enum { THREAD_WORDS = WHOLE ? 2 : 1, WORDS = WHOLE ? 15 : 8 };

    struct Payload {
        uint64_t word[THREAD_WORDS];
    };

    /* Of whole lines the last of the eight threads has the run's number instead of its second word. */
    static __device__ __forceinline__ bool has_number() { return !WHOLE || lane() == LINE_THREADS - 1; }
    static __device__ __forceinline__ int word_at(int line, int i)
    {
        return line * WORDS + lane() + i * LINE_THREADS;
    }

    static __device__ __forceinline__ bool has_word(int i) { return i == 0 || !has_number(); }
};

/* What a CTA does in this run. */
struct Run {
    int begin, end; /* lines of every slice: inboxes of more than 31 bits count fit no GPU */
    uint64_t epoch;
    int64_t parity; /* bytes into inboxes */
};

/* Whether a slice has such a line. */
template <bool WHOLE> __device__ __forceinline__ bool has_line(int64_t bytes, int line)
{
    return (int64_t)line * Line<WHOLE>::WORDS * WORD < bytes;
}

/* ---- the caller's memory: PLAIN where every word of it is one access ------------------------------------
 */

template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ typename Line<WHOLE>::Payload load_line(const weft_cuda_packets &p, bool here,
                                                                   const char *row, int64_t bytes, int line)
{
    typename Line<WHOLE>::Payload x = {};
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++) {
        int at = Line<WHOLE>::word_at(line, i);
        bool has = here && Line<WHOLE>::has_word(i);
        if (PLAIN)
            x.word[i] = row_load(has, row, bytes, at);
        else if (has)
            x.word[i] = row_get(p.aligned, row, bytes, at);
    }
    return x;
}

template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ void store_line(const weft_cuda_packets &p, bool here, char *row, int64_t bytes,
                                           int line, const typename Line<WHOLE>::Payload &x)
{
#pragma unroll
    for (int i = 0; i < Line<WHOLE>::THREAD_WORDS; i++) {
        int at = Line<WHOLE>::word_at(line, i);
        bool has = here && Line<WHOLE>::has_word(i);
        if (PLAIN && row_has(has, bytes, at))
            ((uint64_t *)row)[at] = x.word[i];
        else if (!PLAIN && has)
            row_set(p.aligned, row, bytes, at, x.word[i]);
    }
}

/* ---- lines ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ int64_t bytes_at(const Run &run, int line)
{
    return run.parity + (int64_t)line * LINE_BYTES + lane() * WEFT_CUDA_PACKET_BYTES;
}

/* Whole lines are stored and loaded by their eight threads in one instruction each, so the warp comes
 * together here. Partner: await_lines there. */
template <bool WHOLE>
__device__ __forceinline__ void put_line(bool here, char *row, const Run &run, int line,
                                         const typename Line<WHOLE>::Payload &x)
{
    __syncwarp();
    if (here)
        packet_put(row + bytes_at(run, line), x.word[0],
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

/* The lines of a warp, of ranks r0 and on. */
struct Round {
    int line;
    int r0;
    bool wanted[HELD]; /* by this thread, */
    Packet x[HELD];    /* and what has come */

    /* A thread's ranks, the last one where there is none. */
    __device__ __forceinline__ int rank(const weft_cuda_packets &p, int j) const
    {
        return min(first_rank(r0) + j, p.world - 1);
    }

    __device__ __forceinline__ bool is_peer(const weft_cuda_packets &p, int j) const
    {
        return first_rank(r0) + j < p.world && first_rank(r0) + j != p.rank;
    }
};

/*
 * Those of a warp's lines that are wanted. All are asked for together until all are there: one round trip
 * after the last has come, whichever that is. Where there is none to look for, what lies there is not used.
 * False when the run is given up.
 */
template <bool WHOLE>
__device__ __forceinline__ bool await_lines(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                            const char *rows, Round &round)
{
    const char *first = rows + bytes_at(run, round.line);
    while (true) {
        int missing = -1;
        uint64_t have = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < HELD; j++)
            round.x[j] = packet_get(first + round.rank(p, j) * p.row_bytes);
#pragma unroll
        for (int j = 0; j < HELD; j++)
            if (Line<WHOLE>::has_number() && round.wanted[j] && (int64_t)(round.x[j].epoch - run.epoch) < 0) {
                missing = round.rank(p, j);
                have = round.x[j].epoch;
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

/* ---- hops: `here` is false of a line that nobody has --------------------------------------------------- */

/* Of each slice its line to whoever adds it up. */
template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ void send_slices(const weft_cuda_packets &p, const Run &run, bool here, int line)
{
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        typename Line<WHOLE>::Payload x[HELD];
        Round round = {line, r0};
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            const weft_cuda_packet_peer &to = p.peer[round.rank(p, j)];
            round.wanted[j] = here && round.is_peer(p, j) && has_line<WHOLE>(to.bytes, line);
            x[j] = load_line<WHOLE, PLAIN>(p, round.wanted[j], to.send, to.bytes, line);
        }
#pragma unroll
        for (int j = 0; j < HELD; j++)
            put_line<WHOLE>(round.wanted[j], p.peer[round.rank(p, j)].to, run, line, x[j]);
    }
}

/* What a thread adds up of a line: groups of eight threads divide a line's parts among them. */
template <int DTYPE> struct Part {
    typedef uint32_t Word;
};
template <> struct Part<WEFT_I64> {
    typedef uint64_t Word;
};
template <> struct Part<WEFT_F64> {
    typedef uint64_t Word;
};

/*
 * Between two groups: of every two parts each has one in the end, of both groups' ranks, in their order;
 * where there is but one part, both have it.
 */
template <int MASK, class Word, int PARTS, int RANKS, int LEFT>
__device__ __forceinline__ void exchange(const Word (&x)[PARTS][RANKS], Word (&out)[LEFT][2 * RANKS])
{
    static_assert(LEFT == (PARTS + 1) / 2, "half of the parts");
    bool upper = threadIdx.x / LINE_THREADS & MASK;
#pragma unroll
    for (int part = 0; part < LEFT; part++) {
#pragma unroll
        for (int rank = 0; rank < RANKS; rank++) {
            Word low = x[PARTS > 1 ? 2 * part : 0][rank], high = x[PARTS > 1 ? 2 * part + 1 : 0][rank];
            Word came = __shfl_xor_sync(~0u, upper ? low : high, MASK * LINE_THREADS);
            out[part][rank] = upper ? came : low;
            out[part][RANKS + rank] = upper ? high : came;
        }
    }
}

/* A line of all ranks: part i of what they add up to is in group i. */
template <int DTYPE, class Payload> struct Sum {
    typedef typename Part<DTYPE>::Word Word;
    enum { PARTS = sizeof(Payload) / sizeof(Word) };
    Elements<DTYPE, Word> elements;

    /* Of ranks r0 and on, in their order. */
    __device__ __forceinline__ void with(const weft_cuda_packets &p, int r0, const Payload x[HELD])
    {
        Word held[PARTS][HELD], half[(PARTS + 1) / 2][2 * HELD], all[1][TOGETHER];
        bool adds = p.reduction == WEFT_SUM || p.reduction == WEFT_AVERAGE;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            Word words[PARTS];
            memcpy(words, &x[j], sizeof(words));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                held[part][j] = words[part];
        }
        exchange<1>(held, half);
        exchange<2>(half, all);
        if (r0 == 0)
            elements.start(all[0][0]);
#pragma unroll
        for (int i = 0; i < TOGETHER && adds; i++)
            if (r0 + i > 0 && r0 + i < p.world)
                elements.template with<true>(p.reduction, all[0][i]);
#pragma unroll
        for (int i = 0; i < TOGETHER && !adds; i++)
            if (r0 + i > 0 && r0 + i < p.world)
                elements.template with<false>(p.reduction, all[0][i]);
    }

    /* The whole line, in every group. */
    __device__ __forceinline__ Payload result(const weft_cuda_packets &p)
    {
        Payload out;
        Word words[PARTS];
        elements.end(p.reduction, p.world);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            words[part] = __shfl_sync(~0u, elements.word(), part * LINE_THREADS + lane());
        memcpy(&out, words, sizeof(out));
        return out;
    }
};

/* What all ranks have of this rank's slice, in their order; then, of two hops, back to all. */
template <int DTYPE, bool WHOLE, bool PLAIN>
__device__ __forceinline__ void add_up(const weft_cuda_packets &p, const Run &run, Watch &watch, bool here,
                                       int line)
{
    typedef typename Line<WHOLE>::Payload Payload;
    const weft_cuda_packet_peer &mine = p.peer[p.rank];
    Sum<DTYPE, Payload> sum;
    here = here && has_line<WHOLE>(mine.bytes, line);
    Payload own = load_line<WHOLE, PLAIN>(p, here, mine.send, mine.bytes, line);
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        Round round = {line, r0};
        Payload words[HELD];
#pragma unroll
        for (int j = 0; j < HELD; j++)
            round.wanted[j] = here && round.is_peer(p, j);
        if (!await_lines<WHOLE>(p, run, watch, p.inbox, round))
            return;
#pragma unroll
        for (int j = 0; j < HELD; j++)
            words[j] = first_rank(r0) + j == p.rank ? own : payload_of<WHOLE>(round.x[j]);
        sum.with(p, r0, words);
    }
    Payload result = sum.result(p);
#pragma unroll 1
    for (int r0 = 0; r0 < p.world && p.results; r0 += TOGETHER) {
        Round round = {line, r0};
#pragma unroll
        for (int j = 0; j < HELD; j++)
            put_line<WHOLE>(here && round.is_peer(p, j), p.peer[round.rank(p, j)].back, run, line, result);
    }
    store_line<WHOLE, PLAIN>(p, here && first_rank(0) == 0, mine.recv, mine.bytes, line, result);
}

/* What every peer has put into its row of `rows`, as it is. */
template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ void take_rows(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                          const char *rows, bool here, int line)
{
#pragma unroll 1
    for (int r0 = 0; r0 < p.world; r0 += TOGETHER) {
        Round round = {line, r0};
#pragma unroll
        for (int j = 0; j < HELD; j++)
            round.wanted[j] =
                here && round.is_peer(p, j) && has_line<WHOLE>(p.peer[round.rank(p, j)].bytes, line);
        if (!await_lines<WHOLE>(p, run, watch, rows, round))
            return;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            const weft_cuda_packet_peer &from = p.peer[round.rank(p, j)];
            store_line<WHOLE, PLAIN>(p, round.wanted[j], from.recv, from.bytes, line,
                                     payload_of<WHOLE>(round.x[j]));
        }
    }
}

/* All of a hop is sent before anything is waited for. */
template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ void send_all(const weft_cuda_packets &p, const Run &run, bool here, int line)
{
    do
        send_slices<WHOLE, PLAIN>(p, run, here, line);
    while ((line += (int)blockDim.x / WARP) < run.end && here);
}

/* Where nothing is added up: this rank's own line too. */
template <bool WHOLE, bool PLAIN>
__device__ __forceinline__ void move_line(const weft_cuda_packets &p, const Run &run, Watch &watch, bool here,
                                          int line)
{
    const weft_cuda_packet_peer &mine = p.peer[p.rank];
    bool own = here && first_rank(0) == 0 && has_line<WHOLE>(mine.bytes, line);
    store_line<WHOLE, PLAIN>(p, own, mine.recv, mine.bytes, line,
                             load_line<WHOLE, PLAIN>(p, own, mine.send, mine.bytes, line));
    take_rows<WHOLE, PLAIN>(p, run, watch, p.inbox, here, line);
}

template <int DTYPE, bool WHOLE, bool PLAIN>
__device__ __forceinline__ void finish_all(const weft_cuda_packets &p, const Run &run, Watch &watch,
                                           bool here, int first)
{
    int line = first;
    do
        if constexpr (DTYPE == MOVED)
            move_line<WHOLE, PLAIN>(p, run, watch, here, line);
        else
            add_up<DTYPE, WHOLE, PLAIN>(p, run, watch, here, line);
    while ((line += (int)blockDim.x / WARP) < run.end && here && !watch.lost);
    if (DTYPE == MOVED || !p.results)
        return;
    line = first;
    do
        take_rows<WHOLE, PLAIN>(p, run, watch, p.results, here, line);
    while ((line += (int)blockDim.x / WARP) < run.end && here && !watch.lost);
}

/*
 * Each half is gone through twice, first with a line that nobody has: so its code is here before the stream
 * has come, and the other half's while peers' lines are under way.
 */
template <int DTYPE, bool WHOLE, bool PLAIN>
__device__ __forceinline__ void run_lines(const weft_cuda_packets &p)
{
    uint64_t *mine = p.epochs + (int64_t)blockIdx.x * WEFT_CUDA_LINE_WORDS;
    int begin = (int)(blockIdx.x * p.chunk_packets), first = begin + (int)threadIdx.x / WARP;
    Run run = {begin, (int)min(p.row_bytes / LINE_BYTES, begin + p.chunk_packets)};
    Watch watch = {0, 0, false};
    bool has_lines = first < run.end;
#pragma unroll 1
    for (int dry = 1; dry >= 0; dry--) {
        if (!dry) {
            wait_for_stream();
            run.epoch = __ldcg(mine) + 1;
            run.parity = (int64_t)(run.epoch & 1) * p.parity_bytes;
        }
        send_all<WHOLE, PLAIN>(p, run, has_lines && !dry, dry ? begin : first);
    }
#pragma unroll 1
    for (int dry = 1; dry >= 0; dry--)
        finish_all<DTYPE, WHOLE, PLAIN>(p, run, watch, has_lines && !dry, dry ? begin : first);
    /* every thread has read the number, and of a run that was given up none is counted */
    if (!__syncthreads_or(watch.lost) && threadIdx.x == 0)
        *mine = run.epoch;
}

/* Whether all of the caller's memory is of whole words. Parameters come from memory, too: this has them here
 * before the stream has come. */
__device__ __forceinline__ bool whole_words(const weft_cuda_packets &p)
{
    uintptr_t all = 0, bytes = 0;
#pragma unroll 1
    for (int r = 0; r < p.world; r++) {
        all |= (uintptr_t)p.peer[r].send | (uintptr_t)p.peer[r].to | (uintptr_t)p.peer[r].recv |
               (uintptr_t)p.peer[r].back;
        bytes |= (uintptr_t)p.peer[r].bytes;
    }
    return all && p.aligned && bytes % WORD == 0;
}

template <int DTYPE, bool WHOLE> __device__ __forceinline__ void run_any(const weft_cuda_packets &p)
{
    if (whole_words(p))
        run_lines<DTYPE, WHOLE, true>(p);
    else
        run_lines<DTYPE, WHOLE, false>(p);
}

} // namespace

/* By what is reduced, so that a kernel has the registers of one type. */
#define WEFT_LINES_AS(name, dtype, whole)                                                                    \
    extern "C" __global__ void __launch_bounds__(WEFT_CUDA_PACKETS_THREADS, 2)                               \
        weft_lines_##name(const __grid_constant__ weft_cuda_packets p)                                       \
    {                                                                                                        \
        run_any<dtype, whole>(p);                                                                            \
    }

#define WEFT_LINES(name, dtype)                                                                              \
    WEFT_LINES_AS(name, dtype, true)                                                                         \
    WEFT_LINES_AS(parted_##name, dtype, false)

WEFT_LINES_AS(moved, MOVED, true)
WEFT_LINES(f32, WEFT_F32)
WEFT_LINES(f16, WEFT_F16)
WEFT_LINES(bf16, WEFT_BF16)
WEFT_LINES(i32, WEFT_I32)
WEFT_LINES(i64, WEFT_I64)
WEFT_LINES(f64, WEFT_F64)
WEFT_LINES(i8, WEFT_I8)
WEFT_LINES(u8, WEFT_U8)
