/*
 * Walks what is left of a plan when its product is a launch of its own: COPY and REDUCE of matrices, with the
 * epilogue (see lanes.cuh). The walkers of products do that too, but a kernel of theirs takes all of an SM's
 * shared memory, and longer to begin and to end than a few rows take to be added.
 *
 * Card: 256 threads, at most 128 registers, 28 KiB of shared memory: two CTAs fit an SM. REDUCE has 16 loads
 * of 16 bytes in flight a thread, or 8 where there is little to add; COPY 16.
 */
#include "lanes.cuh"
#include "plain.cuh"

namespace
{

struct Matrices {
    const weft_cuda_args &g;

    __device__ __forceinline__ void operator()(const Fetched &f, char *const *) const
    {
        const weft_cuda_task &t = g.tasks[f.index];
        const weft_cuda_view *v = g.views + t.view0;
        if (f.kind == WEFT_CUDA_REDUCE)
            reduce(g, t, v, (int)threadIdx.x, THREADS);
        else if (f.rows > 0)
            copy(t, v, (int)threadIdx.x, THREADS);
    }
};

} // namespace

#ifndef WEFT_LINK
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    weft_sums(const __grid_constant__ weft_cuda_args g, int reduction, uint64_t *runs)
{
    (void)reduction; /* as the kernels of collectives have it */
    walk<false>(g, Matrices{g}, runs);
}

/*
 * One CTA that ends when every rank's has begun: before a kernel of many CTAs that wait for peers on the same
 * GPU, so that they take its SMs only when nothing that a peer must do first still needs them.
 */
extern "C" __global__ void __launch_bounds__(THREADS)
    weft_gate(const __grid_constant__ weft_cuda_args g, uint64_t *runs)
{
    uint64_t run = __ldcg(runs), *post = NULL;
    if (threadIdx.x < g.enter_posts)
        post = g.posts[g.enter_post0 + threadIdx.x];
    enter_together(g, post, run);
    if (threadIdx.x == 0)
        *runs = run + 1;
}
#else /* see emulate.h */
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    weft_sums_link(const __grid_constant__ weft_cuda_args g, int reduction, uint64_t *runs)
{
    (void)reduction;
    walk<true>(g, Matrices{g}, runs);
}
#endif
