/*
 * int8 to int32, AVX2. PMADDUBSW would saturate, so bytes are widened to 16 bits and multiplied by PMADDWD,
 * which is exact.
 *
 * Tile 6x16, k in pairs: 12 accumulators of 8, 2 for the widened B, 1 for the pair of A.
 * Per pair of k: 2 widening loads of B, 6 broadcasts of a widened pair of A, 12 PMADDWD + 12 adds.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"

#include <immintrin.h>

enum { MR = 6, NR = 16 };

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const int8_t *a = a_panel;
    const int8_t *b = b_panel;
    int32_t *c = c_tile;
    __m256i sum[MR][2];

    for (int i = 0; i < MR; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int64_t p = 0; p < k; p += 2) {
        __m256i b0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));
        __m256i b1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));

#pragma GCC unroll 6
        for (int i = 0; i < MR; i++) {
            __m256i x =
                _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)a[2 * i] | (uint32_t)a[2 * i + 1] << 16));

            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(x, b0));
            sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(x, b1));
        }
        a += 2 * MR;
        b += 2 * NR;
    }
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++) {
        __m256i *row = (__m256i *)(c + i * c_ld);

        if (add) {
            sum[i][0] = _mm256_add_epi32(_mm256_loadu_si256(row), sum[i][0]);
            sum[i][1] = _mm256_add_epi32(_mm256_loadu_si256(row + 1), sum[i][1]);
        }
        _mm256_storeu_si256(row, sum[i][0]);
        _mm256_storeu_si256(row + 1, sum[i][1]);
    }
}

WEFT_DEFINE_PACKERS(uint8_t, 2, 2, 0)

const weft_kernel weft_kernel_avx2_i8_6x16_pmaddwd = {
    .name = "avx2_i8_6x16_pmaddwd",
    .type = WEFT_I8,
    .mr = MR,
    .nr = NR,
    .a_kr = 2,
    .b_kr = 2,
    .k_step = 2,
    .run = run,
    .along = weft_avx2_i8_along,
    .across = weft_avx2_i8_across,
    WEFT_PACKERS,
};
