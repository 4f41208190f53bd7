/*
 * The plan walker for any GPU with 16-bit tensor cores (sm_80 and later), and on Hopper for operands whose
 * addresses or strides the copy engine refuses: any strides, element loads, mma.sync. One CTA is a lane's
 * crew and makes the whole post.
 *
 * Card: 128 x 128 x 32 inside a task's tile, 8 warps of 32 x 64 (64 sums a thread), one buffer with the next
 * step's elements held in registers meanwhile. fp8 is made float16, which holds it, when it is loaded.
 */
#include "order.cuh"
#include "plain.cuh"

namespace
{

constexpr int THREADS = 256, SUB_M = 128, SUB_N = 128, STEP_K = 32;
constexpr int PITCH = STEP_K + 8; /* 80-byte rows: the eight rows of a fragment fall into different banks */
constexpr int SHARE = SUB_M * STEP_K / THREADS;

struct Tiles {
    uint16_t a[SUB_M][PITCH], b[SUB_N][PITCH]; /* b is kept by columns */
};

/* Element i of this thread's share of a 128 x 32 block: neighbours in a warp are neighbours in memory. */
struct Place {
    int line, k;
    __device__ Place(int i, bool k_contiguous)
    {
        int e = (int)threadIdx.x + i * THREADS;
        line = k_contiguous ? e / STEP_K : e % SUB_M;
        k = k_contiguous ? e % STEP_K : e / SUB_M;
    }
};

__device__ __forceinline__ uint16_t element_bits(const void *base, int64_t i, int dtype)
{
    return is_fp8(dtype) ? fp8_widen(__ldcg((const unsigned char *)base + i), dtype)
                         : __ldcg((const unsigned short *)base + i);
}

__device__ __forceinline__ void fetch(uint16_t (&x)[SHARE], const void *base, int dtype, int64_t line_stride,
                                      int64_t k_stride, int lines, int k0, int k)
{
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        Place p(i, k_stride == 1);
        bool inside = p.line < lines && k0 + p.k < k;
        x[i] = inside ? element_bits(base, p.line * line_stride + (k0 + p.k) * k_stride, dtype) : 0;
    }
}

__device__ __forceinline__ void keep(uint16_t (*tile)[PITCH], const uint16_t (&x)[SHARE], bool k_contiguous)
{
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        Place p(i, k_contiguous);
        tile[p.line][p.k] = x[i];
    }
}

template <bool BF16>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#ifdef WEFT_CUDA_FP8
/* Sums of a block of k, times its factors, to those of the blocks before it. */
__device__ void fold(const weft_cuda_args &g, const weft_cuda_task &t, const weft_cuda_view *v, int row0,
                     int col0, int k, float (&d)[2][8][4], float (&sums)[2][8][4])
{
    const weft_cuda_view &a = v[t.destinations], &b = v[t.destinations + 1];
    int64_t block = (a.col + k) / WEFT_CUDA_SCALE_BLOCK;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int row = a.row + min(row0 + i / 32 * 16 + (i >> 1 & 1) * 8, t.rows - 1),
            col = b.col + min(col0 + i / 4 % 8 * 8 + (i & 1), t.cols - 1);
        float scale = g.a_scale ? __ldcg(g.a_scale + row * g.a_scale_row + block * g.a_scale_k) : 1;
        if (g.b_scale)
            scale *= __ldcg(g.b_scale + block * g.b_scale_k + col / WEFT_CUDA_SCALE_BLOCK * g.b_scale_col);
        sums[i / 32][i / 4 % 8][i & 3] =
            fmaf(scale, d[i / 32][i / 4 % 8][i & 3], sums[i / 32][i / 4 % 8][i & 3]);
        d[i / 32][i / 4 % 8][i & 3] = 0;
    }
}
#endif

/* The 128 x 128 block at (row0, col0) of a task. */
template <bool BF16>
__device__ void block(const weft_cuda_args &g, const weft_cuda_task &t, const weft_cuda_view *v, Tiles &tiles,
                      int row0, int col0)
{
    const weft_cuda_view &a = v[t.destinations], &b = v[t.destinations + 1];
    const void *a_at = (const char *)a.ptr + row0 * a.rs * element_bytes(a.dtype),
               *b_at = (const char *)b.ptr + col0 * b.cs * element_bytes(b.dtype);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4, r = lane / 4;
    int warp_m = warp / 2 * 32, warp_n = warp % 2 * 64;
    float d[2][8][4] = {};
#ifdef WEFT_CUDA_FP8
    float sums[2][8][4] = {};
#endif
    uint16_t next_a[SHARE], next_b[SHARE];
    fetch(next_a, a_at, a.dtype, a.rs, a.cs, t.rows - row0, 0, t.k);
    fetch(next_b, b_at, b.dtype, b.cs, b.rs, t.cols - col0, 0, t.k);
    for (int k0 = 0; k0 < t.k; k0 += STEP_K) {
        __syncthreads();
        keep(tiles.a, next_a, a.cs == 1);
        keep(tiles.b, next_b, b.rs == 1);
        __syncthreads();
        if (k0 + STEP_K < t.k) {
            fetch(next_a, a_at, a.dtype, a.rs, a.cs, t.rows - row0, k0 + STEP_K, t.k);
            fetch(next_b, b_at, b.dtype, b.cs, b.rs, t.cols - col0, k0 + STEP_K, t.k);
        }
#pragma unroll
        for (int kk = 0; kk < STEP_K; kk += 16) {
            uint32_t fa[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    fa[i][j] = *(const uint32_t *)&tiles
                                    .a[warp_m + i * 16 + r + (j & 1) * 8][kk + 2 * q + (j >> 1) * 8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint16_t *line = tiles.b[warp_n + j * 8 + r];
                uint32_t b0 = *(const uint32_t *)&line[kk + 2 * q],
                         b1 = *(const uint32_t *)&line[kk + 2 * q + 8];
                multiply<BF16>(d[0][j], fa[0], b0, b1);
                multiply<BF16>(d[1][j], fa[1], b0, b1);
            }
        }
#ifdef WEFT_CUDA_FP8
        if ((g.a_scale || g.b_scale) && ((k0 + STEP_K) % WEFT_CUDA_SCALE_BLOCK == 0 || k0 + STEP_K >= t.k))
            fold(g, t, v, row0 + warp_m + r, col0 + warp_n + 2 * q, k0, d, sums);
#endif
    }
#ifdef WEFT_CUDA_FP8
    for (int i = 0; (g.a_scale || g.b_scale) && i < 64; i++)
        d[i / 32][i / 4 % 8][i & 3] = sums[i / 32][i / 4 % 8][i & 3];
#endif
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int row = row0 + warp_m + i / 32 * 16 + r + (i >> 1 & 1) * 8,
            col = col0 + warp_n + i / 4 % 8 * 8 + 2 * q + (i & 1);
        if (row >= t.rows || col >= t.cols)
            continue;
        float x = d[i / 32][i / 4 % 8][i & 3];
        if (t.acc >= 0)
            x = element_get(v[t.acc].ptr, row * v[t.acc].rs + col * v[t.acc].cs, v[t.acc].dtype) + x;
        if (t.flags & WEFT_CUDA_EPILOGUE)
            x = finish_element(g, t, v, x, row, col);
        for (int n = 0; n < t.destinations; n++)
            element_set(v[n].ptr, row * v[n].rs + col * v[n].cs, x, v[n].dtype);
    }
}

