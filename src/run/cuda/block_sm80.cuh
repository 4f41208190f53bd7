/*
 * One block of D by one CTA, with what every GPU since sm_80 has: asynchronous copies into a ring of stages,
 * ldmatrix, mma.sync. Operands of 16 bits whose lines begin on 16 bytes are copied; others, and fp8, which
 * becomes float16, go through registers into the same places.
 *
 * Card: 8 warps in 2 x 4, 64 x 64 (128 sums a thread) or 64 x 32 of D each; steps of 32 of k, 24 or 16 KiB a
 * stage, four of them, so that it fits GPUs with 99 KiB for a CTA. A warp loads 4 KiB (3 KiB) of fragments
 * for 65536 (32768) multiplications; those of the next 16 of k are loaded while it multiplies these.
 *
 * In shared memory an operand whose k is contiguous has lines of 64 bytes, else one of its m or n for each k.
 * 16 bytes are a vector. Vectors are exchanged within a line, so that the eight that a matrix of ldmatrix
 * reads, one below another, are in different banks: see place().
 */
#ifndef WEFT_RUN_CUDA_BLOCK_SM80_CUH
#define WEFT_RUN_CUDA_BLOCK_SM80_CUH

#include "core/round.h"
#include "plain.cuh"
#include "ptx.cuh"

namespace
{

constexpr int THREADS = WEFT_CUDA_ANY_THREADS, BLOCK_M = 128, STEP_K = 32, STAGES = WEFT_CUDA_ANY_STAGES;
constexpr int WARPS_M = 2, WARPS_N = 4, WARP_M = BLOCK_M / WARPS_M;
constexpr int VECTOR = 8;          /* elements */
constexpr int TURN = THREADS * 16; /* bytes that all threads bring with a vector each */
constexpr int A_BYTES = BLOCK_M * STEP_K * 2;
static_assert(WARPS_M * WARPS_N * 32 == THREADS, "a warp has a part of the block");

/* Where vector `at` of a line is: the `at`-th along k of line m or n, or the `at`-th of the m or n at k. */
template <int LINES, bool ALONG> __device__ __forceinline__ int place(int line, int at)
{
    return ALONG ? line * STEP_K * 2 + ((at ^ (line >> 1 & 3)) << 4)
                 : line * LINES * 2 + ((at ^ (line & 7)) << 4);
}

__device__ __forceinline__ int within(int x, int most)
{
    return min(max(x, 0), most);
}

/* A thread's part of copying one operand, LINES of m or n and STEP_K of k at a time. */
template <int LINES, bool ALONG> struct Copier {
    static constexpr int COUNT = LINES * STEP_K * 2 / TURN;                        /* vectors */
    static constexpr int APART = ALONG ? TURN / (STEP_K * 2) : TURN / (LINES * 2); /* lines between them */
    static constexpr int ACROSS = (ALONG ? STEP_K : LINES) / VECTOR;               /* vectors of a line */
    const char *from; /* the first one's place in memory */
    int64_t apart, step;
    int line, at; /* the first one's line, and its first element there */
    int lines_left, k_left;

    __device__ __forceinline__ Copier(const weft_cuda_view &v, int64_t line_stride, int64_t k_stride,
                                      int first, int lines, int k)
        : line((int)threadIdx.x / ACROSS), at((int)threadIdx.x % ACROSS * VECTOR), lines_left(lines - first),
          k_left(k)
    {
        int64_t outer = (ALONG ? line_stride : k_stride) * 2;
        from = (const char *)v.ptr + first * line_stride * 2 + line * outer + at * 2;
        apart = APART * outer;
        step = STEP_K * k_stride * 2;
    }

    __device__ __forceinline__ void copy(char *stage)
    {
        int whole = within((ALONG ? k_left : lines_left) - at, VECTOR); /* elements, where there is a line */
        char *to = stage + place<LINES, ALONG>(line, at / VECTOR);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool inside = line + i * APART < (ALONG ? lines_left : k_left);
            copy_async(to + i * TURN, from + i * apart, inside ? 2 * whole : 0);
        }
        from += step;
        k_left -= STEP_K;
    }
};

