/*
 * What both AMX kernels share: the tile shape and the way sums leave the tiles.
 *
 * Eight tile registers of 16 rows x 64 bytes: 0..3 hold the 32x32 sums as 2x2 tiles, 4 and 5 the two halves
 * of A, 6 and 7 the two halves of B. The configuration is loaded in every call, because tile state belongs to
 * whoever ran last on this thread; it is released at the end, so that a context switch need not save 8 KiB.
 */
#ifndef WEFT_GEMM_KERNELS_X86_AMX_TILE_H
#define WEFT_GEMM_KERNELS_X86_AMX_TILE_H

#include <immintrin.h>
#include <stdint.h>

enum { WEFT_AMX_MR = 32, WEFT_AMX_NR = 32 };

typedef struct weft_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} weft_amx_config;

static const weft_amx_config weft_amx_square __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* Tiles 0..3 to a 32x32 block of 4-byte elements, then the tiles are given back. */
static inline __attribute__((always_inline)) void weft_amx_store(void *block, int64_t ld)
{
    char *base = block;
    int64_t stride = ld * 4;

    _tile_stored(0, base, stride);
    _tile_stored(1, base + 64, stride);
    _tile_stored(2, base + 16 * stride, stride);
    _tile_stored(3, base + 16 * stride + 64, stride);
    _tile_release();
}

#endif
