/*
 * Products by themselves, with few rows or few tiles: see splitk.h.
 *
 * Card: a CTA has a warpgroup for each 64 columns of its tile and one warp that feeds the stages, each of 64
 * of k: 7, 6 and 5 stages of 9, 10 and 12 KiB with 8, 16 and 32 tokens, where three CTAs fit an SM, so that
 * some stream while others begin or end (10 and 8 with 16 and 32 where an SM has no more than one); 6 of 16
 * KiB with 64, where two do; else 4 to 8 of 24 to 48 KiB. Tiles of 128 and 256 tokens multiply no more of
 * them than there are, in 16s. The sums leave through the stages' memory, transposed to whole rows of D:
 * where one CTA has all of k as 16 bits, 1500 cycles for 128 x 128, else as float32, added up by those who
 * share them, 5700. Out of memory 3.9 to 4.4 TB/s with up to 16 tokens, and 2.2 us a launch. Beside cuBLASLt
 * (docs/performance/gpu.md): 0.88 to 1.6 with up to 16 tokens, 0.8 to 1.2 with 64 and 128, 0.71 to 1.1
 * with more.
 */
#include "splitk.h"

#include "core/round.h"
#include "early.cuh"
#include "hopper.cuh"
#include "plain.cuh"
#include "wgmma.cuh"
#ifdef WEFT_CUDA_SENDS
#include "exchange.cuh"
#endif

namespace
{

constexpr int STEP = WEFT_CUDA_SPLITK_STEP, BOX_BYTES = 8192;
constexpr int SLICES = WEFT_CUDA_SPLITK_SLICES;
constexpr int BARRIERS = 32; /* at most, of the stages' two kinds: there are 1024 bytes */
constexpr int WIDTH = 8;     /* columns of a row that a thread adds up together */

/* Compiled once for each dtype, so that the two can be built beside each other. */
#ifdef WEFT_CUDA_F16
constexpr bool BF16 = false;
[[maybe_unused]] constexpr int NARROW = DTYPE_F16;
#else
constexpr bool BF16 = true;
[[maybe_unused]] constexpr int NARROW = DTYPE_BF16;
#endif

/* Sums go to the ranks that add them up. */
#ifdef WEFT_CUDA_SENDS
constexpr bool SENDS = true;
#else
constexpr bool SENDS = false;
#endif

/* Slices send their sums through memory to those that add them up: see slices_sm90.cuh. */
#ifdef WEFT_CUDA_SENT
constexpr bool SENT = true;
#else
constexpr bool SENT = false;
#endif

/* The shape of a tile, and where its parts are in shared memory: the stages from a multiple of 1024 on, and
 * before them their barriers. */
template <int TOKENS_, int COLS_, int CTAS> struct Tile {
    static constexpr int TOKENS = TOKENS_, COLS = COLS_, GROUPS = COLS / 64, SUMS = TOKENS / 2;
    static constexpr int WIDTH_LEAST = WEFT_CUDA_SPLITK_WIDTH_LEAST(TOKENS);
    static constexpr int WEIGHT_BYTES = COLS * 2 * STEP;
    static constexpr int LEAST = WEFT_CUDA_SPLITK_STAGES(TOKENS, COLS, CTAS); /* stages of all tokens */
    static constexpr int CONSUMERS = 128 * GROUPS;
    static constexpr int LINE = COLS + 4; /* floats; the columns of four tokens fall on all banks */
    static constexpr uint32_t full = 0u - 1024, empty = full + 8 * BARRIERS, early = empty + 8 * BARRIERS,
                              last = early + 8 * WEFT_CUDA_SPLITK_AHEAD;
    static_assert(4 * LINE * TOKENS <= LEAST * WEFT_CUDA_SPLITK_STAGE_BYTES(TOKENS, COLS),
                  "the sums go where the stages were");
};

/* A barrier of the cluster that orders no memory: what was read from others has come. With cluster_sync
 * every CTA would wait until its stores are written. */
__device__ __forceinline__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n" ::: "memory");
}

/* A barrier of the CTA's consumers. */
template <int THREADS> __device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

