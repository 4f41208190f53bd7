/*
 * bf16 products by VDPBF16PS for any small number of rows, 32 columns: the body of the AVX-512 BF16 kernel,
 * and of the AMX kernel's short form for few rows, whose panels of A group 32 of k where this instruction
 * needs 2.
 */
#ifndef WEFT_GEMM_KERNELS_X86_AVX512_BF16_H
#define WEFT_GEMM_KERNELS_X86_AVX512_BF16_H

#include "gemm/kernels/x86/few_ahead.h"
#include "gemm/kernels/x86/vector.h"

INLINE __m512bh bf16_pair(const uint16_t *pair)
{
    int32_t both;

    memcpy(&both, pair, sizeof(both));
    return (__m512bh)_mm512_set1_epi32(both);
}

/* `lines` rows are in a panel of A. */
INLINE void bf16_products(int rows, int vectors, int lines, int a_kr, int64_t k, const uint16_t *a,
                          const uint16_t *b, vec sum[][2])
{
    for (int64_t p = 0; p < k; p += a_kr) {
        for (int q = 0; q < a_kr; q += 2) {
            __m512bh b0 = (__m512bh)words_load(b);
            __m512bh b1 = vectors > 1 ? (__m512bh)words_load(b + 32) : b0;

            if (lines <= 4)
                few_ahead((const char *)b, 128);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                __m512bh x = bf16_pair(a + i * a_kr + q);

                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
                if (vectors > 1)
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            }
            b += 64;
        }
        a += lines * a_kr;
    }
}

#endif