/* The same through registers, of any strides and types, into lines along k. */
template <int LINES> struct Carrier {
    static constexpr int COUNT = LINES * STEP_K * 2 / TURN, APART = TURN / (STEP_K * 2);
    const char *from;
    int64_t apart, k_bytes;
    int line, at, dtype, lines_left, k_left;
    bool wide;         /* whole vectors can be loaded */
    uint4 held[COUNT]; /* as they lie in memory */

    __device__ __forceinline__ Carrier(const weft_cuda_view &v, int64_t line_stride, int64_t k_stride,
                                       int first, int lines, int k)
        : line((int)threadIdx.x / (STEP_K / VECTOR)), at((int)threadIdx.x % (STEP_K / VECTOR) * VECTOR),
          dtype(v.dtype), lines_left(lines - first), k_left(k)
    {
        int64_t size = element_bytes(v.dtype), line_bytes = line_stride * size;
        const char *begin = (const char *)v.ptr + first * line_bytes;
        k_bytes = k_stride * size;
        from = begin + line * line_bytes + at * k_bytes;
        apart = APART * line_bytes;
        wide = k_stride == 1 && (((uintptr_t)begin | (uintptr_t)line_bytes) & (VECTOR * size - 1)) == 0;
    }

    __device__ __forceinline__ void fetch()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const char *x = from + i * apart;
            int count = line + i * APART < lines_left ? within(k_left - at, VECTOR) : 0;
            uint32_t words[4] = {};
            if (wide && count == VECTOR && is_fp8(dtype)) {
                uint2 both = __ldcg((const uint2 *)x);
                words[0] = both.x;
                words[1] = both.y;
            } else if (wide && count == VECTOR) {
                uint4 all = __ldcg((const uint4 *)x);
                words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
            } else {
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    if (e < count && is_fp8(dtype))
                        words[e / 4] |= (uint32_t)__ldcg((const unsigned char *)(x + e * k_bytes))
                                        << e % 4 * 8;
                    else if (e < count)
                        words[e / 2] |= (uint32_t)__ldcg((const unsigned short *)(x + e * k_bytes))
                                        << e % 2 * 16;
            }
            held[i] = make_uint4(words[0], words[1], words[2], words[3]);
        }
        from += STEP_K * k_bytes;
        k_left -= STEP_K;
    }

    __device__ __forceinline__ void keep(char *stage) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            uint4 x = held[i];
            if (is_fp8(dtype)) {
                uint32_t pairs[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t codes = (e < 2 ? held[i].x : held[i].y) >> e % 2 * 16;
                    pairs[e] = fp8_widen((uint8_t)codes, dtype) |
                               (uint32_t)fp8_widen((uint8_t)(codes >> 8), dtype) << 16;
                }
                x = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            }
            *(uint4 *)(stage + place<LINES, true>(line, at / VECTOR) + i * TURN) = x;
        }
    }
};

/* Where a lane's line of the four matrices of ldmatrix is: 16 of m or n from `first` on, 16 of k. Of A the
 * second matrix has the next eight of m, the third the next of k; of B the other way round. */
template <int LINES, bool ALONG, bool A> __device__ __forceinline__ int fragment_at(int first)
{
    int lane = threadIdx.x % 32, second = lane >> 3 & 1, third = lane >> 4;
    int line = A ? second : third, k = A ? third : second;
    return ALONG ? place<LINES, true>(first + line * 8 + lane % 8, k)
                 : place<LINES, false>(k * 8 + lane % 8, first / VECTOR + line);
}

/* The same `i` times 16 further along m or n, and at k. */
template <int LINES, bool ALONG> __device__ __forceinline__ int fragment_next(int at, int i, int k)
{
    return ALONG ? (at ^ k * 2) + i * 16 * STEP_K * 2 : (at ^ i * 32) + k * LINES * 2;
}