__device__ __forceinline__ void put(float (&sum)[WIDTH], const float4 (&x)[2])
{
    sum[0] = x[0].x, sum[1] = x[0].y, sum[2] = x[0].z, sum[3] = x[0].w;
    sum[4] = x[1].x, sum[5] = x[1].y, sum[6] = x[1].z, sum[7] = x[1].w;
}

__device__ __forceinline__ void add(float (&sum)[WIDTH], const float4 (&x)[2])
{
    sum[0] += x[0].x, sum[1] += x[0].y, sum[2] += x[0].z, sum[3] += x[0].w;
    sum[4] += x[1].x, sum[5] += x[1].y, sum[6] += x[1].z, sum[7] += x[1].w;
}

/* What a CTA does: a tile's share of k. CTAs of a cluster that are side by side share their tokens. */
struct Work {
    int tile, group, slice, peer; /* peer: which of the sharers it is */
    int token0, col0;
    int step, end;
};

template <class T> __device__ __forceinline__ Work work_of(const weft_cuda_splitk &p)
{
    int rank = (int)cluster_rank(), slice = rank / p.sharers, peer = rank % p.sharers,
        rest = (int)blockIdx.x / (p.slices * p.sharers), group = rest % p.groups, set = rest / p.groups,
        part = group * p.slices + slice, parts = p.slices * p.groups;
    return {set * p.sharers + peer,
            group,
            slice,
            peer,
            set % p.m_tiles * p.rows * p.sharers,
            (set / p.m_tiles * p.sharers + peer) * T::COLS,
            (int)((int64_t)p.steps * part / parts),
            (int)((int64_t)p.steps * (part + 1) / parts)};
}

/* Of a CTA's columns those that there are, in boxes of 64: what lies beyond the operands is not asked for,
 * because zeros in its place take longer than data. What stays there of earlier stages goes into sums that
 * nobody reads. */
template <class T> __device__ __forceinline__ int boxes_of(const weft_cuda_splitk &p, const Work &w)
{
    return min(T::GROUPS, max(0, weft_divide_up(p.n - w.col0, 64)));
}

/* The weights of a step, ALONG_K: k is contiguous in their memory. */
template <class T, bool ALONG_K>
__device__ __forceinline__ void load_weights(const weft_cuda_splitk &p, const Work &w, int step, uint32_t at,
                                             uint32_t bar)
{
    int boxes = boxes_of<T>(p, w);
#pragma unroll
    for (int i = 0; i < T::GROUPS; i++)
        if (i < boxes && ALONG_K)
            tile_load(at + i * BOX_BYTES, &p.weights, bar, step * STEP, w.col0 + i * 64);
        else if (i < boxes)
            tile_load(at + i * BOX_BYTES, &p.weights, bar, w.col0 + i * 64, step * STEP);
}

/* Its tokens, behind them in a stage. */
template <class T>
__device__ __forceinline__ void load_tokens(const weft_cuda_splitk &p, const Work &w, int step, uint32_t at,
                                            uint32_t bar)
{
    uint16_t mask = (uint16_t)(((1 << p.sharers) - 1) << w.slice * p.sharers);
    at += T::WEIGHT_BYTES + w.peer * p.rows * (2 * STEP);
    if (p.sharers == 1)
        tile_load(at, &p.tokens, bar, step * STEP, w.token0);
    else
        tile_load_shared(at, &p.tokens, bar, step * STEP, w.token0 + w.peer * p.rows, mask);
}

/* Steps whose weights come early, into the first stages: see ahead of weft_cuda_splitk. */
__device__ __forceinline__ int ahead_of(const weft_cuda_splitk &p, const Work &w)
{
    return SENDS ? min(p.ahead, w.end - w.step) : 0;
}

/* One thread, while the kernel before this one ends. */
template <class T, bool ALONG_K>
__device__ __forceinline__ void fetch_ahead(const weft_cuda_splitk &p, const Work &w, uint32_t smem)
{
    static_assert(T::LEAST >= WEFT_CUDA_SPLITK_AHEAD, "each has a stage");
    for (int i = 0; i < ahead_of(p, w); i++) {
        bar_expect(smem + T::early + 8 * i, (uint32_t)boxes_of<T>(p, w) * BOX_BYTES);
        load_weights<T, ALONG_K>(p, w, w.step + i, smem + i * p.stage_bytes, smem + T::early + 8 * i);
    }
}

