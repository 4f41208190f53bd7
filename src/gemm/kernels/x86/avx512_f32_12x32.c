/*
 * fp32, AVX-512.
 *
 * Tile 12x32: 24 accumulators of 16, 2 for B, A by embedded broadcast: 26 of 32 registers.
 * Per k: 2 loads of B, 12 broadcasts folded into the first FMA of each row, 24 FMA.
 * Few rows: 4x32.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"

#include <immintrin.h>

enum { MR = 12, NR = 32, FEW = 4 };

static inline __attribute__((always_inline)) void tile(int rows, int64_t k, const float *a, const float *b,
                                                       float *c, int64_t c_ld, int add)
{
    __m512 sum[MR][2];

    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p++) {
        __m512 b0 = _mm512_loadu_ps(b);
        __m512 b1 = _mm512_loadu_ps(b + 16);

#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            __m512 x = _mm512_set1_ps(a[i]);

            sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
        }
        a += rows;
        b += NR;
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        float *row = c + i * c_ld;

        if (add) {
            sum[i][0] = _mm512_add_ps(_mm512_loadu_ps(row), sum[i][0]);
            sum[i][1] = _mm512_add_ps(_mm512_loadu_ps(row + 16), sum[i][1]);
        }
        _mm512_storeu_ps(row, sum[i][0]);
        _mm512_storeu_ps(row + 16, sum[i][1]);
    }
}

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    tile(MR, k, a, b, c, c_ld, add);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    tile(FEW, k, a, b, c, c_ld, add);
}

WEFT_DEFINE_PACKERS(uint32_t, 1, 1, 0)

const weft_kernel weft_kernel_avx512_f32_12x32 = {
    .name = "avx512_f32_12x32",
    .type = WEFT_F32,
    .mr = MR,
    .nr = NR,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    .run = run,
    .few = (const weft_few[]){{FEW, run_few}, {0}},
    WEFT_PACKERS,
};
