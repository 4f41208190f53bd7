/*
 * all_reduce through the switch: a REDUCE of the schedule `multimem` loads sums that the switch makes of
 * every rank's elements, 16 bytes at a time, and stores them once, for the switch to spread (multicast.h).
 * What does not fill such a word goes by the ranks' own addresses, as in collective.cu.
 *
 * Card: as collective.cu, 8 loads of 16 bytes in flight a thread. The order of addition is the switch's; sums
 * of 16 bits are made in float32. Compiled, and its host side run on a fake: no machine with multicast was
 * at hand.
 */
#include "lanes.cuh"
#include "rows.cuh"

namespace
{

enum { DEPTH = 8 };

/* What the switch makes of 16 bytes of every rank. */
template <int DTYPE> struct Switched;

#define LOAD_VECTOR(op, type)                                                                                \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op ".v4." type " {%0, %1, %2, %3}, [%4];"          \
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)                                                \
                 : "l"(at)                                                                                   \
                 : "memory")

/* Of some types it takes one element at a time. */
#define LOAD_SINGLE(op, type, letter, i)                                                                     \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op "." type " %0, [%1];"                           \
                 : "=" letter(x.elements[i])                                                                 \
                 : "l"(at + (i) * sizeof(x.elements[0]))                                                     \
                 : "memory")

template <> struct Switched<WEFT_F32> {
    static __device__ __forceinline__ uint4 word(const char *at, int)
    {
        uint4 x;
        LOAD_VECTOR("add", "f32");
        return x;
    }
};

#define SWITCHED_NARROW(dtype, type)                                                                         \
    template <> struct Switched<dtype> {                                                                     \
        static __device__ __forceinline__ uint4 word(const char *at, int reduction)                          \
        {                                                                                                    \
            uint4 x;                                                                                         \
            if (reduction == WEFT_SUM)                                                                       \
                LOAD_VECTOR("add.acc::f32", type);                                                           \
            else if (reduction == WEFT_MIN)                                                                  \
                LOAD_VECTOR("min", type);                                                                    \
            else                                                                                             \
                LOAD_VECTOR("max", type);                                                                    \
            return x;                                                                                        \
        }                                                                                                    \
    }
SWITCHED_NARROW(WEFT_F16, "f16x2");
SWITCHED_NARROW(WEFT_BF16, "bf16x2");

/* `each` loads element i. */
#define SWITCHED_SINGLE(dtype, bits, each)                                                                   \
    template <> struct Switched<dtype> {                                                                     \
        static __device__ __forceinline__ uint4 word(const char *at, int reduction)                          \
        {                                                                                                    \
            union {                                                                                          \
                uint4 word;                                                                                  \
                bits elements[16 / sizeof(bits)];                                                            \
            } x;                                                                                             \
            for (int i = 0; i < (int)(16 / sizeof(bits)); i++) {                                             \
                each;                                                                                        \
            }                                                                                                \
            return x.word;                                                                                   \
        }                                                                                                    \
    }
#define LOAD_INTEGER(sum, type, letter)                                                                      \
    if (reduction == WEFT_SUM)                                                                               \
        LOAD_SINGLE("add", sum, letter, i);                                                                  \
    else if (reduction == WEFT_MIN)                                                                          \
        LOAD_SINGLE("min", type, letter, i);                                                                 \
    else                                                                                                     \
        LOAD_SINGLE("max", type, letter, i)
SWITCHED_SINGLE(WEFT_I32, int, LOAD_INTEGER("s32", "s32", "r"));
SWITCHED_SINGLE(WEFT_I64, long long, LOAD_INTEGER("u64", "s64", "l"));
SWITCHED_SINGLE(WEFT_F64, double, LOAD_SINGLE("add", "f64", "d", i));

__device__ __forceinline__ void store_word(char *at, uint4 x)
{
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* A rank's own addresses and the switch's are two names of one memory. */
__device__ __forceinline__ void order_names(void)
{
    asm volatile("fence.proxy.alias;" ::: "memory");
}

template <int DTYPE> struct Multimem {
    int reduction;

    __device__ __forceinline__ void ends(const Fetched &t, char *const *v, int begin, int end) const
    {
        if (reduction == WEFT_SUM)
            reduce_elements<DTYPE, true>(t, v, reduction, begin, end);
        else
            reduce_elements<DTYPE, false>(t, v, reduction, begin, end);
    }

    /* The last two views are the destination and the source as the switch knows them. */
    __device__ __forceinline__ void operator()(const Fetched &task, char *const *v) const
    {
        enum { SIZE = sizeof(typename Type<DTYPE>::Stored), PER_WORD = 16 / SIZE };
        Fetched t = task;
        t.sources -= 2;
        char *const *named = v + t.destinations + t.sources;
        int head = t.flags & WEFT_CUDA_WIDE ? min((int)((16 - (uintptr_t)v[0] % 16) % 16 / SIZE), t.cols)
                                            : t.cols,
            words = (t.cols - head) / PER_WORD;
        char *to = named[0] + head * SIZE;
        const char *from = named[1] + head * SIZE;
        order_names();
#pragma unroll 1
        for (int at = threadIdx.x; at < words; at += DEPTH * THREADS) {
            uint4 x[DEPTH];
#pragma unroll
            for (int j = 0; j < DEPTH; j++)
                if (at + j * THREADS < words)
                    x[j] = Switched<DTYPE>::word(from + (at + j * THREADS) * (int64_t)16, reduction);
#pragma unroll
            for (int j = 0; j < DEPTH; j++)
                if (at + j * THREADS < words)
                    store_word(to + (at + j * THREADS) * (int64_t)16, x[j]);
        }
        ends(t, v, 0, head);
        ends(t, v, head + words * PER_WORD, t.cols);
        order_names();
    }
};

} // namespace

#define WEFT_MULTIMEM(name, dtype)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                 \
        weft_multimem_##name(const __grid_constant__ weft_cuda_args g, int reduction, uint64_t *runs)        \
    {                                                                                                        \
        walk<false>(g, Multimem<dtype>{reduction}, runs);                                                    \
    }

WEFT_MULTIMEM(f32, WEFT_F32)
WEFT_MULTIMEM(f16, WEFT_F16)
WEFT_MULTIMEM(bf16, WEFT_BF16)
WEFT_MULTIMEM(i32, WEFT_I32)
WEFT_MULTIMEM(i64, WEFT_I64)
WEFT_MULTIMEM(f64, WEFT_F64)
