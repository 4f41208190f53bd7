/* Rows by the threads of a CTA: to other places as they are, and weighted sums of them. */
#ifndef WEFT_RUN_CUDA_MOE_ROWS_CUH
#define WEFT_RUN_CUDA_MOE_ROWS_CUH

#include "core/round.h"
#include "moe_round.cuh"
#include "reduce.cuh"

namespace
{

enum { DEPTH = 4, TOGETHER = 4 }; /* loads of a thread in flight */

/* A word past L1, or zero. */
template <class Word> __device__ __forceinline__ Word load_if(bool wanted, const Word *from)
{
    return wanted ? __ldcg(from) : Word();
}

template <> __device__ __forceinline__ uint4 load_if<uint4>(bool wanted, const uint4 *from)
{
    uint4 x = {0, 0, 0, 0};
    WEFT_LOAD4_IF("ld.global.cg.v4.u32", x, wanted, from);
    return x;
}

/* A row to several places. */
template <class Word>
__device__ __forceinline__ void push_words(char *const *to, int places, const char *from, int64_t bytes)
{
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < total; base += THREADS * DEPTH) {
        Word x[DEPTH];
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            x[j] = load_if(base + j * THREADS < total, (const Word *)from + base + j * THREADS);
#pragma unroll 1
        for (int i = 0; i < places; i++) {
            Word *row = (Word *)to[i];
#pragma unroll
            for (int j = 0; j < DEPTH; j++)
                if (base + j * THREADS < total)
                    row[base + j * THREADS] = x[j];
        }
    }
}

/* By the widest words that all addresses allow; `ends` has those of the places where they do not begin on 16
 * bytes. */
__device__ __forceinline__ void push_row(char *const *to, int places, const char *from, int64_t bytes,
                                         uintptr_t ends)
{
    ends |= (uintptr_t)from | (uintptr_t)bytes;
    if (ends % 16 == 0)
        push_words<uint4>(to, places, from, bytes);
    else if (ends % 4 == 0)
        push_words<uint32_t>(to, places, from, bytes);
    else if (ends % 2 == 0)
        push_words<unsigned short>(to, places, from, bytes);
    else
        push_words<unsigned char>(to, places, from, bytes);
}

/* Rows to be added up, and with what weights; NULL with weight 0: nothing. */
struct Terms {
    const char *from[WEFT_CUDA_MOE_TOPK];
    float weight[WEFT_CUDA_MOE_TOPK];
    int count; /* a multiple of TOGETHER, which are under way at a time */
};

/* Fills up the last ones of `count`. */
__device__ __forceinline__ void end_terms(Terms &s, int count)
{
    int whole = weft_round_up(count, TOGETHER);
    for (int i = count + (int)threadIdx.x; i < whole; i += THREADS) {
        s.from[i] = nullptr;
        s.weight[i] = 0;
    }
    if (threadIdx.x == 0)
        s.count = whole;
}

/* to = sum of weight * row, in the order given, in fp32, rounded once. */
template <int DTYPE, class Word>
__device__ __forceinline__ void sum_words(const Terms &s, char *to, int64_t bytes)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { COUNT = sizeof(Word) / sizeof(Stored) };
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t at = threadIdx.x; at < total; at += THREADS) {
        float sum[COUNT];
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            sum[c] = 0;
#pragma unroll 1
        for (int i0 = 0; i0 < s.count; i0 += TOGETHER) {
            const Word *from[TOGETHER];
            Word x[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                from[i] = (const Word *)s.from[i0 + i];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                x[i] = load_if(from[i] != nullptr, from[i] + at);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                Stored y[COUNT];
                memcpy(y, &x[i], sizeof(y));
#pragma unroll
                for (int c = 0; c < COUNT; c++)
                    sum[c] = fmaf(s.weight[i0 + i], (float)Type<DTYPE>::widen(y[c]), sum[c]);
            }
        }
        Stored out[COUNT];
        Word word;
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            out[c] = Type<DTYPE>::narrow(sum[c]);
        memcpy(&word, out, sizeof(word));
        ((Word *)to)[at] = word;
    }
}

template <int DTYPE>
__device__ __forceinline__ void sum_rows(const Terms &s, char *to, int64_t bytes, uintptr_t ends)
{
    ends |= (uintptr_t)to | (uintptr_t)bytes;
    if (ends % 16 == 0)
        sum_words<DTYPE, uint4>(s, to, bytes);
    else
        sum_words<DTYPE, typename Type<DTYPE>::Stored>(s, to, bytes);
}

__device__ __forceinline__ void sum_any(const weft_cuda_moe &p, const Terms &s, char *to, int64_t bytes,
                                        uintptr_t ends)
{
    if (p.dtype == WEFT_F16)
        sum_rows<WEFT_F16>(s, to, bytes, ends);
    else if (p.dtype == WEFT_BF16)
        sum_rows<WEFT_BF16>(s, to, bytes, ends);
    else
        sum_rows<WEFT_F32>(s, to, bytes, ends);
}

} // namespace

#endif
