/*
 * A consumer's end of a GEMM: its sums, in registers, get what they are added to and the epilogue, and leave
 * through boxes in shared memory that the storer thread hands to the copy engine; or element by element where
 * some matrix of the task is not aligned.
 */
#ifndef WEFT_RUN_CUDA_EPILOGUE_SM90_CUH
#define WEFT_RUN_CUDA_EPILOGUE_SM90_CUH

#include "crew_sm90.cuh"
#include "plain.cuh"

namespace
{

/*
 * A thread's share of 8 * PAIRS / 2 columns is PAIRS pairs (column groups of 8, 2 rows). Fetches the pairs of
 * a matrix, all loads issued before the first use.
 */
template <int NARROW, int PAIRS>
__device__ __forceinline__ void fetch_pairs(const weft_cuda_task &t, const weft_cuda_view &m, int row,
                                            int col0, float2 (&x)[PAIRS])
{
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        x[i] = make_float2(0, 0);
    if (m.dtype == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int r = row + (i & 1) * 8, c = col0 + (i >> 1) * 8;
            if (r < t.rows && c < t.cols)
                x[i] = __ldcg((const float2 *)((const float *)m.ptr + r * m.rs + c));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int r = row + (i & 1) * 8, c = col0 + (i >> 1) * 8;
        if (r < t.rows && c < t.cols)
            x[i].x = __uint_as_float(__ldcg((const uint32_t *)((const uint16_t *)m.ptr + r * m.rs + c)));
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        x[i] = widen2(__float_as_uint(x[i].x), NARROW);
}

template <int NARROW, int PAIRS>
__device__ __forceinline__ void add_pairs(const weft_cuda_task &t, const weft_cuda_view &m, float *d, int row,
                                          int col0)
{
    float2 x[PAIRS];
    fetch_pairs<NARROW>(t, m, row, col0, x);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        d[2 * i] = x[i].x + d[2 * i];
        d[2 * i + 1] = x[i].y + d[2 * i + 1];
    }
}

/* The epilogue on a thread's pairs; every matrix allows pair accesses. */
template <int NARROW, int PAIRS>
__device__ __forceinline__ void finish_pairs(const weft_cuda_args &g, const weft_cuda_task &t,
                                             const weft_cuda_view *v, float *d, int row, int col0)
{
    float2 x[PAIRS];
    if (g.alpha != 1) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++)
            d[i] *= g.alpha;
    }
    if (t.c >= 0) {
        fetch_pairs<NARROW>(t, v[t.c], row, col0, x);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            d[2 * i] = fmaf(g.beta, x[i].x, d[2 * i]);
            d[2 * i + 1] = fmaf(g.beta, x[i].y, d[2 * i + 1]);
        }
    }
    if (t.bias >= 0) {
        fetch_pairs<NARROW>(t, v[t.bias], row, col0, x); /* its row stride is 0 */
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            d[2 * i] += x[i].x;
            d[2 * i + 1] += x[i].y;
        }
    }
    if (g.act != ACT_NONE) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++)
            d[i] = activate(d[i], g.act);
    }
}

/* Where a consumer's boxes are; one has 64 columns of 16 bits or 32 of float32, swizzled. */
struct Boxes {
    uint32_t full, free, base;

    __device__ __forceinline__ Boxes(uint32_t smem, uint32_t consumer)
        : full(smem + Layout::box_full + 16 * consumer), free(smem + Layout::box_free + 16 * consumer),
          base(smem + Layout::box + 2 * BOX_BYTES * consumer)
    {
    }

    __device__ __forceinline__ void take(uint32_t box) const
    {
        bar_wait(free + 8 * (box & 1), ((box >> 1) & 1) ^ 1);
    }

    __device__ __forceinline__ void give(uint32_t box) const
    {
        fence_proxy_shared();
        bar_arrive(full + 8 * (box & 1));
    }

    /* 32 columns of 16 bits, from column `col` of the box on. */
    template <int NARROW>
    __device__ __forceinline__ void put_narrow(const float *d, uint32_t box, int col) const
    {
        int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
        uint32_t at = base + (box & 1) * BOX_BYTES + row * 128;
#pragma unroll
        for (int j = 0; j < 4; j += 2)
            matrices_store(
                at + (((col / 8 + j + lane / 16) ^ (row & 7)) << 4), narrow2(d[4 * j], d[4 * j + 1], NARROW),
                narrow2(d[4 * j + 2], d[4 * j + 3], NARROW), narrow2(d[4 * j + 4], d[4 * j + 5], NARROW),
                narrow2(d[4 * j + 6], d[4 * j + 7], NARROW));
    }

