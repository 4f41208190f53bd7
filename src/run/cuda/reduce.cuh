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
    static __device__ __forceinline__ void widen_pair(uint32_t x, Sum *to)
    {
        __half2 pair;
        memcpy(&pair, &x, sizeof(pair));
        to[0] = __low2float(pair);
        to[1] = __high2float(pair);
    }
    static __device__ __forceinline__ uint32_t narrow_pair(const Sum *x)
    {
        __half2 pair = __floats2half2_rn(x[0], x[1]);
        uint32_t out;
        memcpy(&out, &pair, sizeof(out));
        return out;
    }
};

template <> struct Type<WEFT_BF16> {
    typedef __nv_bfloat16 Stored;
    typedef float Sum;
    static __device__ __forceinline__ Sum widen(Stored x) { return __bfloat162float(x); }
    static __device__ __forceinline__ Stored narrow(Sum x) { return __float2bfloat16_rn(x); }
    static __device__ __forceinline__ void widen_pair(uint32_t x, Sum *to)
    {
        to[0] = __uint_as_float(x << 16);
        to[1] = __uint_as_float(x & 0xffff0000u);
    }
    static __device__ __forceinline__ uint32_t narrow_pair(const Sum *x)
    {
        __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        uint32_t out;
        memcpy(&out, &pair, sizeof(out));
        return out;
    }
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

/* A word of memory as elements. Those of 16 bits are widened and narrowed two at a time, which is one
 * instruction each, or one for both. */
template <int DTYPE, class Word> struct Elements {
    typedef typename Type<DTYPE>::Stored Stored;
    typedef typename Type<DTYPE>::Sum Sum;
    enum { COUNT = sizeof(Word) / sizeof(Stored), PAIRS = sizeof(Stored) == 2 && COUNT % 2 == 0 };
    Sum sum[COUNT];

    static __device__ __forceinline__ void widen(Word word, Sum (&x)[COUNT])
    {
        if constexpr (PAIRS) {
            uint32_t pair[COUNT / 2];
            memcpy(pair, &word, sizeof(word));
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++)
                Type<DTYPE>::widen_pair(pair[i], &x[2 * i]);
        } else {
            Stored stored[COUNT];
            memcpy(stored, &word, sizeof(word));
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                x[i] = Type<DTYPE>::widen(stored[i]);
        }
    }

    __device__ __forceinline__ void start(Word word)
    {
        widen(word, sum);
    }

    template <bool SUM_ONLY> __device__ __forceinline__ void with(int reduction, Word word)
    {
        Sum x[COUNT];
        widen(word, x);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum[i] = combine<SUM_ONLY>(reduction, sum[i], x[i]);
    }

    /* When all `count` have been combined: an average is divided, of floats alone. */
    __device__ __forceinline__ void end(int reduction, int count)
    {
        if constexpr (Sum(0.5) != Sum(0)) {
#pragma unroll
            for (int i = 0; i < COUNT && reduction == WEFT_AVERAGE; i++)
                sum[i] = sum[i] / Sum(count);
        }
    }

    __device__ __forceinline__ Word word() const
    {
        Word out;
        if constexpr (PAIRS) {
            uint32_t pair[COUNT / 2];
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++)
                pair[i] = Type<DTYPE>::narrow_pair(&sum[2 * i]);
            memcpy(&out, pair, sizeof(out));
        } else {
            Stored stored[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                stored[i] = Type<DTYPE>::narrow(sum[i]);
            memcpy(&out, stored, sizeof(out));
        }
        return out;
    }
};

#endif