/* One thread of the consumers, of the same steps when it has ended: in front of further weights, from the
 * thread that asks for those, they hold them up by half a microsecond. */
template <class T>
__device__ __forceinline__ void fetch_tokens(const weft_cuda_splitk &p, const Work &w, uint32_t smem)
{
    for (int i = 0; i < ahead_of(p, w); i++) {
        bar_expect(smem + T::full + 8 * i, (uint32_t)(p.rows * p.sharers) * (2 * STEP));
        load_tokens<T>(p, w, w.step + i, smem + i * p.stage_bytes, smem + T::full + 8 * i);
    }
}

/* One thread: keeps the stages full. */
template <class T, bool ALONG_K>
__device__ __forceinline__ void produce(const weft_cuda_splitk &p, const Work &w, uint32_t smem)
{
    int ahead = ahead_of(p, w);
    uint32_t stage = (uint32_t)ahead, phase = 1;
    uint32_t bytes = (uint32_t)(p.rows * p.sharers + boxes_of<T>(p, w) * 64) * (2 * STEP);
    for (int s = w.step + ahead; s < w.end; s++) {
        if (stage == (uint32_t)p.stages) {
            stage = 0;
            phase ^= 1;
        }
        uint32_t at = smem + stage * p.stage_bytes, full = smem + T::full + 8 * stage;
        bar_wait(smem + T::empty + 8 * stage, phase);
        bar_expect(full, bytes);
        load_weights<T, ALONG_K>(p, w, s, at, full);
        load_tokens<T>(p, w, s, at, full);
        stage++;
    }
}

/* A warpgroup: the products of its 64 columns with the first N tokens of the tile. */
template <class T, bool ALONG_K, int N>
__device__ __forceinline__ void consume(const weft_cuda_splitk &p, const Work &w, uint32_t smem,
                                        float (&all)[T::SUMS])
{
    float(&d)[N / 2] = *(float(*)[N / 2]) all;
    constexpr uint32_t WEIGHT_STEP = ALONG_K ? 32 : 2048;
    uint32_t stage = 0, phase = 0, last = 0, group = threadIdx.x / 128;
    int ahead = w.step + ahead_of(p, w);
    for (int s = w.step; s < w.end; s++) {
        uint32_t at = smem + stage * p.stage_bytes;
        if (s < ahead)
            bar_wait(smem + T::early + 8 * stage, 0);
        bar_wait(smem + T::full + 8 * stage, phase);
        uint64_t a = operand(at + group * BOX_BYTES, BOX_BYTES, 1024),
                 b = operand(at + T::WEIGHT_BYTES, BOX_BYTES, 1024);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<BF16, !ALONG_K, 0>(d, a + k * (WEIGHT_STEP >> 4), b + k * (32 >> 4), (s - w.step) | k);
        wgmma_commit();
        if (s > w.step) { /* the step before has been read */
            wgmma_wait<1>();
            if ((int)threadIdx.x % 128 < p.sharers)
                bar_arrive_at(last, w.slice * p.sharers + threadIdx.x % 128);
        }
        last = smem + T::empty + 8 * stage;
        if (++stage == (uint32_t)p.stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    wgmma_wait<0>();
}

/* Of large tiles no more tokens than there are. */
template <class T, bool ALONG_K, int N = T::TOKENS>
__device__ __forceinline__ void consume_width(const weft_cuda_splitk &p, const Work &w, uint32_t smem,
                                              float (&d)[T::SUMS])
{
    if constexpr (N <= T::WIDTH_LEAST)
        consume<T, ALONG_K, N>(p, w, smem, d);
    else if (p.width == N)
        consume<T, ALONG_K, N>(p, w, smem, d);
    else
        consume_width<T, ALONG_K, N - WEFT_CUDA_SPLITK_WIDTHS>(p, w, smem, d);
}

/* Whether sums j and the three behind it, of 8 tokens, have been made. Of tiles of fewer than 256 tokens what
 * has not goes along: to ask takes longer. */
template <class T> __device__ __forceinline__ bool has_sums(const weft_cuda_splitk &p, int j)
{
    return T::TOKENS != 256 || 2 * j < T::WIDTH_LEAST || 2 * j < p.width;
}

} // namespace

#include "slices_sm90.cuh"

namespace
{

/* The sums of a tile that one CTA has made, as 16 bits: transposed on the way through shared memory, where
 * lines of NARROW_LINE elements put every 8 tokens on all banks. Then put(row, col, x) has WIDTH of a row. */
template <class T, class Put>
__device__ __forceinline__ void own_sums(const weft_cuda_splitk &p, const Work &w, const float (&d)[T::SUMS],
                                         uint32_t smem, Put put)
{
    constexpr int ACROSS = T::COLS / WIDTH, NARROW_LINE = T::COLS + 8;
    int lane = threadIdx.x % 32, col = threadIdx.x / 32 * 16;
    uint32_t at = smem + 2 * (lane % 8 * NARROW_LINE + col + lane / 8 % 2 * 8);
#pragma unroll
    for (int j = 0; j < T::SUMS; j += 4, at += 2 * 8 * NARROW_LINE)
        if (has_sums<T>(p, j))
            asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at),
                         "r"(narrow2(d[j], d[j + 1], NARROW)), "r"(narrow2(d[j + 2], d[j + 3], NARROW))
                         : "memory");
    consumers_sync<T::CONSUMERS>();
    int total = min(p.rows * p.sharers, p.m - w.token0) * ACROSS;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < total; i += T::CONSUMERS) {
        int token = i / ACROSS, across = i % ACROSS * WIDTH;
        uint4 x;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(smem + 2 * (token * NARROW_LINE + across))
                     : "memory");
        if (w.col0 + across < p.n)
            put(w.token0 + token, w.col0 + across, x);
    }
}

