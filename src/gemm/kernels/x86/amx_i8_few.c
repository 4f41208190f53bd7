/*
 * Few rows of int8 against the B that AMX packs (amx_few.h). 1x32 and 4x32 by VPDPBUSD: B is made unsigned by
 * adding 128, and what that adds to a row is taken off again: 128 times the sum of its A. Per 4 of k: 2 loads
 * of B, a broadcast and 2 products for each row.
 */
#define VECTOR_BYTES 64
#define MULTIPLY _tile_dpbssd
#include "gemm/kernels/x86/vector.h"

enum { NR = 32, A_KR = 64 };

INLINE words add_words(words a, words b)
{
    return words_add(a, b);
}

#include "gemm/kernels/x86/amx_few.h"

INLINE void run_few(int rows, int64_t k, const void *panel_a, const void *panel_b, void *c_tile, int64_t c_ld,
                    int add)
{
    const char *a = panel_a, *b = panel_b;
    char *c = c_tile;
    const words high = words_flip((words){0}, 0x80808080);
    words sum[FEW][2], excess[FEW];

    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = excess[i] = (words){0};
    for (int64_t p = 0; p < k; p += A_KR, a += rows * A_KR) {
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            excess[i] = _mm512_dpbusd_epi32(excess[i], high, words_load(a + i * A_KR));
        for (int q = 0; q < A_KR; q += 4, b += 4 * NR) {
            words b0 = words_flip(words_load(b), 0x80808080);
            words b1 = words_flip(words_load(b + VECTOR_BYTES), 0x80808080);

            few_ahead(b, 4 * NR);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                int32_t four;
                words x;

                memcpy(&four, a + i * A_KR + q, 4);
                x = _mm512_set1_epi32(four);
                sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], b0, x);
                sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], b1, x);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        uint32_t off = (uint32_t)_mm512_reduce_add_epi32(excess[i]);

        put_sum(c + i * c_ld * 4, (words)((numbers)sum[i][0] - off), add);
        put_sum(c + i * c_ld * 4 + VECTOR_BYTES, (words)((numbers)sum[i][1] - off), add);
    }
}

const weft_few weft_amx_i8_few[] = AMX_FEW;
