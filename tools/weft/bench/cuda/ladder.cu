/*
 * The ladder on GPUs: see ladder_kernels.h.
 *
 * Card: 256 threads, at most 64 registers, 12 KiB of shared memory in `sum`; a CTA has a row at a time.
 */
#include "ladder_device.h"
#include "run/cuda/ptx.cuh"
#include "run/cuda/reduce.cuh"

#include <string.h>

#define LADDER_KERNEL(name)                                                                                  \
    extern "C" __global__ void __launch_bounds__(LADDER_THREADS, 4)                                          \
        weft_ladder_##name(const __grid_constant__ ladder_args p)
#define LADDER_DEVICE static __device__ __forceinline__
#define LADDER_SHARED __shared__
#define LADDER_UNROLL _Pragma("unroll")

LADDER_DEVICE void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

LADDER_DEVICE void latest(uint64_t *word, uint64_t value)
{
    atomicMax((unsigned long long *)word, (unsigned long long)value);
}

LADDER_DEVICE void add_here(int32_t *count, int32_t more)
{
    atomicAdd(count, more);
}

LADDER_DEVICE uint4 load_vector(const uint4 *from)
{
    return __ldcg(from);
}

template <int DTYPE> LADDER_DEVICE void add_typed(float *sums, const uint4 &v, float weight)
{
    enum { COUNT = 16 / sizeof(typename Type<DTYPE>::Stored) };
    typename Type<DTYPE>::Stored x[COUNT];
    memcpy(x, &v, sizeof(x));
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sums[i] = fmaf(weight, Type<DTYPE>::widen(x[i]), sums[i]);
}

template <int DTYPE> LADDER_DEVICE uint4 put_typed(const float *sums)
{
    enum { COUNT = 16 / sizeof(typename Type<DTYPE>::Stored) };
    typename Type<DTYPE>::Stored x[COUNT];
    uint4 v;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] = Type<DTYPE>::narrow(sums[i]);
    memcpy(&v, x, sizeof(v));
    return v;
}

LADDER_DEVICE void add_vector(int dtype, float *sums, const uint4 &v, float weight)
{
    if (dtype == WEFT_F16)
        add_typed<WEFT_F16>(sums, v, weight);
    else if (dtype == WEFT_BF16)
        add_typed<WEFT_BF16>(sums, v, weight);
    else
        add_typed<WEFT_F32>(sums, v, weight);
}

LADDER_DEVICE uint4 put_vector(int dtype, const float *sums)
{
    return dtype == WEFT_F16    ? put_typed<WEFT_F16>(sums)
           : dtype == WEFT_BF16 ? put_typed<WEFT_BF16>(sums)
                                : put_typed<WEFT_F32>(sums);
}

#include "ladder_kernels.h"
