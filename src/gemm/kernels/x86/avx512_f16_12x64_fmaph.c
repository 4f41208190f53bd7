/*
 * fp16 with fp16 sums inside one k block, AVX-512 FP16: for callers who ask for the fast, less exact form.
 *
 * Tile 12x64: 24 accumulators of 32, 2 for B, A by broadcast. Per k: 2 loads of B, 12 broadcasts, 24 FMA.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"

#include <immintrin.h>

enum { MR = 12, NR = 64 };

static inline __attribute__((always_inline)) void store_half(__m512h half, float *row, int add)
{
    __m512i bits = _mm512_castph_si512(half);
    __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));

    if (add) {
        low = _mm512_add_ps(_mm512_loadu_ps(row), low);
        high = _mm512_add_ps(_mm512_loadu_ps(row + 16), high);
    }
    _mm512_storeu_ps(row, low);
    _mm512_storeu_ps(row + 16, high);
}

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const uint16_t *a = a_panel;
    const uint16_t *b = b_panel;
    float *c = c_tile;
    __m512h sum[MR][2];

    for (int i = 0; i < MR; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ph();
    for (int64_t p = 0; p < k; p++) {
        __m512h b0 = _mm512_castsi512_ph(_mm512_loadu_si512(b));
        __m512h b1 = _mm512_castsi512_ph(_mm512_loadu_si512(b + 32));

#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            __m512h x = _mm512_castsi512_ph(_mm512_set1_epi16((short)a[i]));

            sum[i][0] = _mm512_fmadd_ph(x, b0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ph(x, b1, sum[i][1]);
        }
        a += MR;
        b += NR;
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        store_half(sum[i][0], c + i * c_ld, add);
        store_half(sum[i][1], c + i * c_ld + 32, add);
    }
}

WEFT_DEFINE_PACKERS(uint16_t, 1, 1, 0)

const weft_kernel weft_kernel_avx512_f16_12x64_fmaph = {
    .name = "avx512_f16_12x64_fmaph",
    .type = WEFT_F16,
    .mr = MR,
    .nr = NR,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    .run = run,
    WEFT_PACKERS,
};
