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

/* What the sums are added to. */
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
    if (!(t.flags & WEFT_CUDA_EPILOGUE))
        return;
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

/* 4 * PAIRS columns of the consumer's rows into boxes, swizzled: one box has 64 columns of 16 bits or 32 of
 * float32. A box that is not filled is stored all the same: the tensor map cuts off what is beside it. */
template <int NARROW, int PAIRS>
__device__ __forceinline__ void fill_boxes(const float *d, bool wide, uint32_t smem, uint32_t consumer,
                                           uint32_t &boxes)
{
    uint32_t full = smem + Layout::box_full + 16 * consumer, free = smem + Layout::box_free + 16 * consumer;
    uint32_t base = smem + Layout::box + 2 * BOX_BYTES * consumer;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    if (!wide) {
        uint32_t buffer = boxes & 1, row = warp * 16 + lane % 16, at = base + buffer * BOX_BYTES + row * 128;
        bar_wait(free + 8 * buffer, ((boxes >> 1) & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < PAIRS / 2; j += 2)
            matrices_store(at + (((j + lane / 16) ^ (row & 7)) << 4), narrow2(d[4 * j], d[4 * j + 1], NARROW),
                           narrow2(d[4 * j + 2], d[4 * j + 3], NARROW),
                           narrow2(d[4 * j + 4], d[4 * j + 5], NARROW),
                           narrow2(d[4 * j + 6], d[4 * j + 7], NARROW));
        fence_proxy_shared();
        bar_arrive(full + 8 * buffer);
        boxes++;
        return;
    }
#pragma unroll
    for (int half = 0; half < PAIRS / 8; half++, boxes++) {
        uint32_t buffer = boxes & 1, row = warp * 16 + lane / 4, at = base + buffer * BOX_BYTES;
        bar_wait(free + 8 * buffer, ((boxes >> 1) & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = 16 * half + 4 * j, chunk = 2 * j + (lane % 4) / 2;
            uint32_t spot = at + row * 128 + ((chunk ^ (row & 7)) << 4) + (lane & 1) * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot), "f"(d[i]), "f"(d[i + 1]) : "memory");
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot + 1024), "f"(d[i + 2]), "f"(d[i + 3])
                         : "memory");
        }
        fence_proxy_shared();
        bar_arrive(full + 8 * buffer);
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

/* All sums of a consumer, 64 columns at a time and 32 at the end of a tile of 224. */
template <int NARROW>
__device__ __forceinline__ void finish_sums(const weft_cuda_args &g, const weft_cuda_task &t,
                                            float (&d)[SUMS], int row0, uint32_t smem, uint32_t consumer,
                                            uint32_t &boxes)
{
    const weft_cuda_view *v = &g.views[t.view0];
    int thread = threadIdx.x % 128, row = row0 + thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
    bool wide = t.flags & WEFT_CUDA_WIDE_D;
    constexpr int WHOLE = TILE_N / 64;
    if (!(t.flags & WEFT_CUDA_BULK)) {
        uint32_t free = smem + Layout::box_free + 16 * consumer;
        bar_wait(free + 8 * (boxes & 1), ((boxes >> 1) & 1) ^ 1);
        bar_wait(free + 8 * ((boxes + 1) & 1), (((boxes + 1) >> 1) & 1) ^ 1);
#pragma unroll
        for (int b = 0; b < WHOLE; b++)
            finish_elements<16>(g, t, v, d + 32 * b, row0, 64 * b, smem, consumer);
        if constexpr (TILE_N % 64 != 0)
            finish_elements<8>(g, t, v, d + 32 * WHOLE, row0, 64 * WHOLE, smem, consumer);
        fence_proxy_shared(); /* the next to write them may be the copy engine */
        bar_arrive(smem + Layout::box_full + 16 * consumer + 8 * (boxes++ & 1)); /* the boxes go back */
        return;
    }
    bool takes = t.acc >= 0 && !(t.flags & WEFT_CUDA_ADD);
#pragma unroll
    for (int b = 0; b < WHOLE; b++) {
        if (takes)
            for (int h = 0; h < 2; h++)
                add_pairs<NARROW, 8>(t, v[t.acc], d + 32 * b + 16 * h, row, 64 * b + 32 * h + col);
        finish_pairs<NARROW, 8>(g, t, v, d + 32 * b, row, 64 * b + col);
        finish_pairs<NARROW, 8>(g, t, v, d + 32 * b + 16, row, 64 * b + 32 + col);
        fill_boxes<NARROW, 16>(d + 32 * b, wide, smem, consumer, boxes);
    }
    if constexpr (TILE_N % 64 != 0) {
        if (takes)
            add_pairs<NARROW, 8>(t, v[t.acc], d + 32 * WHOLE, row, 64 * WHOLE + col);
        finish_pairs<NARROW, 8>(g, t, v, d + 32 * WHOLE, row, 64 * WHOLE + col);
        fill_boxes<NARROW, 8>(d + 32 * WHOLE, wide, smem, consumer, boxes);
    }
}

} // namespace

#endif
