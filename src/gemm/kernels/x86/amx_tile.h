/*
 * What both AMX kernels share: the tile shape, the way sums leave the tiles, and the panels' packers.
 *
 * Eight tile registers of 16 rows x 64 bytes: 0..3 hold the 32x32 sums as 2x2 tiles, 4 and 5 the two halves
 * of A, 6 and 7 the two halves of B. Loading the configuration takes as long as several steps of k, so it is
 * loaded once for a tile of D (`prepare`), since tile state belongs to whoever ran last on this thread; it is
 * released at the end (`release`), so that a context switch need not save 8 KiB.
 *
 * Both panels come from L2: a k block that fits L1 (256 of bf16) runs hardly faster than one of 2048, and its
 * sums have to be added eight times as often. A core of a busy machine may run this loop at a fifth of its
 * rate for most of the time, whichever cache the panels lie in; then more loads (16x64 as 1x4 tiles) or
 * fetching A ahead by hand make it slower still. All four loads of a step come first.
 */
#ifndef WEFT_GEMM_KERNELS_X86_AMX_TILE_H
#define WEFT_GEMM_KERNELS_X86_AMX_TILE_H

#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"

enum { MR = 32, NR = 32, STEP_BYTES = 32 * 64, CACHE_LINE = 64 };
enum { AHEAD_BYTES = 16 * STEP_BYTES }; /* of a B that is used once: what arrives from memory meanwhile */

typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

static void prepare(void)
{
    static const amx_config square __attribute__((aligned(64))) = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };

    _tile_loadconfig(&square);
}

static void release(void)
{
    _tile_release();
}

INLINE void begin_tiles(const char *start)
{
    if (start) {
        _tile_loadd(0, start, NR * 4);
        _tile_loadd(1, start + 64, NR * 4);
        _tile_loadd(2, start + 16 * NR * 4, NR * 4);
        _tile_loadd(3, start + 16 * NR * 4 + 64, NR * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* Tiles 0..3 to a 32x32 block of 4-byte elements. */
INLINE void store_tiles(char *block, int64_t ld)
{
    _tile_stored(0, block, ld * 4);
    _tile_stored(1, block + 64, ld * 4);
    _tile_stored(2, block + 16 * ld * 4, ld * 4);
    _tile_stored(3, block + 16 * ld * 4 + 64, ld * 4);
}

/* Rows of C may share a set of every cache, and then come from far: asked for before they are needed. */
INLINE void fetch_block(const char *c, int64_t ld)
{
    for (int i = 0; i < MR; i++) {
        _mm_prefetch(c + i * ld * 4, _MM_HINT_T0);
        _mm_prefetch(c + i * ld * 4 + CACHE_LINE, _MM_HINT_T0);
    }
}

/* weft_panel_packer for A, sizes in bytes, k running along memory: 64 bytes of each line side by side, some
 * of them at a time, so that lines are read in longer pieces. */
INLINE void pack_steps(char *panel, const char *source, int64_t ld, int64_t k)
{
    enum { STEPS = 4 };

    for (int64_t p = 0; p < k; p += STEPS * 64, panel += STEPS * STEP_BYTES) {
        int64_t steps = (k - p) / 64 < STEPS ? (k - p) / 64 : STEPS;

        for (int i = 0; i < MR; i++) {
            for (int64_t s = 0; s < steps; s++)
                words_store(panel + s * STEP_BYTES + i * 64, words_load(source + i * ld + p + s * 64));
        }
    }
}

INLINE void fetch_step(const char *at)
{
    for (int i = 0; i < STEP_BYTES; i += CACHE_LINE)
        _mm_prefetch(at + i, _MM_HINT_T1);
}

/* Tiles 0..3 += a panel of A * a panel of B, which, `ahead`, comes from memory; `multiply` is TDPBF16PS or
 * TDPBSSD. */
#define AMX_PRODUCTS(multiply, steps, panel_a, panel_b, ahead)                                               \
    do {                                                                                                     \
        const char *a_ = (panel_a), *b_ = (panel_b);                                                         \
                                                                                                             \
        for (int64_t s_ = 0; s_ < (steps); s_++) {                                                           \
            _tile_loadd(4, a_, 64);                                                                          \
            _tile_loadd(6, b_, 128);                                                                         \
            _tile_loadd(7, b_ + 64, 128);                                                                    \
            _tile_loadd(5, a_ + 1024, 64);                                                                   \
            if (ahead)                                                                                       \
                fetch_step(b_ + AHEAD_BYTES);                                                                \
            multiply(0, 4, 6);                                                                               \
            multiply(1, 4, 7);                                                                               \
            multiply(2, 5, 6);                                                                               \
            multiply(3, 5, 7);                                                                               \
            a_ += STEP_BYTES;                                                                                \
            b_ += STEP_BYTES;                                                                                \
        }                                                                                                    \
    } while (0)

/* The kernel's functions that are the same for both types; `K` elements of k are a step. */
#define AMX_KERNEL(multiply, K)                                                                              \
    static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)                   \
    {                                                                                                        \
        begin_tiles(start);                                                                                  \
        AMX_PRODUCTS(multiply, k / (K), a, b, false);                                                        \
        store_tiles(to, NR);                                                                                 \
    }                                                                                                        \
                                                                                                             \
    INLINE void run_from(bool ahead, int64_t k, const void *a, const void *b, void *c, int64_t c_ld,         \
                         int add)                                                                            \
    {                                                                                                        \
        char sums[MR * NR * 4] __attribute__((aligned(64)));                                                 \
                                                                                                             \
        fetch_block(c, c_ld);                                                                                \
        begin_tiles(NULL);                                                                                   \
        AMX_PRODUCTS(multiply, k / (K), a, b, ahead);                                                        \
        store_tiles(add ? sums : c, add ? NR : c_ld);                                                        \
        if (add)                                                                                             \
            add_block(c, c_ld, sums);                                                                        \
    }                                                                                                        \
                                                                                                             \
    static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)                 \
    {                                                                                                        \
        run_from(false, k, a, b, c, c_ld, add);                                                              \
    }                                                                                                        \
                                                                                                             \
    static void run_ahead(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)           \
    {                                                                                                        \
        run_from(true, k, a, b, c, c_ld, add);                                                               \
    }

#endif