template <int BLOCK_N> struct Sums {
    static constexpr int WARP_N = BLOCK_N / WARPS_N, TILES_M = WARP_M / 16, TILES_N = WARP_N / 8;
    float d[TILES_M][TILES_N][4];
};

/* What a warp multiplies at once. */
template <int BLOCK_N> struct Fragments {
    uint32_t a[Sums<BLOCK_N>::TILES_M][4], b[Sums<BLOCK_N>::TILES_N / 2][4];

    template <bool ALONG_A, bool ALONG_B>
    __device__ __forceinline__ void load(const char *stage, int a_at, int b_at, int k)
    {
#pragma unroll
        for (int i = 0; i < Sums<BLOCK_N>::TILES_M; i++)
            load_matrices<!ALONG_A>(a[i], stage + fragment_next<BLOCK_M, ALONG_A>(a_at, i, k));
#pragma unroll
        for (int j = 0; j < Sums<BLOCK_N>::TILES_N / 2; j++)
            load_matrices<!ALONG_B>(b[j], stage + A_BYTES + fragment_next<BLOCK_N, ALONG_B>(b_at, j, k));
    }

    template <bool BF16> __device__ __forceinline__ void multiply(Sums<BLOCK_N> &sums) const
    {
#pragma unroll
        for (int j = 0; j < Sums<BLOCK_N>::TILES_N; j++)
#pragma unroll
            for (int i = 0; i < Sums<BLOCK_N>::TILES_M; i++)
                multiply_add<BF16>(sums.d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
};

/* The block's place in its task, and this warp's in the block. */
struct Corner {
    int row, col, warp_m, warp_n;
};

#ifdef WEFT_CUDA_FP8
/* Sums of a block of k, times its factors, to those of the blocks before it. */
template <int BLOCK_N>
__device__ void fold(const weft_cuda_args &g, const weft_cuda_task &t, const weft_cuda_view *v,
                     const Corner &at, int k, Sums<BLOCK_N> &sums, Sums<BLOCK_N> &all)
{
    const weft_cuda_view &a = v[t.destinations], &b = v[t.destinations + 1];
    int lane = threadIdx.x % 32, row0 = at.row + at.warp_m + lane / 4,
        col0 = at.col + at.warp_n + lane % 4 * 2;
    int64_t block = (a.col + k) / WEFT_CUDA_SCALE_BLOCK;
#pragma unroll
    for (int i = 0; i < Sums<BLOCK_N>::TILES_M; i++)
#pragma unroll
        for (int j = 0; j < Sums<BLOCK_N>::TILES_N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = a.row + min(row0 + i * 16 + e / 2 * 8, t.rows - 1),
                    col = b.col + min(col0 + j * 8 + e % 2, t.cols - 1);
                float scale = g.a_scale ? __ldcg(g.a_scale + row * g.a_scale_row + block * g.a_scale_k) : 1;
                if (g.b_scale)
                    scale *=
                        __ldcg(g.b_scale + block * g.b_scale_k + col / WEFT_CUDA_SCALE_BLOCK * g.b_scale_col);
                all.d[i][j][e] = fmaf(scale, sums.d[i][j][e], all.d[i][j][e]);
                sums.d[i][j][e] = 0;
            }
}
#endif

/* Whether four elements of a view's row can be loaded or stored at once. */
__device__ __forceinline__ bool by_fours(const weft_cuda_view &v)
{
    int size = element_bytes(v.dtype);
    return v.cs == 1 && (((uintptr_t)v.ptr | (uintptr_t)(v.rs * size)) & (4 * size - 1)) == 0;
}

/* Four sums of a row, of which `count` are inside the task. */
__device__ __forceinline__ void end_four(const weft_cuda_args &g, const weft_cuda_task &t,
                                         const weft_cuda_view *v, const float (&sums)[4], int row, int col,
                                         int count, bool wide_acc, bool wide_d)
{
    float x[4] = {sums[0], sums[1], sums[2], sums[3]};
    if (t.acc >= 0 && wide_acc && count == 4) {
        float4 before = load4(v[t.acc].ptr, row * v[t.acc].rs + col, v[t.acc].dtype);
        x[0] = before.x + x[0], x[1] = before.y + x[1], x[2] = before.z + x[2], x[3] = before.w + x[3];
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (e >= count)
            break;
        if (t.acc >= 0 && !(wide_acc && count == 4))
            x[e] =
                element_get(v[t.acc].ptr, row * v[t.acc].rs + (col + e) * v[t.acc].cs, v[t.acc].dtype) + x[e];
        if (t.flags & WEFT_CUDA_EPILOGUE)
            x[e] = finish_element(g, t, v, x[e], row, col + e);
    }
    for (int n = 0; n < t.destinations; n++)
        if (wide_d && count == 4)
            store4(v[n].ptr, row * v[n].rs + col, make_float4(x[0], x[1], x[2], x[3]), v[n].dtype);
        else
            for (int e = 0; e < count; e++)
                element_set(v[n].ptr, row * v[n].rs + (col + e) * v[n].cs, x[e], v[n].dtype);
}

/* A warp's sums, 16 rows at a time through its own part of shared memory, so that it stores whole lines. */
template <int BLOCK_N>
__device__ __forceinline__ void end_block(const weft_cuda_args &g, const weft_cuda_task &t,
                                          const weft_cuda_view *v, const Corner &at, Sums<BLOCK_N> &sums,
                                          char *shared)
{
    constexpr int WARP_N = Sums<BLOCK_N>::WARP_N, PITCH = WARP_N + 8; /* eight rows in different banks */
    constexpr int FOURS = WARP_N / 4, ROWS = 32 / FOURS;
    float *slab = (float *)shared + threadIdx.x / 32 * 16 * PITCH;
    int lane = threadIdx.x % 32, line = lane / 4, pair = lane % 4 * 2,
        col = at.col + at.warp_n + lane % FOURS * 4;
    bool wide_acc = t.acc >= 0 && by_fours(v[t.acc]) && !is_fp8(v[t.acc].dtype), wide_d = true;
    for (int n = 0; n < t.destinations; n++)
        wide_d &= by_fours(v[n]);
#pragma unroll 1
    for (int i = 0; i < Sums<BLOCK_N>::TILES_M;
         i++) { /* not unrolled, for what follows is long: rows move up */
#pragma unroll
        for (int j = 0; j < Sums<BLOCK_N>::TILES_N; j++) {
            *(float2 *)&slab[line * PITCH + j * 8 + pair] = make_float2(sums.d[0][j][0], sums.d[0][j][1]);
            *(float2 *)&slab[(line + 8) * PITCH + j * 8 + pair] =
                make_float2(sums.d[0][j][2], sums.d[0][j][3]);
#pragma unroll
            for (int e = 0; e < 4 * (Sums<BLOCK_N>::TILES_M - 1); e++)
                sums.d[e / 4][j][e % 4] = sums.d[e / 4 + 1][j][e % 4];
        }
        __syncwarp();
#pragma unroll 1
        for (int r = lane / FOURS; r < 16; r += ROWS) {
            int row = at.row + at.warp_m + i * 16 + r;
            float4 four = *(const float4 *)&slab[r * PITCH + lane % FOURS * 4];
            float x[4] = {four.x, four.y, four.z, four.w};
            if (row < t.rows && col < t.cols)
                end_four(g, t, v, x, row, col, within(t.cols - col, 4), wide_acc, wide_d);
        }
        __syncwarp();
    }
}

/* k by copies that run ahead of the product. The stage that is copied into was read before the last barrier.
 */
template <bool BF16, bool ALONG_A, bool ALONG_B, int BLOCK_N>
__device__ __forceinline__ void multiply_copied(Copier<BLOCK_M, ALONG_A> &a, Copier<BLOCK_N, ALONG_B> &b,
                                                const Corner &at, int steps, char *shared,
                                                Sums<BLOCK_N> &sums)
{
    constexpr int STAGE = A_BYTES + BLOCK_N * STEP_K * 2;
    int a_at = fragment_at<BLOCK_M, ALONG_A, true>(at.warp_m),
        b_at = fragment_at<BLOCK_N, ALONG_B, false>(at.warp_n);
    Fragments<BLOCK_N> now, next;
    auto copy = [&](int step) {
        char *stage = shared + step % STAGES * STAGE;
        if (step < steps) {
            a.copy(stage);
            b.copy(stage + A_BYTES);
        }
        copy_async_commit(); /* also of nothing: groups are counted */
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++)
        copy(step);
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    now.template load<ALONG_A, ALONG_B>(shared, a_at, b_at, 0);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        next.template load<ALONG_A, ALONG_B>(shared + step % STAGES * STAGE, a_at, b_at, 16);
        copy(step + STAGES - 1);
        now.template multiply<BF16>(sums);
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        now.template load<ALONG_A, ALONG_B>(shared + (step + 1) % STAGES * STAGE, a_at, b_at, 0);
        next.template multiply<BF16>(sums);
    }
    copy_async_wait<0>();
    __syncthreads();
}

/* k through registers, two stages. */
template <bool BF16, int BLOCK_N>
__device__ __forceinline__ void multiply_carried(const weft_cuda_args &g, const weft_cuda_task &t,
                                                 const weft_cuda_view *v, Carrier<BLOCK_M> &a,
                                                 Carrier<BLOCK_N> &b, const Corner &at, int steps,
                                                 char *shared, Sums<BLOCK_N> &sums)
{
    constexpr int STAGE = A_BYTES + BLOCK_N * STEP_K * 2;
    int a_at = fragment_at<BLOCK_M, true, true>(at.warp_m),
        b_at = fragment_at<BLOCK_N, true, false>(at.warp_n);
#ifdef WEFT_CUDA_FP8
    bool folds = g.a_scale || g.b_scale;
    Sums<BLOCK_N> all = {};
#endif
    auto fetch = [&]() {
        a.fetch();
        b.fetch();
    };
    auto keep = [&](int step) {
        char *stage = shared + step % 2 * STAGE;
        a.keep(stage);
        b.keep(stage + A_BYTES);
    };
    fetch();
    keep(0);
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const char *stage = shared + step % 2 * STAGE;
        if (step + 1 < steps)
            fetch();
#pragma unroll
        for (int k = 0; k < STEP_K; k += 16) {
            Fragments<BLOCK_N> now;
            now.template load<true, true>(stage, a_at, b_at, k);
            now.template multiply<BF16>(sums);
        }
#ifdef WEFT_CUDA_FP8
        if (folds && ((step + 1) * STEP_K % WEFT_CUDA_SCALE_BLOCK == 0 || step + 1 == steps))
            fold(g, t, v, at, step * STEP_K, sums, all);
#endif
        if (step + 1 < steps)
            keep(step + 1);
        __syncthreads();
    }
#ifdef WEFT_CUDA_FP8
    if (folds)
        sums = all;
#endif
}

