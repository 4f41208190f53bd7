/*
 * What both AMX kernels share: the tile shape, the way sums leave the tiles, and the panels' packers.
 *
 * Eight tile registers of 16 rows x 64 bytes: 0..3 hold the 32x32 sums as 2x2 tiles, 4 and 5 the two halves
 * of A, 6 and 7 the two halves of B. Loading the configuration takes as long as several steps of k, so it is
 * loaded once for a tile of D (`prepare`), since tile state belongs to whoever ran last on this thread; it is
 * released at the end (`release`), so that a context switch need not save 8 KiB.
 *
 * A step needs 4 KiB of operands in the 64 cycles of its products, more than L2 has to give: loops whose
 * panels both come from there have 1500 of the 2240 Gop/s that the products alone have in bf16. So a panel of
 * A passes several panels of B a piece of k at a time: the piece stays in L1, and B is loaded past L1
 * (TILELOADDT1), so that it does not drive A out. That has 1700 to 1800; a load of B that goes to L1 has
 * 1300. Sums wait in memory between pieces, as they lie in the tiles, so that their order is that of one
 * piece.
 *
 * Nothing stands still between two micro-tiles: the sums of one leave their tiles between the first products
 * of the next, and go on to C or D with its later steps. All at once would cost 55 cycles for the tiles and
 * 70 for D.
 */
#ifndef WEFT_GEMM_KERNELS_X86_AMX_TILE_H
#define WEFT_GEMM_KERNELS_X86_AMX_TILE_H

#include "core/round.h"
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"

/* The including file defines MULTIPLY(sums, a, b), TDPBF16PS or TDPBSSD, and K_STEP, the k of a step. */

enum { MR = 32, NR = 32, STEP_BYTES = 32 * 64, CACHE_LINE = 64, MICRO_BYTES = MR * NR * 4 };
enum {
    ROW_PANELS = 4,   /* of B that a piece of A passes while it is in L1, */
    ROW_MOST = 16,    /* and where B stays in L2 */
    PIECE_STEPS = 16, /* of it: two thirds of L1 */
    PIECE_PANELS = 3, /* of B that make it worth keeping sums between pieces */
    PUT_ROWS = 4,     /* of finished sums that go to C or D with a step */
    PLACE_STEPS = 8   /* that a line of C or D takes to come */
};
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

/* Where a micro-tile of sums lies, or NULL: bytes between its rows. */
typedef struct micro_place {
    char *at;
    int64_t stride;
} micro_place;

INLINE void store_tiles(micro_place to)
{
    _tile_stored(0, to.at, to.stride);
    _tile_stored(1, to.at + 64, to.stride);
    _tile_stored(2, to.at + 16 * to.stride, to.stride);
    _tile_stored(3, to.at + 16 * to.stride + 64, to.stride);
}

#define LOAD_STEP(a, b)                                                                                      \
    do {                                                                                                     \
        _tile_loadd(4, (a), 64);                                                                             \
        _tile_stream_loadd(6, (b), 128);                                                                     \
        _tile_stream_loadd(7, (b) + 64, 128);                                                                \
        _tile_loadd(5, (a) + 1024, 64);                                                                      \
    } while (0)

/* Tile `i`, (row, col) of 2 x 2, goes to `to`, where there is one, and begins anew, from sums or zero. */
#define TURN_TILE(i, row, col, to, from)                                                                     \
    do {                                                                                                     \
        if ((to).at)                                                                                         \
            _tile_stored(i, (to).at + (row)*16 * (to).stride + (col)*64, (to).stride);                       \
        if (from)                                                                                            \
            _tile_stream_loadd(i, (from) + (row)*16 * NR * 4 + (col)*64, NR * 4);                            \
        else                                                                                                 \
            _tile_zero(i);                                                                                   \
    } while (0)

/* The first step of a micro-tile, while the one before leaves. */
INLINE void first_step(const char *a, const char *b, const char *from, micro_place to)
{
    LOAD_STEP(a, b);
    TURN_TILE(0, 0, 0, to, from);
    MULTIPLY(0, 4, 6);
    TURN_TILE(1, 0, 1, to, from);
    MULTIPLY(1, 4, 7);
    TURN_TILE(2, 1, 0, to, from);
    MULTIPLY(2, 5, 6);
    TURN_TILE(3, 1, 1, to, from);
    MULTIPLY(3, 5, 7);
}

INLINE void next_step(const char *a, const char *b)
{
    LOAD_STEP(a, b);
    MULTIPLY(0, 4, 6);
    MULTIPLY(1, 4, 7);
    MULTIPLY(2, 5, 6);
    MULTIPLY(3, 5, 7);
}

/* Where the sums of a row of micro-tiles go: rows of C or D, or micro-tiles one after another. */
typedef struct row_places {
    char *to[2]; /* the second may be NULL */
    int64_t to_stride[2], acc_stride;
    int64_t across;  /* bytes from one micro-tile to the next */
    const char *acc; /* rows of sums that are added, or NULL */
    int size;        /* of an element of them */
} row_places;

