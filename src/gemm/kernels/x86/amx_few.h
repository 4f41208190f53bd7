/*
 * The kernels for few rows against the B that AMX packs, which comes from memory and is used once: a product
 * of whole tiles would take longer than reading it. 1x32 and 4x32 by vectors; 16x32 by one tile of A.
 *
 * The including file defines MULTIPLY and A_KR as for amx_tile.h, add_words before, and run_few after.
 */
#ifndef WEFT_GEMM_KERNELS_X86_AMX_FEW_H
#define WEFT_GEMM_KERNELS_X86_AMX_FEW_H

#include "gemm/kernels/x86/few_ahead.h"
#include "gemm/kernels/x86/kernels.h"

enum { FEW = 4, HALF_ROWS = 16, FEW_COLUMNS = 32, FEW_STEP_BYTES = 64 * FEW_COLUMNS };

/* By vectors: at most FEW rows, of which a panel of A has as many. */
INLINE void run_few(int rows, int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add);

static void run_1(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(1, k, a, b, c, c_ld, add);
}

static void run_4(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_few(FEW, k, a, b, c, c_ld, add);
}

INLINE void put_sum(char *to, words sum, int add)
{
    words_store(to, add ? add_words(words_load(to), sum) : sum);
}

/* Half the tile's rows. All of their A is more than L1 holds: it is asked for too, two steps ahead. */
static void run_16(int64_t k, const void *a_panel, const void *b_panel, void *c, int64_t c_ld, int add)
{
    const char *a = a_panel, *b = b_panel;
    char sums[HALF_ROWS * FEW_COLUMNS * 4] __attribute__((aligned(64)));

    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = 0; p < k; p += A_KR, a += HALF_ROWS * 64, b += FEW_STEP_BYTES) {
        few_ahead(b, FEW_STEP_BYTES);
        for (int i = 0; i < HALF_ROWS; i++)
            _mm_prefetch(a + (2 * HALF_ROWS + i) * 64, _MM_HINT_T0);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 64, 128);
        MULTIPLY(0, 4, 6);
        MULTIPLY(1, 4, 7);
    }
    _tile_stored(0, sums, FEW_COLUMNS * 4);
    _tile_stored(1, sums + 64, FEW_COLUMNS * 4);
    for (int i = 0; i < HALF_ROWS; i++) {
        for (int at = 0; at < FEW_COLUMNS * 4; at += 64)
            put_sum((char *)c + i * c_ld * 4 + at, words_load(sums + i * FEW_COLUMNS * 4 + at), add);
    }
}

/* For weft_kernel's `few`. */
#define AMX_FEW                                                                                              \
    {                                                                                                        \
        {1, run_1}, {FEW, run_4}, {HALF_ROWS, run_16}, {0},                                                  \
    }

#endif
