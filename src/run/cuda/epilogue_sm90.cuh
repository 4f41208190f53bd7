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

/* Products of fp8 have 16-bit matrices of either type: each says which. */
constexpr int ANY_NARROW = -1;

template <int NARROW> __device__ __forceinline__ int narrow_of(const weft_cuda_view &view)
{
    return NARROW == ANY_NARROW ? view.dtype : NARROW;
}

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
        x[i] = widen2(__float_as_uint(x[i].x), narrow_of<NARROW>(m));
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
#ifdef WEFT_CUDA_FP8
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) {
        int r = row + (i >> 1 & 1) * 8, c = col0 + (i >> 2) * 8 + (i & 1);
        d[i] = scaled(g, v[0], d[i], min(r, t.rows - 1), min(c, t.cols - 1));
    }
#else
    if (g.alpha != 1) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++)
            d[i] *= g.alpha;
    }
#endif
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
    activate_all<2 * PAIRS>(d, g.act);
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
    __device__ __forceinline__ void put_narrow(const float *d, uint32_t box, int col, int kind) const
    {
        int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
        uint32_t at = base + (box & 1) * BOX_BYTES + row * 128;
#pragma unroll
        for (int j = 0; j < 4; j += 2)
            matrices_store(at + (((col / 8 + j + lane / 16) ^ (row & 7)) << 4),
                           narrow2(d[4 * j], d[4 * j + 1], kind), narrow2(d[4 * j + 2], d[4 * j + 3], kind),
                           narrow2(d[4 * j + 4], d[4 * j + 5], kind),
                           narrow2(d[4 * j + 6], d[4 * j + 7], kind));
    }

    /* 32 columns of float32: a whole box. */
    __device__ __forceinline__ void put_f32(const float *d, uint32_t box) const
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
__device__ __forceinline__ void bare_sums(const float (&d)[SUMS], bool f32, int kind, const Boxes &to,
                                          uint32_t &boxes)
{
    if (f32) {
#pragma unroll
        for (int b = 0; b < TILE_N / 32; b++, boxes++) {
            to.take(boxes);
            to.put_f32(d + 16 * b, boxes);
            to.give(boxes);
        }
        return;
    }
#pragma unroll
    for (int b = 0; b < TILE_N / 32; b++) {
        if (b % 2 == 0)
            to.take(boxes);
        to.put_narrow(d + 16 * b, boxes, b % 2 * 32, kind);
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
    const Ends ends(t, v);
#pragma unroll 4
    for (int e = thread; e < GROUP_M * WIDTH; e += 128) {
        int row = row0 + e / WIDTH, col = col0 + e % WIDTH;
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(sums + 4 * e));
        if (row < t.rows && col < t.cols)
            end_element(g, t, v, ends, x, row, col);
    }
}

/*
 * The last hop of a sum: adds what came, which the copy engine brings into the boxes, to the consumer's sums.
 * Runs once or twice in a launch, so that its instructions come from memory: the fewer the better.
 */
template <int NARROW, bool F32>
__device__ __forceinline__ void add_fetched(const weft_cuda_args &g, const weft_cuda_view &acc,
                                            float (&d)[SUMS], int row0, uint32_t smem, uint32_t consumer,
                                            const Boxes &to, uint32_t boxes, uint32_t &fetched)
{
    constexpr int WIDTH = F32 ? 32 : 64, BLOCKS = weft_divide_up(TILE_N, WIDTH);
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    bool first = threadIdx.x % 128 == 0;
    uint32_t bar = smem + Layout::fetched + 16 * consumer, spot = to.base + row * 128;
    auto fetch = [&](int b) {
        bar_expect(bar + 8 * (b & 1), BOX_BYTES);
        tile_load(to.base + (b & 1) * BOX_BYTES, map_at(g, acc.map), bar + 8 * (b & 1), acc.col + b * WIDTH,
                  acc.row + row0);
    };
    to.take(boxes);
    to.take(boxes + 1);
    if (first) {
        fence_proxy_all(); /* the storer has seen it posted */
        fetch(0);
        fetch(1);
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        bar_wait(bar + 8 * (b & 1), fetched >> (b & 1) & 1);
        fetched ^= 1 << (b & 1);
#pragma unroll
        for (int i = 0; i < WIDTH / 4 && b * (WIDTH / 2) + 2 * i < SUMS; i++) {
            int j = i >> 1;
            uint32_t at = spot + (b & 1) * BOX_BYTES + (i & 1) * 1024;
            float2 x;
            if constexpr (F32)
                x = shared_pair(at + (((2 * j + lane % 4 / 2) ^ (row & 7)) << 4) + (lane & 1) * 8);
            else
                x = widen2(shared_word(at + ((j ^ (row & 7)) << 4) + lane % 4 * 4), narrow_of<NARROW>(acc));
            float *sum = d + b * (WIDTH / 2) + 2 * i;
            sum[0] = x.x + sum[0];
            sum[1] = x.y + sum[1];
        }
        if (b + 2 < BLOCKS || b + 1 == BLOCKS)
            group_sync(consumer); /* the box has been read */
        if (b + 2 < BLOCKS && first)
            fetch(b + 2);
    }
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
    bool f32 = t.flags & WEFT_CUDA_D_F32;
    int kind = narrow_of<NARROW>(v[0]);
#pragma unroll 1
    for (int b = 0; b < TILE_N / 32; b++) {
        if (t.acc >= 0)
            add_pairs<NARROW, 8>(t, v[t.acc], d, row, 32 * b + col);
        if (t.flags & WEFT_CUDA_EPILOGUE)
            finish_pairs<NARROW, 8>(g, t, v, d, row, 32 * b + col);
        if (f32 || b % 2 == 0)
            to.take(boxes);
        if (f32)
            to.put_f32(d, boxes);
        else
            to.put_narrow(d, boxes, b % 2 * 32, kind);
        if (f32 || b % 2 || b == TILE_N / 32 - 1)
            to.give(boxes++);
#pragma unroll
        for (int i = 0; i + 16 < SUMS; i++)
            d[i] = d[i + 16];
    }
}