    /* 32 columns of float32: a whole box. */
    __device__ __forceinline__ void put_wide(const float *d, uint32_t box) const
    {
        int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
        uint32_t at = base + (box & 1) * BOX_BYTES + row * 128 + (lane & 1) * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t spot = at + (((2 * j + lane % 4 / 2) ^ (row & 7)) << 4);
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot), "f"(d[4 * j]), "f"(d[4 * j + 1])
                         : "memory");
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot + 1024), "f"(d[4 * j + 2]),
                         "f"(d[4 * j + 3])
                         : "memory");
        }
    }
};

/* A box that is not filled is stored all the same: the tensor map cuts off what is beside it. */
template <int NARROW>
__device__ __forceinline__ void bare_sums(const float (&d)[SUMS], bool wide, const Boxes &to, uint32_t &boxes)
{
    if (wide) {
#pragma unroll
        for (int b = 0; b < TILE_N / 32; b++, boxes++) {
            to.take(boxes);
            to.put_wide(d + 16 * b, boxes);
            to.give(boxes);
        }
        return;
    }
#pragma unroll
    for (int b = 0; b < TILE_N / 32; b++) {
        if (b % 2 == 0)
            to.take(boxes);
        to.put_narrow<NARROW>(d + 16 * b, boxes, b % 2 * 32);
        if (b % 2 || b == TILE_N / 32 - 1)
            to.give(boxes++);
    }
}

/*
 * 4 * PAIRS columns when some matrix of the task is not aligned: the sums go through shared memory, then
 * element by element to their destinations. Rolled up, so that the rare path stays out of the instruction
 * cache.
 */
template <int PAIRS>
__device__ __forceinline__ void finish_elements(const weft_cuda_args &g, const weft_cuda_task &t,
                                                const weft_cuda_view *v, const float *d, int row0, int col0,
                                                uint32_t smem, uint32_t consumer)
{
    constexpr int WIDTH = 4 * PAIRS;
    int thread = threadIdx.x % 128, at = thread / 32 * 16 + thread % 32 / 4;
    uint32_t sums = smem + Layout::box + 2 * BOX_BYTES * consumer;
    group_sync(consumer);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        uint32_t spot = sums + (at + (i & 1) * 8) * (4 * WIDTH) + (i >> 1) * 32 + thread % 4 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot), "f"(d[2 * i]), "f"(d[2 * i + 1])
                     : "memory");
    }
    group_sync(consumer);
#pragma unroll 1
    for (int e = thread; e < GROUP_M * WIDTH; e += 128) {
        int row = row0 + e / WIDTH, col = col0 + e % WIDTH;
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(sums + 4 * e));
        if (row >= t.rows || col >= t.cols)
            continue;
        if (t.acc >= 0)
            x = element_get(v[t.acc].ptr, row * v[t.acc].rs + col * v[t.acc].cs, v[t.acc].dtype) + x;
        if (t.flags & WEFT_CUDA_EPILOGUE)
            x = finish_element(g, t, v, x, row, col);
#pragma unroll 1
        for (int n = 0; n < t.destinations; n++)
            element_set(v[n].ptr, row * v[n].rs + col * v[n].cs, x, v[n].dtype);
    }
}

/*
 * What a consumer's sums are added to, on its way through the boxes: as wide as a box at a time, in the order
 * of memory, so that the lanes of a load ask for whole lines. Every address is a multiple of 16 bytes.
 */
template <int BYTES> struct Fetch {
    const char *from; /* the thread's first piece of 16 bytes */
    int64_t step;     /* from one of its rows to the next */
    uint32_t to;
    int rows, cols; /* that are left from its first piece on */

    __device__ __forceinline__ Fetch(const weft_cuda_task &t, const weft_cuda_view &m, int row0,
                                     const Boxes &boxes)
    {
        int thread = threadIdx.x % 128, row = thread / 8, piece = thread % 8;
        from = (const char *)m.ptr + (row0 + row) * m.rs * BYTES + piece * 16;
        step = 16 * m.rs * BYTES;
        to = boxes.base + row * 128 + ((piece ^ (row & 7)) << 4);
        rows = t.rows - row0 - row;
        cols = t.cols - piece * (16 / BYTES);
    }

    /* The next block, 128 bytes of each of 64 rows, into `box`. */
    __device__ __forceinline__ void begin(int box)
    {
        int bytes = min(max(cols * BYTES, 0), 16);
        const char *at = from;
#pragma unroll
        for (int i = 0; i < 4; i++, at += step)
            piece_load(to + box * BOX_BYTES + i * 2048, at, rows > 16 * i ? bytes : 0);
        pieces_commit();
        from += 128;
        cols -= 128 / BYTES;
    }
};

