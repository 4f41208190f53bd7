/*
 * Walks plans of collectives: tasks are COPY and REDUCE on rows of bytes, of any type (see lanes.cuh).
 *
 * Card: 256 threads, at most 128 registers, 28 KiB of shared memory: two CTAs fit an SM. REDUCE has 8 loads
 * of 16 bytes in flight a thread, COPY too.
 */
#include "lanes.cuh"
#include "rows.cuh"

namespace
{

template <int DTYPE> __device__ __forceinline__ void reduce(const Fetched &t, char *const *v, int reduction)
{
    if (reduction == WEFT_SUM)
        reduce_row<DTYPE, true>(t, v, reduction);
    else
        reduce_row<DTYPE, false>(t, v, reduction);
}

template <int DTYPE> struct Collective {
    int reduction;

    __device__ __forceinline__ void operator()(const Fetched &f, char *const *views) const
    {
        if (f.kind == WEFT_CUDA_REDUCE)
            reduce<DTYPE>(f, views, reduction);
        else if (f.rows > 0)
            copy_row(f.to, f.from, f.copy_bytes);
    }
};

} // namespace

/* By what is reduced, so that a kernel has the registers of one type; movement takes any. */
#define WEFT_COLLECTIVE_AS(name, dtype, link)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                 \
        weft_collective_##name(const __grid_constant__ weft_cuda_args g, int reduction, uint64_t *runs)      \
    {                                                                                                        \
        walk<link>(g, Collective<dtype>{reduction}, runs);                                                   \
    }

#define WEFT_COLLECTIVE(name, dtype) WEFT_COLLECTIVE_AS(name, dtype, false)

#ifndef WEFT_LINK
WEFT_COLLECTIVE(f32, WEFT_F32)
WEFT_COLLECTIVE(f16, WEFT_F16)
WEFT_COLLECTIVE(bf16, WEFT_BF16)
WEFT_COLLECTIVE(i32, WEFT_I32)
WEFT_COLLECTIVE(i64, WEFT_I64)
WEFT_COLLECTIVE(f64, WEFT_F64)
WEFT_COLLECTIVE(i8, WEFT_I8)
WEFT_COLLECTIVE(u8, WEFT_U8)
#else /* of what products send: see emulate.h */
WEFT_COLLECTIVE_AS(link_f32, WEFT_F32, true)
WEFT_COLLECTIVE_AS(link_f16, WEFT_F16, true)
WEFT_COLLECTIVE_AS(link_bf16, WEFT_BF16, true)
#endif