/* Rows [first, last) of the g-th micro-tile go where they belong. */
typedef void (*put_rows)(const row_places *places, int64_t g, const char *sums, int64_t first, int64_t last);

/* What is brought closer while a micro-tile is multiplied, a piece with every step: all of it at once would
 * take the core's buffers for lines that are under way, and the tiles' own loads would wait. A slice of a
 * panel of B that follows, in as many pieces as the panel has steps. */
INLINE void fetch_ahead(const weft_panels *b, int64_t g, int64_t piece, int64_t step)
{
    int64_t bytes = g < b->ahead_count ? b->slice : 0;
    int64_t end = weft_min((step + 1) * piece, bytes);

    for (int64_t at = step * piece; at < end; at += CACHE_LINE)
        _mm_prefetch(b->ahead + g * b->bytes + at, _MM_HINT_T1);
}

/* Rows of a micro-tile's columns, `some` with every step of a piece, with the line in which each ends. Those
 * that are to be written are asked for as the core's own (PREFETCHW): a line that a peer has read would be
 * fetched as a shared one otherwise, and the store would wait for the peer a second time. */
INLINE void fetch_rows(const char *rows, int64_t stride, int64_t bytes, bool own, int64_t step, int64_t some)
{
    int64_t end = weft_min((step + 1) * some, MR);

    for (int64_t i = step * some; i < end; i++) {
        for (int64_t at = 0; at < bytes + CACHE_LINE; at += CACHE_LINE) {
            const char *line = rows + i * stride + (at < bytes ? at : bytes - 1);

            if (own)
                _mm_prefetch(line, _MM_HINT_ET0);
            else
                _mm_prefetch(line, _MM_HINT_T0);
        }
    }
}

/* Where the g-th micro-tile goes, and the sums that are added to it. Not only those: a store that waits for
 * its line keeps one of the few buffers for lines under way, without which the tiles' own loads wait. */
INLINE void fetch_places(const row_places *places, int64_t g, int64_t step, int64_t some)
{
    int64_t bytes = NR * places->size;

    if (places->acc && places->acc != places->to[0])
        fetch_rows(places->acc + g * NR * 4, places->acc_stride, NR * 4, false, step, some);
    for (int d = 0; d < 2 && places->to[d]; d++)
        fetch_rows(places->to[d] + g * places->across, places->to_stride[d], bytes, true, step, some);
}

/*
 * At most ROW_MOST micro-tiles: `start` is what they start from, or NULL; `sums` where they wait between
 * pieces of k, both micro-tiles side by side. They do not wait in `places`, whose lines may be in a peer's
 * cache. In the end `put` takes them there; without it they leave their tiles for `places`, as sums.
 */
INLINE void run_panels(int64_t steps, const char *panel_a, const weft_panels *b, const char *start,
                       char *sums, put_rows put, const row_places *places)
{
    int64_t pieces = b->count < PIECE_PANELS ? 1 : weft_divide_up(steps, PIECE_STEPS);
    int64_t piece = weft_divide_up(steps, pieces);
    int64_t fetched = b->slice ? weft_round_up(weft_divide_up(b->slice, steps), CACHE_LINE) : 0;
    int64_t done = MR, ready = 0; /* rows of the g-th micro-tile, the last one to be complete */
    micro_place leaving = {0};    /* what is in the tiles goes there */

    for (int64_t p = 0; p < steps; p += piece) {
        int64_t here = weft_min(steps - p, piece);
        int64_t some = weft_divide_up(MR, here); /* rows with each step */
        bool last = p + here == steps;
        int64_t ahead = last && here < PLACE_STEPS ? (PLACE_STEPS - 1) / here : 0; /* micro-tiles */

        for (int64_t g = 0; g < ahead && g < b->count; g++)
            fetch_places(places, g, 0, MR);
        for (int64_t g = 0; g < b->count; g++) {
            const char *pa = panel_a + p * STEP_BYTES, *pb = b->first + g * b->bytes + p * STEP_BYTES;

            first_step(pa, pb, p ? sums + g * MICRO_BYTES : start ? start + g * MICRO_BYTES : NULL, leaving);
            for (int64_t s = 0; s < here; s++) {
                if (s > 0)
                    next_step(pa + s * STEP_BYTES, pb + s * STEP_BYTES);
                fetch_ahead(b, g, fetched, p + s);
                /* Sums in order come from a peer and go to one, whose core may still have their lines. */
                if (start && !p)
                    fetch_rows(start + (g + 1) * MICRO_BYTES, NR * 4, NR * 4, false, s, some);
                if (last && g + ahead < b->count)
                    fetch_places(places, g + ahead, s, some);
                if (put && done < MR && s > 0) {
                    put(places, ready, sums + ready * MICRO_BYTES, done, done + PUT_ROWS);
                    done += PUT_ROWS;
                }
            }
            if (put && done < MR)
                put(places, ready, sums + ready * MICRO_BYTES, done, MR);
            ready = g;
            done = last ? 0 : MR;
            if (!put && last)
                leaving = (micro_place){places->to[0] + g * places->across, places->to_stride[0]};
            else
                leaving = (micro_place){sums + g * MICRO_BYTES, NR * 4};
        }
    }
    store_tiles(leaving);
    if (put)
        put(places, ready, leaving.at, 0, MR);
}

