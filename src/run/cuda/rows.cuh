/*
 * Rows of bytes, copied and reduced by a CTA of WEFT_CUDA_COLLECTIVE_THREADS threads. `Rows` of a reduction
 * says how many destinations and sources the views have, destinations first, how many elements a row has, and
 * in its flags whether it is WIDE.
 */
#ifndef WEFT_RUN_CUDA_ROWS_CUH
#define WEFT_RUN_CUDA_ROWS_CUH

#include "collective.h"
#include "reduce.cuh"

namespace
{

/* Of a CTA, all of which come here; what a thread has in flight. */
enum { ROW_THREADS = WEFT_CUDA_COLLECTIVE_THREADS, ROW_DEPTH = 4, COPY_DEPTH = 8 };

template <class Word> __device__ __forceinline__ void copy_words(char *to, const char *from, int64_t bytes)
{
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < total; base += ROW_THREADS * COPY_DEPTH) {
        Word x[COPY_DEPTH];
#pragma unroll
        for (int j = 0; j < COPY_DEPTH; j++)
            if (base + j * ROW_THREADS < total)
                x[j] = __ldcg((const Word *)from + base + j * ROW_THREADS);
#pragma unroll
        for (int j = 0; j < COPY_DEPTH; j++)
            if (base + j * ROW_THREADS < total)
                ((Word *)to)[base + j * ROW_THREADS] = x[j];
    }
    for (int64_t at = total * (int64_t)sizeof(Word) + threadIdx.x; at < bytes; at += ROW_THREADS)
        to[at] = __ldcg(from + at);
}

/* A row of bytes, by the widest words that both addresses allow. */
__device__ __forceinline__ void copy_row(char *to, const char *from, int64_t bytes)
{
    uintptr_t ends = (uintptr_t)to | (uintptr_t)from;
    if (to == from)
        return;
    if (ends % 16 == 0)
        copy_words<uint4>(to, from, bytes);
    else if (ends % 4 == 0)
        copy_words<uint32_t>(to, from, bytes);
    else if (ends % 2 == 0)
        copy_words<unsigned short>(to, from, bytes);
    else
        copy_words<unsigned char>(to, from, bytes);
}

template <int DTYPE, bool SUM_ONLY, class Rows>
__device__ __forceinline__ void reduce_elements(const Rows &t, char *const *v, int reduction, int64_t begin,
                                                int64_t end)
{
    typedef typename Type<DTYPE>::Stored Stored;
#pragma unroll 1
    for (int64_t at = begin + threadIdx.x; at < end; at += ROW_THREADS) {
        Elements<DTYPE, Stored> sum;
        sum.start(((const Stored *)v[t.destinations])[at]);
#pragma unroll 1
        for (int s = 1; s < (int)t.sources; s++)
            sum.template with<SUM_ONLY>(reduction, ((const Stored *)v[t.destinations + s])[at]);
        if (!SUM_ONLY)
            sum.end(reduction, (int)t.sources);
#pragma unroll 1
        for (int d = 0; d < (int)t.destinations; d++)
            ((Stored *)v[d])[at] = sum.word();
    }
}

template <int DEPTH> __device__ __forceinline__ void load_words(uint4 x[DEPTH], const char *row, int at)
{
#pragma unroll
    for (int j = 0; j < DEPTH; j++)
        x[j] = __ldcg((const uint4 *)row + at + j * ROW_THREADS);
}

/* DEPTH words of all rows, `offset` bytes into them: the next source's are on their way while one's are
 * added. */
template <int DTYPE, bool SUM_ONLY, int DEPTH, class Rows>
__device__ __forceinline__ void reduce_words(const Rows &t, char *const *v, int reduction, int offset, int at)
{
    Elements<DTYPE, uint4> sum[DEPTH];
    uint4 x[DEPTH], ahead[DEPTH];
    load_words<DEPTH>(x, v[t.destinations] + offset, at);
    if (t.sources > 1)
        load_words<DEPTH>(ahead, v[t.destinations + 1] + offset, at);
#pragma unroll
    for (int j = 0; j < DEPTH; j++)
        sum[j].start(x[j]);
#pragma unroll 1
    for (int s = 1; s < (int)t.sources; s++) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            x[j] = ahead[j];
        if (s + 1 < (int)t.sources)
            load_words<DEPTH>(ahead, v[t.destinations + s + 1] + offset, at);
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            sum[j].template with<SUM_ONLY>(reduction, x[j]);
    }
#pragma unroll
    for (int j = 0; j < DEPTH; j++) {
        if (!SUM_ONLY)
            sum[j].end(reduction, (int)t.sources);
        uint4 word = sum[j].word();
#pragma unroll 1
        for (int d = 0; d < (int)t.destinations; d++)
            ((uint4 *)(v[d] + offset))[at + j * ROW_THREADS] = word;
    }
}

/* WIDE: all rows are equally far from the next 16 bytes. */
template <int DTYPE, bool SUM_ONLY, int DEPTH = ROW_DEPTH, class Rows>
__device__ __forceinline__ void reduce_row(const Rows &t, char *const *v, int reduction)
{
    enum { SIZE = sizeof(typename Type<DTYPE>::Stored), PER_WORD = 16 / SIZE };
    if (!(t.flags & WEFT_CUDA_WIDE)) {
        reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, t.cols);
        return;
    }
    int head = min((int)((16 - (uintptr_t)v[0] % 16) % 16 / SIZE), t.cols),
        words = (t.cols - head) / PER_WORD, offset = head * SIZE, at = threadIdx.x;
#pragma unroll 1
    for (; at + (DEPTH - 1) * ROW_THREADS < words; at += DEPTH * ROW_THREADS)
        reduce_words<DTYPE, SUM_ONLY, DEPTH>(t, v, reduction, offset, at);
#pragma unroll 1
    for (; at < words; at += ROW_THREADS)
        reduce_words<DTYPE, SUM_ONLY, 1>(t, v, reduction, offset, at);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, 0, head);
    reduce_elements<DTYPE, SUM_ONLY>(t, v, reduction, head + words * PER_WORD, t.cols);
}

} // namespace

#endif
