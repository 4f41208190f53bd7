/*
 * What kernels for few rows ask for ahead of a packed B, which comes from memory and is used once. The
 * including file defines VECTOR_BYTES.
 *
 * Hardware fetches ahead within a page that it has seen used and no further: two lines of the page after the
 * next are asked for when one begins, so that it is at work on several. And every line is asked for shortly
 * before its use, for hardware that is behind. Each without the other is slower: 16 rows by 4096 x 7168 on
 * two cores at once take 9.8 ms with the pages alone, 7.5 with the lines alone and 6.4 with both, where one
 * row takes 6.0.
 */
#ifndef WEFT_GEMM_KERNELS_X86_FEW_AHEAD_H
#define WEFT_GEMM_KERNELS_X86_FEW_AHEAD_H

#include "gemm/kernels/x86/vector.h"

enum { FEW_PAGE_BYTES = 4096, FEW_LINE_BYTES = 64, FEW_LINES_AHEAD = 48 };

/* With every step of `bytes` of B, a divisor of a page. */
INLINE void few_ahead(const char *b, int bytes)
{
    if (((uintptr_t)b & (FEW_PAGE_BYTES - 1)) < (uintptr_t)bytes) {
        _mm_prefetch(b + 2 * FEW_PAGE_BYTES, _MM_HINT_T0);
        _mm_prefetch(b + 2 * FEW_PAGE_BYTES + FEW_PAGE_BYTES / 4, _MM_HINT_T0);
    }
#pragma GCC unroll 32
    for (int line = 0; line < bytes; line += FEW_LINE_BYTES)
        _mm_prefetch(b + FEW_LINES_AHEAD * FEW_LINE_BYTES + line, _MM_HINT_T0);
}

#endif
