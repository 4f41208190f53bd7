/* The end of every AVX-512 int8 kernel: add the 12x32 sums to C, or store them. */
#ifndef WEFT_GEMM_KERNELS_X86_AVX512_I8_H
#define WEFT_GEMM_KERNELS_X86_AVX512_I8_H

#include <immintrin.h>
#include <stdint.h>

static inline __attribute__((always_inline)) void weft_avx512_store_i32(__m512i first, __m512i second,
                                                                        int32_t *row, int add)
{
    if (add) {
        first = _mm512_add_epi32(_mm512_loadu_si512(row), first);
        second = _mm512_add_epi32(_mm512_loadu_si512(row + 16), second);
    }
    _mm512_storeu_si512(row, first);
    _mm512_storeu_si512(row + 16, second);
}

#endif