template <int BLOCK_N> __device__ __forceinline__ Corner corner_of(int row, int col)
{
    int warp = threadIdx.x / 32;
    return {row, col, warp / WARPS_N * WARP_M, warp % WARPS_N * Sums<BLOCK_N>::WARP_N};
}

__device__ __forceinline__ int steps_of(const weft_cuda_task &t)
{
    return weft_divide_up(t.k, STEP_K);
}

/* The block at (row, col) of a task, whose operands can be copied. A function of its own, as are all blocks:
 * inlined side by side they take the compiler minutes. */
template <bool BF16, bool ALONG_A, bool ALONG_B, int BLOCK_N>
__device__ __noinline__ void block_copied(const weft_cuda_args &g, const weft_cuda_task &t,
                                          const weft_cuda_view *v, char *shared, int row, int col)
{
    const weft_cuda_view &a = v[t.destinations], &b = v[t.destinations + 1];
    Corner at = corner_of<BLOCK_N>(row, col);
    Sums<BLOCK_N> sums = {};
    if (t.k > 0) {
        Copier<BLOCK_M, ALONG_A> copy_a(a, a.rs, a.cs, row, t.rows, t.k);
        Copier<BLOCK_N, ALONG_B> copy_b(b, b.cs, b.rs, col, t.cols, t.k);
        multiply_copied<BF16, ALONG_A, ALONG_B, BLOCK_N>(copy_a, copy_b, at, steps_of(t), shared, sums);
    }
    end_block<BLOCK_N>(g, t, v, at, sums, shared);
    __syncthreads();
}

