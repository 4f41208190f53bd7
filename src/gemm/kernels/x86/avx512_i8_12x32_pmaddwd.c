/*
 * int8 to int32 for AVX-512 without VNNI: bytes widened to 16 bits, PMADDWD, exact.
 *
 * Tile 12x32, k in pairs: 24 accumulators of 16, 2 for the widened B, 1 for the pair of A.
 * Per pair of k: 2 widening loads of B, 12 broadcasts, 24 PMADDWD + 24 adds.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"

#include <immintrin.h>

enum { MR = 12, NR = 32 };

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const int8_t *a = a_panel;
    const int8_t *b = b_panel;
    int32_t *c = c_tile;
    __m512i sum[MR][2];

    for (int i = 0; i < MR; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int64_t p = 0; p < k; p += 2) {
        __m512i b0 = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)b));
        __m512i b1 = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(b + 32)));

#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            __m512i x =
                _mm512_set1_epi32((int32_t)((uint32_t)(uint16_t)a[2 * i] | (uint32_t)a[2 * i + 1] << 16));

            sum[i][0] = _mm512_add_epi32(sum[i][0], _mm512_madd_epi16(x, b0));
            sum[i][1] = _mm512_add_epi32(sum[i][1], _mm512_madd_epi16(x, b1));
        }
        a += 2 * MR;
        b += 2 * NR;
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        int32_t *row = c + i * c_ld;

        if (add) {
            sum[i][0] = _mm512_add_epi32(_mm512_loadu_si512(row), sum[i][0]);
            sum[i][1] = _mm512_add_epi32(_mm512_loadu_si512(row + 16), sum[i][1]);
        }
        _mm512_storeu_si512(row, sum[i][0]);
        _mm512_storeu_si512(row + 16, sum[i][1]);
    }
}

WEFT_DEFINE_PACKERS(uint8_t, 2, 2, 0)

const weft_kernel weft_kernel_avx512_i8_12x32_pmaddwd = {
    .name = "avx512_i8_12x32_pmaddwd",
    .type = WEFT_I8,
    .mr = MR,
    .nr = NR,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    .run = run,
    .along = weft_avx512_i8_pairs_along,
    .across = weft_avx512_i8_pairs_across,
    WEFT_PACKERS,
};
