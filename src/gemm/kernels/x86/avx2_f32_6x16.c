/*
 * fp32, AVX2 + FMA.
 *
 * Tile 6x16: 12 accumulators of 8, 2 for B, 1 for the broadcast of A: 15 of 16 registers.
 * Per k: 2 loads of B, 6 broadcasts of A, 12 FMA. The FMA units (2 a cycle) are the limit, not the loads.
 * Few rows: 2x16 with four independent chains a row pair, for products that stream B once.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"

#include <immintrin.h>

enum { MR = 6, NR = 16, FEW = 2 };

static inline __attribute__((always_inline)) void tile(int rows, int64_t k, const float *a, const float *b,
                                                       float *c, int64_t c_ld, int add)
{
    __m256 sum[MR][2];

    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (int64_t p = 0; p < k; p++) {
        __m256 b0 = _mm256_loadu_ps(b);
        __m256 b1 = _mm256_loadu_ps(b + 8);

#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m256 x = _mm256_broadcast_ss(a + i);

            sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
        }
        a += rows;
        b += NR;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        float *row = c + i * c_ld;

        if (add) {
            sum[i][0] = _mm256_add_ps(_mm256_loadu_ps(row), sum[i][0]);
            sum[i][1] = _mm256_add_ps(_mm256_loadu_ps(row + 8), sum[i][1]);
        }
        _mm256_storeu_ps(row, sum[i][0]);
        _mm256_storeu_ps(row + 8, sum[i][1]);
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

const weft_kernel weft_kernel_avx2_f32_6x16 = {
    .name = "avx2_f32_6x16",
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