/*
 * Where the crew multiplies the transposed matrices, few rows of D are few columns of its tile, and a
 * consumer's 64 rows are columns of D. Its sums are turned round in shared memory, then go to their
 * destinations in rows of 64. D is small beside the weights, so plain stores do.
 */
__device__ __forceinline__ void finish_exchanged(const weft_cuda_args &g, const weft_cuda_task &t,
                                                 const weft_cuda_view *v, const float (&d)[SUMS], int col0,
                                                 uint32_t smem, uint32_t consumer)
{
    static_assert(!EXCHANGED || TILE_N * GROUP_M * 4 <= 2 * BOX_BYTES, "the sums fit into the boxes");
    int thread = threadIdx.x % 128, n = thread / 32 * 16 + thread % 32 / 4, m = thread % 4 * 2;
    uint32_t sums = smem + Layout::box + 2 * BOX_BYTES * consumer;
    auto spot = [&](int row, int col) { return sums + 4 * (row * GROUP_M + (col ^ (row >> 1 & 3) << 3)); };
    group_sync(consumer);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(spot((i >> 2) * 8 + m + (i & 1), n + (i >> 1 & 1) * 8)),
                     "f"(d[i])
                     : "memory");
    group_sync(consumer);
    const Ends ends(t, v);
#pragma unroll 4
    for (int e = thread; e < t.rows * GROUP_M; e += 128) {
        int row = e / GROUP_M, col = col0 + e % GROUP_M;
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(spot(row, e % GROUP_M)));
        if (col < t.cols)
            end_element(g, t, v, ends, x, row, col);
    }
}

/* All sums of a consumer. */
template <int NARROW>
__device__ __forceinline__ void finish_sums(const weft_cuda_args &g, const weft_cuda_task &t,
                                            float (&d)[SUMS], int row0, uint32_t smem, uint32_t consumer,
                                            uint32_t &boxes, uint32_t &fetched)
{
    int thread = threadIdx.x % 128;
    Boxes to(smem, consumer);
    const weft_cuda_view *v = &g.views[t.view0];
    bool adds = t.acc >= 0 && !(t.flags & WEFT_CUDA_ADD);
    if constexpr (EXCHANGED) {
        to.take(boxes);
        to.take(boxes + 1);
        finish_exchanged(g, t, v, d, row0, smem, consumer);
        to.give(boxes++);
        return;
    }
    if (t.flags & WEFT_CUDA_BULK) {
        if (t.flags & WEFT_CUDA_EPILOGUE || (adds && (t.flags & WEFT_CUDA_D_F32 || v[t.acc].map < 0))) {
            int row = row0 + thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
            finished_sums<NARROW>(g, t, d, row, col, to, boxes);
            return;
        }
        if (adds && v[t.acc].dtype == DTYPE_F32)
            add_fetched<NARROW, true>(g, v[t.acc], d, row0, smem, consumer, to, boxes, fetched);
        else if (adds)
            add_fetched<NARROW, false>(g, v[t.acc], d, row0, smem, consumer, to, boxes, fetched);
        bare_sums(d, t.flags & WEFT_CUDA_D_F32, narrow_of<NARROW>(v[0]), to, boxes);
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