/* Where a tile's sums go, and what comes of them. */
#ifdef WEFT_CUDA_SENDS
/* As marked words to the ranks that add them up: n is a multiple of WIDTH there. */
struct Out {
    const weft_cuda_exchange &x;
    uint64_t epoch;

    /* Before the product: what its end needs is here then, parameters too, which come from memory. */
    __device__ __forceinline__ void begin()
    {
        uintptr_t all = 0;
#pragma unroll 1
        for (int r = 0; r < x.world; r++)
            all |= (uintptr_t)x.to[r] | (uintptr_t)x.results[r];
        asm volatile("" ::"l"(all | (uintptr_t)x.inbox | (uintptr_t)x.d));
        epoch = run_number(x);
    }

    /* The next kernel comes in when this one has multiplied, and is in nobody's way before. */
    __device__ __forceinline__ void enter() const
    {
        wait_for_last();
    }
    __device__ __forceinline__ void multiplied() const
    {
        let_next_in();
    }

    template <class T>
    __device__ __forceinline__ void own(const weft_cuda_splitk &p, const Work &w, float (&d)[T::SUMS],
                                        uint32_t smem) const
    {
        own_sums<T>(p, w, d, smem, [&](int row, int col, const uint4 &sums) {
            uint4 units[] = {make_uint4(marked(sums.x), marked(sums.y), marked(sums.z), marked(sums.w))};
            send_units(x, epoch, row, col, units);
        });
    }

    __device__ __forceinline__ void operator()(const weft_cuda_splitk &p, int row, int col,
                                               float (&sum)[WIDTH]) const
    {
        static_assert(WIDTH == EXCHANGE_WIDTH, "of one thread");
        if (col < p.n)
            send_sums(x, epoch, row, col, sum);
    }

    __device__ __forceinline__ bool receives() const
    {
        return x.receives;
    }

    /* The same share of what all ranks sent: adds up rows that are this rank's, then takes those that others
     * have added up, where they send them. */
    template <class T> __device__ __forceinline__ void receive(const Work &w, int rows, int slices) const
    {
        constexpr int ACROSS = T::COLS / WIDTH;
        int total = min(rows, x.m - w.token0) * ACROSS, first = w.slice * T::CONSUMERS + (int)threadIdx.x,
            step = slices * T::CONSUMERS;
        Watch watch = {0, 0, false};
#pragma unroll 1
        for (int at = first; at < total && !watch.lost; at += step) {
            int row = w.token0 + at / ACROSS, col = w.col0 + at % ACROSS * WIDTH;
            if (col < x.n && owns(x, row))
                receive_sums(x, watch, epoch, row, col);
        }
        if (x.returns)
            receive_results(x, watch, epoch, first, total, step, [&](int at, int &row, int &col) {
                row = w.token0 + at / ACROSS, col = w.col0 + at % ACROSS * WIDTH;
                return col < x.n && !owns(x, row);
            });
    }