template <bool BF16> __device__ __forceinline__ void walk(const weft_cuda_args &g)
{
    __shared__ Tiles tiles;
    weft_cuda_lane lane = g.lanes[blockIdx.x];
    uint64_t run = g.control->run, began = now_ns();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        enter_run(g, run, began);
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task &t = g.tasks[lane.task0 + i];
        const weft_cuda_view *v = &g.views[t.view0];
        if (threadIdx.x == 0)
            wait_all(g, t.wait0, t.wait_count, t.plan_task, run);
        __syncthreads();
        if (t.kind == WEFT_CUDA_COPY)
            copy(t, v, threadIdx.x, THREADS);
        else if (t.kind == WEFT_CUDA_REDUCE)
            reduce(g, t, v, threadIdx.x, THREADS);
        else
            for (int row = 0; row < t.rows; row += SUB_M)
                for (int col = 0; col < t.cols; col += SUB_N)
                    block<BF16>(g, t, v, tiles, row, col);
        __syncthreads();
        if (threadIdx.x == 0)
            task_done(g, t);
    }
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0)
            exit_run(g, run);
        finish(g);
    }
}

} // namespace

/* Compiled once more for fp8, so that the others know nothing of it. */
#ifdef WEFT_CUDA_FP8
extern "C" __global__ void __launch_bounds__(THREADS)
    weft_walk_any_fp8(const __grid_constant__ weft_cuda_args g)
{
    walk<false>(g);
}
#else

extern "C" __global__ void __launch_bounds__(THREADS)
    weft_walk_any_bf16(const __grid_constant__ weft_cuda_args g)
{
    walk<true>(g);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weft_walk_any_f16(const __grid_constant__ weft_cuda_args g)
{
    walk<false>(g);
}

/*
 * For repitch.h. A thread makes 16 bytes of a line: it reads the words that they lie in and shifts. A word is
 * read only when it has an element of the line in it, so never beyond the matrix. What is beyond the line
 * becomes 0: the copy engine cannot end k there, and the other operand has zeros there.
 */
extern "C" __global__ void __launch_bounds__(THREADS) weft_repitch(weft_cuda_repitch r)
{
    int64_t vectors = r.to_ld / 8, total = r.batch * r.lines * vectors;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t line = i / vectors, at = i % vectors * 8;
        uintptr_t begin = (uintptr_t)((const uint16_t *)r.from + line / r.lines * r.from_stride +
                                      line % r.lines * r.from_ld),
                  end = begin + 2 * r.length;
        begin += 2 * at;
        const uint32_t *words = (const uint32_t *)(begin & ~(uintptr_t)3);
        uint32_t w[5], x[4], shift = (uint32_t)(begin & 3) * 8;
#pragma unroll
        for (int j = 0; j < 5; j++)
            w[j] = (uintptr_t)(words + j) < end ? __ldcg(words + j) : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t left = r.length - at - 2 * j;
            x[j] = left > 0 ? __funnelshift_r(w[j], w[j + 1], shift) & (left > 1 ? ~0u : 0xffffu) : 0;
        }
        ((uint4 *)r.to)[line * vectors + at / 8] = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/*
 * For weft_cuda_rehearse. Its frame is larger than that of any walker. Where there is a word to meet at, one
 * thread counts itself there and waits for the others; partner: the same lines in the peers' kernels.
 */
extern "C" __global__ void weft_rehearse(weft_cuda_rehearsal r)
{
    volatile uint32_t words[128];
    for (uint32_t i = 0; i < 128; i++)
        words[i] = i;
    if (!r.arrived || threadIdx.x)
        return;
    uint64_t began = now_ns();
    bool met;
    add_release(r.arrived);
    do
        met = (int64_t)(load_acquire(r.arrived) - r.want) >= 0;
    while (!met && now_ns() - began < r.deadline_ns);
    *r.met = words[met];
    __threadfence_system();
}
#endif
