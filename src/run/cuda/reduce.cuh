/*
 * The arithmetic of reductions: a word of memory holds one or more elements; floats of 16 bits are combined
 * in float32 and rounded once. The same results as src/run/cpu/reduce.c, NaNs included.
 */
#ifndef WEFT_RUN_CUDA_REDUCE_CUH
#define WEFT_RUN_CUDA_REDUCE_CUH

#include <weft/weft.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* How elements are stored and combined. */
template <int DTYPE> struct Type;

template <> struct Type<WEFT_F32> {
    typedef float Stored;
    typedef float Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return x; }
};

template <> struct Type<WEFT_F16> {
    typedef __half Stored;
    typedef float Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return __half2float(x); }
    static __device__ __forceinline__ Stored narrow(Sum x) { return __float2half_rn(x); }
};

template <> struct Type<WEFT_BF16> {
    typedef __nv_bfloat16 Stored;
    typedef float Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return __bfloat162float(x); }
    static __device__ __forceinline__ Stored narrow(Sum x) { return __float2bfloat16_rn(x); }
};

template <> struct Type<WEFT_I32> {
    typedef int32_t Stored;
    typedef int32_t Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return x; }
};

template <> struct Type<WEFT_I64> {
    typedef int64_t Stored;
    typedef int64_t Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return x; }
};

template <> struct Type<WEFT_F64> {
    typedef double Stored;
    typedef double Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return x; }
};

template <> struct Type<WEFT_I8> {
    typedef int8_t Stored;
    typedef int32_t Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return (int8_t)(uint8_t)x; }
};

template <> struct Type<WEFT_U8> {
    typedef uint8_t Stored;
    typedef int32_t Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Sum x) { return (uint8_t)x; }
};

/* Sums and products of integers wrap. */
static __device__ __forceinline__ float add(float a, float b)
{
    return a + b;
}

static __device__ __forceinline__ double add(double a, double b)
{
    return a + b;
}

static __device__ __forceinline__ int32_t add(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

static __device__ __forceinline__ int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static __device__ __forceinline__ float multiply(float a, float b)
{
    return a * b;
}

static __device__ __forceinline__ double multiply(double a, double b)
{
    return a * b;
}

static __device__ __forceinline__ int32_t multiply(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}

static __device__ __forceinline__ int64_t multiply(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* `sum_only` leaves the test of the reduction to the compiler. */
template <bool SUM_ONLY, class T> static __device__ __forceinline__ T combine(int reduction, T a, T b)
{
    if (SUM_ONLY || reduction == WEFT_SUM || reduction == WEFT_AVERAGE)
        return add(a, b);
    if (reduction == WEFT_PRODUCT)
        return multiply(a, b);
    if (reduction == WEFT_MIN)
        return a < b || a != a ? a : b;
    return a > b || a != a ? a : b;
}

/* A word (8 or 16 bytes of memory) as elements. */
template <int DTYPE, class Word> struct Elements {
    enum { COUNT = sizeof(Word) / sizeof(typename Type<DTYPE>::Stored) };
    typename Type<DTYPE>::Sum sum[COUNT];

    __device__ __forceinline__ void start(Word word)
    {
        typename Type<DTYPE>::Stored x[COUNT];
        memcpy(x, &word, sizeof(word));
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum[i] = Type<DTYPE>::widen(x[i]);
    }

    template <bool SUM_ONLY> __device__ __forceinline__ void with(int reduction, Word word)
    {
        typename Type<DTYPE>::Stored x[COUNT];
        memcpy(x, &word, sizeof(word));
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum[i] = combine<SUM_ONLY>(reduction, sum[i], Type<DTYPE>::widen(x[i]));
    }

    /* When all `count` have been combined: an average is divided, of floats alone. */
    __device__ __forceinline__ void end(int reduction, int count)
    {
        typedef typename Type<DTYPE>::Sum Sum;
        if constexpr (Sum(0.5) != Sum(0)) {
#pragma unroll
            for (int i = 0; i < COUNT && reduction == WEFT_AVERAGE; i++)
                sum[i] = sum[i] / Sum(count);
        }
    }

    __device__ __forceinline__ Word word() const
    {
        typename Type<DTYPE>::Stored x[COUNT];
        Word out;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            x[i] = Type<DTYPE>::narrow(sum[i]);
        memcpy(&out, x, sizeof(out));
        return out;
    }
};

#endif
