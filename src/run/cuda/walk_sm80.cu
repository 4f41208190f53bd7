/*
 * The plan walker for any GPU with 16-bit tensor cores (sm_80 and later), and on Hopper for operands whose
 * addresses or strides the copy engine refuses. One CTA is a lane's crew and makes the whole post;
 * block_sm80.cuh is how it multiplies.
 */
#include "block_sm80.cuh"
#include "order.cuh"

namespace
{

template <bool BF16> __device__ __forceinline__ void walk(const weft_cuda_args &g)
{
    char *shared = shared_memory();
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
            product<BF16>(g, t, v, shared);
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
 * read only when it has a byte of the line in it, so never beyond the matrix. What is beyond the line
 * becomes 0: the copy engine cannot end k there, and the other operand has zeros there.
 */
extern "C" __global__ void __launch_bounds__(THREADS) weft_repitch(weft_cuda_repitch r)
{
    int64_t vectors = r.to_ld / 16, total = r.batch * r.lines * vectors;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t line = i / vectors, at = i % vectors * 16;
        uintptr_t begin = (uintptr_t)r.from + line / r.lines * r.from_stride + line % r.lines * r.from_ld,
                  end = begin + r.length;
        begin += at;
        const uint32_t *words = (const uint32_t *)(begin & ~(uintptr_t)3);
        uint32_t w[5], x[4], shift = (uint32_t)(begin & 3) * 8;
#pragma unroll
        for (int j = 0; j < 5; j++)
            w[j] = (uintptr_t)(words + j) < end ? __ldcg(words + j) : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t left = r.length - at - 4 * j;
            uint32_t kept = left > 3 ? ~0u : left > 0 ? (1u << 8 * left) - 1 : 0;
            x[j] = kept ? __funnelshift_r(w[j], w[j + 1], shift) & kept : 0;
        }
        ((uint4 *)r.to)[line * vectors + at / 16] = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* The same of a matrix that is turned. A thread makes 16 bytes of a line; its neighbours make the same of the
 * lines beside it, with which it reads whole sectors. */
extern "C" __global__ void __launch_bounds__(THREADS) weft_turn(weft_cuda_repitch r)
{
    int64_t vectors = r.to_ld / 16, total = r.batch * r.lines * vectors;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t line = i % r.lines, at = i / r.lines % vectors, batch = i / r.lines / vectors;
        const unsigned char *from = (const unsigned char *)r.from + batch * r.from_stride + line;
        uint32_t x[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 16; j++) {
            int64_t k = at * 16 + j;
            uint32_t byte = k < r.length ? __ldcg(from + k * r.from_ld) : 0;
            x[j / 4] |= byte << j % 4 * 8;
        }
        ((uint4 *)r.to)[(batch * r.lines + line) * vectors + at] = make_uint4(x[0], x[1], x[2], x[3]);
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
