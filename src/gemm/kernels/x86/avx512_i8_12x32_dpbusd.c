/*
 * int8 to int32, AVX-512 VNNI. VPDPBUSD multiplies unsigned by signed bytes, so A is packed with 128 added,
 * and the kernel takes 128 * (column sums of B) off: two more accumulators gather them as it goes.
 *
 * Tile 12x32, k in fours: 24 accumulators of 16, 2 for the correction, 2 for B, 1 constant, A by broadcast.
 * Per four of k: 2 loads of B, 12 broadcasts, 26 VPDPBUSD, of which 24 are the product.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/avx512_i8.h"

#include <string.h>

enum { MR = 12, NR = 32 };

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const uint8_t *a = a_panel;
    const int8_t *b = b_panel;
    int32_t *c = c_tile;
    const __m512i offset = _mm512_set1_epi8((char)128);
    __m512i excess0 = _mm512_setzero_si512(), excess1 = _mm512_setzero_si512();
    __m512i sum[MR][2];

    for (int i = 0; i < MR; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int64_t p = 0; p < k; p += 4) {
        __m512i b0 = _mm512_loadu_si512(b);
        __m512i b1 = _mm512_loadu_si512(b + 64);

        excess0 = _mm512_dpbusd_epi32(excess0, offset, b0);
        excess1 = _mm512_dpbusd_epi32(excess1, offset, b1);
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            int32_t four;
            __m512i x;

            memcpy(&four, a + 4 * i, sizeof(four));
            x = _mm512_set1_epi32(four);
            sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], x, b0);
            sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], x, b1);
        }
        a += 4 * MR;
        b += 4 * NR;
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
        weft_avx512_store_i32(_mm512_sub_epi32(sum[i][0], excess0), _mm512_sub_epi32(sum[i][1], excess1),
                              c + i * c_ld, add);
}

WEFT_DEFINE_PACKERS(uint8_t, 4, 4, 0x80)

const weft_kernel weft_kernel_avx512_i8_12x32_dpbusd = {
    .name = "avx512_i8_12x32_dpbusd",
    .type = WEFT_I8,
    .mr = MR,
    .nr = NR,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    .a_flip = true,
    .run = run,
    WEFT_PACKERS,
};
