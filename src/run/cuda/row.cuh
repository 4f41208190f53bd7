/*
 * A row of the caller's memory, 8 bytes at a time: its last word may have fewer, and it may begin anywhere.
 */
#ifndef WEFT_RUN_CUDA_ROW_CUH
#define WEFT_RUN_CUDA_ROW_CUH

#include <stdint.h>

namespace
{

enum { WORD = 8 };

/* Whether word `at` of a row is one access: `aligned` says so of where rows begin. */
__device__ __forceinline__ bool row_has(int aligned, int64_t bytes, int64_t at)
{
    return aligned && bytes - at * WORD >= WORD;
}

/* Such a word, and 0 of any other: without a branch, so that many are in flight together. */
__device__ __forceinline__ uint64_t row_load(int aligned, const char *row, int64_t bytes, int64_t at)
{
    uint64_t word = 0;
    if (row_has(aligned, bytes, at))
        word = __ldcg((const unsigned long long *)row + at);
    return word;
}

__device__ __forceinline__ uint64_t row_get(int aligned, const char *row, int64_t bytes, int64_t at)
{
    if (row_has(aligned, bytes, at))
        return row_load(aligned, row, bytes, at);
    uint64_t word = 0;
#pragma unroll 1
    for (int i = 0; i < WORD && at * WORD + i < bytes; i++)
        word |= (uint64_t)(uint8_t)row[at * WORD + i] << 8 * i;
    return word;
}

__device__ __forceinline__ void row_set(int aligned, char *row, int64_t bytes, int64_t at, uint64_t word)
{
    if (row_has(aligned, bytes, at)) {
        ((uint64_t *)row)[at] = word;
        return;
    }
#pragma unroll 1
    for (int i = 0; i < WORD && at * WORD + i < bytes; i++)
        row[at * WORD + i] = (char)(word >> 8 * i);
}

} // namespace

#endif