    __device__ __forceinline__ void end() const
    {
        count_run(x);
    }
};
#else
/* WIDTH sums of a row of D, from column `col` on, which it may not all have. */
__device__ void finish_some(const weft_cuda_splitk &p, int row, int col, const float (&x)[WIDTH])
{
    for (int i = 0; i < WIDTH && col + i < p.n; i++) {
        float v = p.alpha * x[i];
        if (p.c)
            v = fmaf(p.beta, element_get(p.c, row * p.c_ld + col + i, p.dtype), v);
        if (p.bias)
            v += element_get(p.bias, col + i, p.dtype);
        element_set(p.d, row * p.d_ld + col + i, activate(v, p.act), p.dtype);
    }
}

__device__ __forceinline__ void get_wide(const void *base, int64_t at, int dtype, float (&x)[WIDTH])
{
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) {
        float4 y = load4(base, at + i, dtype);
        x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
    }
}

/* All WIDTH of them, and D, C and bias allow accesses of 16 bytes. */
__device__ __forceinline__ void finish_wide(const weft_cuda_splitk &p, int row, int col, float (&x)[WIDTH])
{
    int64_t at = row * p.d_ld + col;
    if (p.changes) {
        float y[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x[i] *= p.alpha;
        if (p.c) {
            get_wide(p.c, row * p.c_ld + col, p.dtype, y);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                x[i] = fmaf(p.beta, y[i], x[i]);
        }
        if (p.bias) {
            get_wide(p.bias, col, p.dtype, y);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                x[i] += y[i];
        }
        activate_all<WIDTH>(x, p.act);
    }
    if (p.dtype == DTYPE_F32) {
        ((float4 *)((float *)p.d + at))[0] = make_float4(x[0], x[1], x[2], x[3]);
        ((float4 *)((float *)p.d + at))[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)((uint16_t *)p.d + at) =
            make_uint4(narrow2(x[0], x[1], NARROW), narrow2(x[2], x[3], NARROW), narrow2(x[4], x[5], NARROW),
                       narrow2(x[6], x[7], NARROW));
    }
}

__device__ __forceinline__ void finish(const weft_cuda_splitk &p, int row, int col, float (&x)[WIDTH])
{
    if (p.wide && col + WIDTH <= p.n)
        finish_wide(p, row, col, x);
    else
        finish_some(p, row, col, x);
}

/* To D, and that is all. */
struct Out {
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void enter() const { wait_for_stream(); }
    __device__ __forceinline__ void multiplied() const {}

    template <class T>
    __device__ __forceinline__ void own(const weft_cuda_splitk &p, const Work &w, float (&d)[T::SUMS],
                                        uint32_t smem) const
    {
        int mine = w.col0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        if (p.changes) {
            float first = p.bias && mine < p.n ? element_get(p.bias, mine, p.dtype) : 0,
                  second = p.bias && mine + 8 < p.n ? element_get(p.bias, mine + 8, p.dtype) : 0;
#pragma unroll
            for (int j = 0; j < T::SUMS; j++)
                d[j] = p.alpha * d[j] + (j & 2 ? second : first);
            activate_all<T::SUMS>(d, p.act);
        }
        own_sums<T>(p, w, d, smem, [&](int row, int col, const uint4 &x) {
            *(uint4 *)((uint16_t *)p.d + row * p.d_ld + col) = x;
        });
    }

    __device__ __forceinline__ void operator()(const weft_cuda_splitk &p, int row, int col,
                                               float (&sum)[WIDTH]) const
    {
        finish(p, row, col, sum);
    }

    __device__ __forceinline__ bool receives() const
    {
        return false;
    }

    template <class T> __device__ __forceinline__ void receive(const Work &, int, int) const {}

    __device__ __forceinline__ void end() const {}
};
#endif

template <class T, bool ALONG_K> __device__ __forceinline__ void multiply(const weft_cuda_splitk &p, Out out)
{
    extern __shared__ char raw[];
    uint32_t smem = weft_align_up(smem_address(raw), 1024u) + 1024;
    bool feeds = threadIdx.x >= T::CONSUMERS, own = !SENT && p.own;
    Work w = work_of<T>(p);
    if (threadIdx.x == T::CONSUMERS) {
        map_prefetch(&p.weights);
        map_prefetch(&p.tokens);
        for (int s = 0; s < p.stages; s++) {
            bar_init(smem + T::full + 8 * s, 1);
            bar_init(smem + T::empty + 8 * s, T::GROUPS * p.sharers);
        }
        for (int i = 0; i < WEFT_CUDA_SPLITK_AHEAD; i++)
            bar_init(smem + T::early + 8 * i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (p.sharers > 1) /* they write into each other's stages */
        cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x == T::CONSUMERS)
        fetch_ahead<T, ALONG_K>(p, w, smem);
    __syncwarp(); /* a warp waits as a whole, also for a thread that would go first */
    out.enter();
    if (feeds) {
        if (threadIdx.x == T::CONSUMERS)
            produce<T, ALONG_K>(p, w, smem);
        __syncwarp();
    } else {
        float d[T::SUMS];
        if (threadIdx.x == 0)
            fetch_tokens<T>(p, w, smem);
        out.begin();
        consume_width<T, ALONG_K>(p, w, smem, d);
        out.multiplied();
        if (!SENT)
            consumers_sync<T::CONSUMERS>(); /* of all stages */
        if (own)
            out.template own<T>(p, w, d, smem);
        else
            give_sums<T>(p, w, d, smem);
    }
    bool mine = own;
    if (!own) {
        if (p.slices * p.sharers > 1)
            cluster_sync();
        else
            __syncthreads();
        if (!feeds)
            mine = add_up<T>(p, w, smem, out);
    }
    __syncwarp();
    if (own && p.sharers > 1)
        cluster_sync(); /* nor signals its stages, which has not been waited for before */
    else if (!SENT && p.slices * p.sharers > 1)
        cluster_meet(); /* nobody reads this CTA's memory any more */
    if (feeds || !out.receives())
        return;
    if (mine)
        out.template receive<T>(w, p.rows * p.sharers, p.slices);
    consumers_sync<T::CONSUMERS>();
    if (threadIdx.x == 0)
        out.end();
}

} // namespace

/* By whether k is contiguous in the weights' memory; in binaries of their own those that send their sums to
 * ranks, and those whose slices send theirs. */
#ifdef WEFT_CUDA_SENDS
#define WEFT_SPLITK_AS(TOKENS, COLS, CTAS, FORM, ALONG_K)                                                    \
    extern "C" __global__ void __launch_bounds__(WEFT_CUDA_SPLITK_THREADS(COLS), CTAS)                       \
        weft_splitk_send_##TOKENS##x##COLS##_##FORM(const __grid_constant__ weft_cuda_splitk p,              \
                                                    const __grid_constant__ weft_cuda_exchange x)            \
    {                                                                                                        \
        multiply<Tile<TOKENS, COLS, CTAS>, ALONG_K>(p, Out{x, 0});                                           \
    }
#else
#ifdef WEFT_CUDA_SENT
#define WEFT_SPLITK_NAME(TILE, FORM) weft_splitk_sent_##TILE##_##FORM
#else
#define WEFT_SPLITK_NAME(TILE, FORM) weft_splitk_##TILE##_##FORM
#endif
#define WEFT_SPLITK_AS(TOKENS, COLS, CTAS, FORM, ALONG_K)                                                    \
    extern "C" __global__ void __launch_bounds__(WEFT_CUDA_SPLITK_THREADS(COLS), CTAS)                       \
        WEFT_SPLITK_NAME(TOKENS##x##COLS, FORM)(const __grid_constant__ weft_cuda_splitk p)                  \
    {                                                                                                        \
        multiply<Tile<TOKENS, COLS, CTAS>, ALONG_K>(p, Out{});                                               \
    }
#endif

#define WEFT_SPLITK(TOKENS, COLS, CTAS)                                                                      \
    WEFT_SPLITK_AS(TOKENS, COLS, CTAS, n, false)                                                             \
    WEFT_SPLITK_AS(TOKENS, COLS, CTAS, t, true)

WEFT_CUDA_SPLITK_TILES(WEFT_SPLITK)