/* The same of any operands. */
template <bool BF16, int BLOCK_N>
__device__ __noinline__ void block_carried(const weft_cuda_args &g, const weft_cuda_task &t,
                                           const weft_cuda_view *v, char *shared, int row, int col)
{
    const weft_cuda_view &a = v[t.destinations], &b = v[t.destinations + 1];
    Corner at = corner_of<BLOCK_N>(row, col);
    Sums<BLOCK_N> sums = {};
    if (t.k > 0) {
        Carrier<BLOCK_M> carry_a(a, a.rs, a.cs, row, t.rows, t.k);
        Carrier<BLOCK_N> carry_b(b, b.cs, b.rs, col, t.cols, t.k);
        multiply_carried<BF16, BLOCK_N>(g, t, v, carry_a, carry_b, at, steps_of(t), shared, sums);
    }
    end_block<BLOCK_N>(g, t, v, at, sums, shared);
    __syncthreads();
}

/* Whether copies of 16 bytes bring an operand. */
__device__ __forceinline__ bool can_copy(const weft_cuda_view &v)
{
    int64_t stride = v.cs == 1 ? v.rs : v.cs;
    return !is_fp8(v.dtype) && (((uintptr_t)v.ptr | (uintptr_t)(stride * 2)) & 15) == 0;
}