/* From the g-th on, at most `most`. */
INLINE weft_panels panels_from(const weft_panels *b, int64_t g, int64_t most)
{
    return (weft_panels){
        .first = b->first + g * b->bytes,
        .bytes = b->bytes,
        .count = weft_min(b->count - g, most),
        .ahead = b->ahead ? b->ahead + g * b->bytes : NULL,
        .ahead_count = b->ahead_count - g,
        .slice = b->slice,
    };
}

/* Where the sums of so many micro-tiles wait. A row's are 64 KiB, of which a compiler that guards the stack
 * touches every page: a micro-tile by itself has a frame of its own. */
#define SUMS(name, count) char name[(count)*MICRO_BYTES] __attribute__((aligned(64)))

/* Any number of them that are put somewhere; `sums` has room for ROW_MOST, or for all. */
INLINE void run_row_of(int64_t k, const void *a, const weft_panels *b, const char *start, char *sums,
                       put_rows put, const row_places *places)
{
    int64_t most = b->count <= ROW_MOST ? ROW_MOST : ROW_PANELS;

    for (int64_t g = 0; g < b->count; g += most) {
        weft_panels some = panels_from(b, g, most);
        row_places at = *places;

        at.to[0] += g * at.across;
        at.to[1] = at.to[1] ? at.to[1] + g * at.across : NULL;
        at.acc = at.acc ? at.acc + g * NR * 4 : NULL;
        run_panels(k / K_STEP, a, &some, start ? start + g * MICRO_BYTES : NULL, sums, put, &at);
    }
}

INLINE void add_rows(const row_places *places, int64_t g, const char *sums, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        for (int at = 0; at < NR * 4; at += 64) {
            char *to = places->to[0] + i * places->to_stride[0] + g * NR * 4 + at;

            words_store(to, add_words(words_load(to), words_load(sums + i * NR * 4 + at)));
        }
    }
}

INLINE void run_to(int64_t k, const void *a, const weft_panels *b, void *c, int64_t c_ld, int add, char *sums)
{
    row_places places = {.to = {c}, .to_stride = {c_ld * 4}, .across = NR * 4, .size = 4};

    if (add) {
        places.acc = c;
        places.acc_stride = c_ld * 4;
        run_row_of(k, a, b, NULL, sums, add_rows, &places);
    } else {
        run_row_of(k, a, b, NULL, sums, NULL, &places);
    }
}

static void run_row(int64_t k, const void *a, const weft_panels *b, void *c, int64_t c_ld, int add)
{
    SUMS(sums, ROW_MOST);

    run_to(k, a, b, c, c_ld, add, sums);
}

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    SUMS(sums, 1);

    run_to(k, a, &(weft_panels){.first = b, .count = 1}, c, c_ld, add, sums);
}

/* Panels that stream from memory: what is fetched meanwhile lies a fixed way ahead. */
INLINE weft_panels panels_ahead(int64_t k, const char *first, int64_t bytes, int64_t count)
{
    return (weft_panels){.first = first,
                         .bytes = bytes,
                         .count = count,
                         .ahead = first + AHEAD_BYTES,
                         .ahead_count = count,
                         .slice = k / K_STEP * STEP_BYTES};
}

static void run_ahead(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    weft_panels panel = panels_ahead(k, b, 0, 1);
    SUMS(sums, 1);

    run_to(k, a, &panel, c, c_ld, add, sums);
}

INLINE void keep_in(int64_t k, const void *a, const weft_panels *b, const void *start, void *to, char *sums)
{
    row_places places = {.to = {to}, .to_stride = {NR * 4}, .across = MICRO_BYTES, .size = 4};

    run_row_of(k, a, b, start, sums, NULL, &places);
}

static void keep_row(int64_t k, const void *a, const weft_panels *b, const void *start, void *to)
{
    SUMS(sums, ROW_MOST);

    keep_in(k, a, b, start, to, sums);
}

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    SUMS(sums, 1);

    keep_in(k, a, &(weft_panels){.first = b, .count = 1}, start, to, sums);
}

/* weft_panel_packer for A, sizes in bytes, k running along memory: 64 bytes of each line side by side, some
 * of them at a time, so that lines are read in longer pieces. */
INLINE void pack_steps(char *panel, const char *source, int64_t ld, int64_t k)
{
    enum { STEPS = 4 };

    for (int64_t p = 0; p < k; p += STEPS * 64, panel += STEPS * STEP_BYTES) {
        int64_t steps = weft_min((k - p) / 64, STEPS);

        for (int i = 0; i < MR; i++) {
            for (int64_t s = 0; s < steps; s++)
                words_store(panel + s * STEP_BYTES + i * 64, words_load(source + i * ld + p + s * 64));
        }
    }
}

#endif
