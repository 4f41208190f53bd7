/*
 * What both AMX kernels share: the tile shape, the way sums leave the tiles, and the panels' packers.
 *
 * Eight tile registers of 16 rows x 64 bytes: 0..3 hold the 32x32 sums as 2x2 tiles, 4 and 5 the two halves
 * of A, 6 and 7 the two halves of B. Loading the configuration takes as long as several steps of k, so it is
 * loaded once for a tile of D (`prepare`), since tile state belongs to whoever ran last on this thread; it is
 * released at the end (`release`), so that a context switch need not save 8 KiB.
 *
 * Both panels come from L2, which bounds the loop: 1550 of the 2120 Gop/s of the products alone in bf16. A k
 * block that fits L1 (256 of bf16) has 2040, but its sums have to be added eight times as often. Where
 * another thread has half of the core, tiles seem not to be renamed: products have 1060 and the loop 460,
 * because loads wait for the products before them. Lines of A that are asked for between the products, two
 * steps ahead, are not held up so: 660, for 1490 of an undivided core. Asking for A and B has 750 and 1355;
 * all at once before the products, or products between the loads, have less in both. All four loads of a step
 * come first.
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

/* What is brought closer while a micro-tile is multiplied, a piece with every step: all of it at once would
 * take the core's buffers for lines that are under way, and the tiles' own loads would wait. */
typedef struct fetches {
    const char *b, *b_end; /* of panels that follow: to L2 */
    int64_t b_piece;
    const char *c, *c_end; /* rows of C or D, which may share a set of every cache and then come from far */
    int64_t c_piece, c_ld; /* rows in bytes */
} fetches;

INLINE int64_t piece_of(int64_t bytes, int64_t steps)
{
    return ((bytes + steps - 1) / steps + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

INLINE fetches fetches_of(int64_t steps, const char *b, int64_t bytes, const char *c, int64_t c_ld)
{
    return (fetches){.b = b,
                     .b_end = b + bytes,
                     .b_piece = bytes ? piece_of(bytes, steps) : 0,
                     .c = c,
                     .c_end = c + MR * c_ld,
                     .c_piece = (MR + steps - 1) / steps * c_ld,
                     .c_ld = c_ld};
}

INLINE void fetch_step(fetches *f, int c_bytes)
{
    const char *b_end = f->b + f->b_piece < f->b_end ? f->b + f->b_piece : f->b_end;
    const char *c_end = f->c + f->c_piece < f->c_end ? f->c + f->c_piece : f->c_end;

    for (; f->b < b_end; f->b += CACHE_LINE)
        _mm_prefetch(f->b, _MM_HINT_T1);
    for (; f->c < c_end; f->c += f->c_ld) {
        for (int at = 0; at < c_bytes; at += CACHE_LINE)
            __builtin_prefetch(f->c + at, 1, 3);
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

/* A quarter of the step after the next one of a panel of A, or of the panel that follows it. */
INLINE void fetch_quarter(const char *a, int quarter)
{
    for (int i = 0; i < STEP_BYTES / 4; i += CACHE_LINE)
        _mm_prefetch(a + 2 * STEP_BYTES + quarter * STEP_BYTES / 4 + i, _MM_HINT_T0);
}

/* Tiles 0..3 += a panel of A * a panel of B; `multiply` is TDPBF16PS or TDPBSSD. */
#define AMX_PRODUCTS(multiply, steps, panel_a, panel_b, fetched, c_bytes)                                    \
    do {                                                                                                     \
        const char *a_ = (panel_a), *b_ = (panel_b);                                                         \
                                                                                                             \
        for (int64_t s_ = 0; s_ < (steps); s_++) {                                                           \
            _tile_loadd(4, a_, 64);                                                                          \
            _tile_loadd(6, b_, 128);                                                                         \
            _tile_loadd(7, b_ + 64, 128);                                                                    \
            _tile_loadd(5, a_ + 1024, 64);                                                                   \
            multiply(0, 4, 6);                                                                               \
            fetch_quarter(a_, 0);                                                                            \
            multiply(1, 4, 7);                                                                               \
            fetch_quarter(a_, 1);                                                                            \
            multiply(2, 5, 6);                                                                               \
            fetch_quarter(a_, 2);                                                                            \
            multiply(3, 5, 7);                                                                               \
            fetch_quarter(a_, 3);                                                                            \
            fetch_step((fetched), (c_bytes));                                                                \
            a_ += STEP_BYTES;                                                                                \
            b_ += STEP_BYTES;                                                                                \
        }                                                                                                    \
    } while (0)

/* The kernel's functions that are the same for both types; `K` elements of k are a step. */
#define AMX_KERNEL(multiply, K)                                                                              \
    static void keep_near(int64_t k, const void *a, const void *b, const void *start, void *to,              \
                          const char *ahead, int64_t bytes)                                                  \
    {                                                                                                        \
        fetches near = fetches_of(k / (K), ahead, bytes, to, NR * 4);                                        \
                                                                                                             \
        begin_tiles(start);                                                                                  \
        AMX_PRODUCTS(multiply, k / (K), a, b, &near, NR * 4);                                                \
        store_tiles(to, NR);                                                                                 \
    }                                                                                                        \
                                                                                                             \
    static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)                   \
    {                                                                                                        \
        keep_near(k, a, b, start, to, NULL, 0);                                                              \
    }                                                                                                        \
                                                                                                             \
    INLINE void run_from(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add,            \
                         const char *ahead, int64_t bytes)                                                   \
    {                                                                                                        \
        char sums[MR * NR * 4] __attribute__((aligned(64)));                                                 \
        fetches near = fetches_of(k / (K), ahead, bytes, c, c_ld * 4);                                       \
                                                                                                             \
        begin_tiles(NULL);                                                                                   \
        AMX_PRODUCTS(multiply, k / (K), a, b, &near, NR * 4);                                                \
        store_tiles(add ? sums : c, add ? NR : c_ld);                                                        \
        if (add)                                                                                             \
            add_block(c, c_ld, sums);                                                                        \
    }                                                                                                        \
                                                                                                             \
    static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)                 \
    {                                                                                                        \
        run_from(k, a, b, c, c_ld, add, NULL, 0);                                                            \
    }                                                                                                        \
                                                                                                             \
    static void run_near(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add,            \
                         const char *ahead, int64_t bytes)                                                   \
    {                                                                                                        \
        run_from(k, a, b, c, c_ld, add, ahead, bytes);                                                       \
    }                                                                                                        \
                                                                                                             \
    static void run_ahead(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)           \
    {                                                                                                        \
        run_from(k, a, b, c, c_ld, add, (const char *)b + AHEAD_BYTES, k / (K)*STEP_BYTES);                  \
    }

#endif