template <bool BF16, int BLOCK_N>
__device__ __forceinline__ void copied(const weft_cuda_args &g, const weft_cuda_task &t,
                                       const weft_cuda_view *v, char *shared, int row, int col)
{
    bool along_a = v[t.destinations].cs == 1, along_b = v[t.destinations + 1].rs == 1;
    if (along_a && along_b)
        block_copied<BF16, true, true, BLOCK_N>(g, t, v, shared, row, col);
    else if (along_a)
        block_copied<BF16, true, false, BLOCK_N>(g, t, v, shared, row, col);
    else if (along_b)
        block_copied<BF16, false, true, BLOCK_N>(g, t, v, shared, row, col);
    else
        block_copied<BF16, false, false, BLOCK_N>(g, t, v, shared, row, col);
}

/* A GEMM task, by all threads of the CTA. */
template <bool BF16>
__device__ __forceinline__ void product(const weft_cuda_args &g, const weft_cuda_task &t,
                                        const weft_cuda_view *v, char *shared)
{
#ifdef WEFT_CUDA_FP8
    constexpr bool copies = false;
#else
    bool copies = can_copy(v[t.destinations]) && can_copy(v[t.destinations + 1]);
#endif
    int width = copies && t.cols > 128 ? 256 : 128;
    for (int row = 0; row < t.rows; row += BLOCK_M)
        for (int col = 0; col < t.cols; col += width)
            if (!copies)
                block_carried<BF16, 128>(g, t, v, shared, row, col);
#ifndef WEFT_CUDA_FP8
            else if (width == 256)
                copied<BF16, 256>(g, t, v, shared, row, col);
            else
                copied<BF16, 128>(g, t, v, shared, row, col);
#endif
}

} // namespace

#endif