/* The last hop of a sum, and nothing else: added to what came, stored in 16 bits. */
template <int NARROW, bool WIDE>
__device__ __forceinline__ void added_sums(const weft_cuda_task &t, const weft_cuda_view &acc,
                                           float (&d)[SUMS], int row0, uint32_t consumer, const Boxes &to,
                                           uint32_t &boxes)
{
    constexpr int WIDTH = WIDE ? 32 : 64, BLOCKS = (TILE_N + WIDTH - 1) / WIDTH;
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    Fetch<WIDE ? 4 : 2> fetch(t, acc, row0, to);
    to.take(boxes);
    to.take(boxes + 1);
    fetch.begin(0);
    fetch.begin(1);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (b + 1 < BLOCKS)
            pieces_wait<1>();
        else
            pieces_wait<0>();
        group_sync(consumer);
#pragma unroll
        for (int i = 0; i < WIDTH / 4 && b * (WIDTH / 2) + 2 * i < SUMS; i++) {
            int j = i >> 1, below = (i & 1) * 8;
            uint32_t at = to.base + (b & 1) * BOX_BYTES + (row + below) * 128;
            float2 x;
            if constexpr (WIDE)
                x = shared_pair(at + (((2 * j + lane % 4 / 2) ^ (row & 7)) << 4) + (lane & 1) * 8);
            else
                x = widen2(shared_word(at + ((j ^ (row & 7)) << 4) + lane % 4 * 4), NARROW);
            float *sum = d + b * (WIDTH / 2) + 2 * i;
            sum[0] = x.x + sum[0];
            sum[1] = x.y + sum[1];
        }
        group_sync(consumer);
        if (b + 2 < BLOCKS)
            fetch.begin(b & 1);
    }
    bare_sums<NARROW>(d, false, to, boxes);
}

/* Whether it can be fetched so: otherwise it is read pair by pair. */
__device__ __forceinline__ bool in_pieces(const weft_cuda_view &m)
{
    return ((uint64_t)m.ptr | (uint64_t)m.rs * (m.dtype == DTYPE_F32 ? 4 : 2)) % 16 == 0;
}

/*
 * Everything else: 32 columns at a time, always in the same registers, into which the others move. A CTA runs
 * an epilogue a few times in a launch, and the first time its instructions come from memory: short code is
 * worth more than saved moves.
 */
template <int NARROW>
__device__ __forceinline__ void finished_sums(const weft_cuda_args &g, const weft_cuda_task &t,
                                              float (&d)[SUMS], int row, int col, const Boxes &to,
                                              uint32_t &boxes)
{
    const weft_cuda_view *v = &g.views[t.view0];
    bool wide = t.flags & WEFT_CUDA_WIDE_D;
#pragma unroll 1
    for (int b = 0; b < TILE_N / 32; b++) {
        if (t.acc >= 0)
            add_pairs<NARROW, 8>(t, v[t.acc], d, row, 32 * b + col);
        if (t.flags & WEFT_CUDA_EPILOGUE)
            finish_pairs<NARROW, 8>(g, t, v, d, row, 32 * b + col);
        if (wide || b % 2 == 0)
            to.take(boxes);
        if (wide)
            to.put_wide(d, boxes);
        else
            to.put_narrow<NARROW>(d, boxes, b % 2 * 32);
        if (wide || b % 2 || b == TILE_N / 32 - 1)
            to.give(boxes++);
#pragma unroll
        for (int i = 0; i + 16 < SUMS; i++)
            d[i] = d[i + 16];
    }
}

/* All sums of a consumer. */
template <int NARROW>
__device__ __forceinline__ void finish_sums(const weft_cuda_args &g, const weft_cuda_task &t,
                                            float (&d)[SUMS], int row0, uint32_t smem, uint32_t consumer,
                                            uint32_t &boxes)
{
    int thread = threadIdx.x % 128;
    Boxes to(smem, consumer);
    const weft_cuda_view *v = &g.views[t.view0];
    if (t.flags & WEFT_CUDA_BULK) {
        int row = row0 + thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
        if (!(t.flags & WEFT_CUDA_EPILOGUE) && (t.acc < 0 || t.flags & WEFT_CUDA_ADD))
            bare_sums<NARROW>(d, t.flags & WEFT_CUDA_WIDE_D, to, boxes);
        else if (t.flags & (WEFT_CUDA_EPILOGUE | WEFT_CUDA_WIDE_D) || !in_pieces(v[t.acc]))
            finished_sums<NARROW>(g, t, d, row, col, to, boxes);
        else if (v[t.acc].dtype == DTYPE_F32)
            added_sums<NARROW, true>(t, v[t.acc], d, row0, consumer, to, boxes);
        else
            added_sums<NARROW, false>(t, v[t.acc], d, row0, consumer, to, boxes);
        return;
    }
    to.take(boxes);
    to.take(boxes + 1);
#pragma unroll
    for (int b = 0; b < TILE_N / 64; b++)
        finish_elements<16>(g, t, v, d + 32 * b, row0, 64 * b, smem, consumer);
    if constexpr (TILE_N % 64 != 0)
        finish_elements<8>(g, t, v, d + 32 * (TILE_N / 64), row0, TILE_N / 64 * 64, smem, consumer);
    to.give(boxes++); /* the boxes go back, and the next to write them may be the copy engine */
}

} // namespace

#endif
