/*
 * Few rows of int8 against the B that AMX packs, which comes from memory and is used once: a product of whole
 * tiles would take longer than reading it.
 *
 * 1x32 and 4x32 by VPDPBUSD: B is made unsigned by adding 128, and what that adds to a row is taken off
 * again: 128 times the sum of its A. Per 4 of k: 2 loads of B, a broadcast and 2 products for each row. 16x32
 * by one tile of A.
 */
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/few_ahead.h"
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/vector.h"

enum { NR = 32, A_KR = 64, FEW = 4, HALF_ROWS = 16, STEP_BYTES = A_KR * NR };

INLINE void put(int32_t *to, words sum, int add)
{
    words_store(to, add ? words_add(words_load(to), sum) : sum);
}

INLINE void run_few(int rows, int64_t k, const int8_t *a, const char *b, int32_t *c, int64_t c_ld, int add)
{
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

        put(c + i * c_ld, (words)((numbers)sum[i][0] - off), add);
        put(c + i * c_ld + LANES, (words)((numbers)sum[i][1] - off), add);
    }
}

static void run_1(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(1, k, a, b, c, c_ld, add);
}

static void run_4(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(FEW, k, a, b, c, c_ld, add);
}

static void run_16(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const char *a = a_panel, *b = b_panel;
    int32_t sums[HALF_ROWS * NR] __attribute__((aligned(64))), *c = c_tile;

    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = 0; p < k; p += A_KR, a += HALF_ROWS * 64, b += STEP_BYTES) {
        few_ahead(b, STEP_BYTES);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 64, 128);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
    }
    _tile_stored(0, sums, NR * 4);
    _tile_stored(1, sums + LANES, NR * 4);
    for (int i = 0; i < HALF_ROWS; i++) {
        for (int j = 0; j < NR; j += LANES)
            put(c + i * c_ld + j, words_load(sums + i * NR + j), add);
    }
}

const weft_few weft_amx_i8_few[] = {{1, run_1}, {FEW, run_4}, {HALF_ROWS, run_16}, {0}};
