/*
 * bf16 with fp32 sums, AMX.
 *
 * Tile 32x32 as 2x2 tiles of 16x16. Per 32 of k: 2 tile loads of A, 2 of B, 4 TDPBF16PS of 16 cycles each, so
 * loads take half of what the products take and any level of cache down to L2 feeds it.
 * Few rows: 4x32 by VDPBF16PS over the same B, because a tile with 4 of 16 rows would waste the unit.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/amx_tile.h"
#include "gemm/kernels/x86/avx512_bf16.h"

enum { MR = WEFT_AMX_MR, NR = WEFT_AMX_NR, A_KR = 32, B_KR = 2, FEW = 4 };

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const uint16_t *a = a_panel;
    const uint16_t *b = b_panel;
    float *c = c_tile;

    _tile_loadconfig(&weft_amx_square);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < k; p += A_KR) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, NR * B_KR * 2);
        _tile_loadd(7, b + 16 * B_KR, NR * B_KR * 2);
        _tile_loadd(5, a + 16 * A_KR, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += MR * A_KR;
        b += A_KR * NR;
    }
    if (add) {
        float sums[MR * NR] __attribute__((aligned(64)));

        weft_amx_store(sums, NR);
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR; j += 16)
                _mm512_storeu_ps(c + i * c_ld + j, _mm512_add_ps(_mm512_loadu_ps(c + i * c_ld + j),
                                                                 _mm512_load_ps(sums + i * NR + j)));
        }
    } else {
        weft_amx_store(c, c_ld);
    }
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    weft_avx512_bf16_tile(FEW, A_KR, k, a, b, c, c_ld, add);
}

WEFT_DEFINE_PACKERS(uint16_t, A_KR, B_KR, 0)

const weft_kernel weft_kernel_amx_bf16_32x32 = {
    .name = "amx_bf16_32x32",
    .type = WEFT_BF16,
    .mr = MR,
    .nr = NR,
    .a_kr = A_KR,
    .b_kr = B_KR,
    .k_step = A_KR,
    .run = run,
    .few = (const weft_few[]){{FEW, run_few}, {0}},
    WEFT_PACKERS,
};
