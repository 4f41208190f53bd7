/*
 * int8 to int32, AMX. TDPBSSD takes both sides signed, so nothing is shifted or corrected.
 *
 * Tile 32x32 as 2x2 tiles of 16x16. Per 64 of k: 2 tile loads of A, 2 of B, 4 TDPBSSD of 16 cycles each.
 */
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/amx_tile.h"

enum { MR = WEFT_AMX_MR, NR = WEFT_AMX_NR, A_KR = 64, B_KR = 4 };

static void run(int64_t k, const void *a_panel, const void *b_panel, void *c_tile, int64_t c_ld, int add)
{
    const int8_t *a = a_panel;
    const int8_t *b = b_panel;
    int32_t *c = c_tile;

    _tile_loadconfig(&weft_amx_square);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < k; p += A_KR) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, NR * B_KR);
        _tile_loadd(7, b + 16 * B_KR, NR * B_KR);
        _tile_loadd(5, a + 16 * A_KR, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
        a += MR * A_KR;
        b += A_KR * NR;
    }
    if (add) {
        int32_t sums[MR * NR] __attribute__((aligned(64)));

        weft_amx_store(sums, NR);
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR; j += 16)
                _mm512_storeu_si512(c + i * c_ld + j, _mm512_add_epi32(_mm512_loadu_si512(c + i * c_ld + j),
                                                                       _mm512_load_si512(sums + i * NR + j)));
        }
    } else {
        weft_amx_store(c, c_ld);
    }
}

WEFT_DEFINE_PACKERS(uint8_t, A_KR, B_KR, 0)

const weft_kernel weft_kernel_amx_i8_32x32 = {
    .name = "amx_i8_32x32",
    .type = WEFT_I8,
    .mr = MR,
    .nr = NR,
    .a_kr = A_KR,
    .b_kr = B_KR,
    .k_step = A_KR,
    .run = run,
    WEFT_PACKERS,
};
