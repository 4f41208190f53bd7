/*
 * The ends of the 8x12 kernels that write D themselves, as text for the asm statements of tile8x12.h: rows
 * plus incoming sums (or not), in the type of D, to one place or two.
 */
#ifndef WEFT_KERNELS_AARCH64_FINISH8X12_H
#define WEFT_KERNELS_AARCH64_FINISH8X12_H

#include "gemm/kernel.h"
#include "tile8x12.h"

static inline void fetch_ahead(const weft_panels *panels, const weft_places *places, int64_t g)
{
    for (int64_t at = 0; at < panels->slice && g < panels->ahead_count; at += 64)
        __builtin_prefetch(panels->ahead + g * panels->bytes + at, 0, 2);
    for (int64_t r = 8; r < 16 && places->acc_below; r++)
        __builtin_prefetch(places->acc + r * places->acc_ld * 4 + g * 64, 0, 3);
}

/* clang-format off */

/* `take` is NO_SUMS or ADD_SUMS, `put` one of PUT_*. Registers r0..r2 hold a row, t0..t2 are free. */
#define NO_SUMS(r0, r1, r2, t0, t1, t2)

#define ADD_SUMS(r0, r1, r2, t0, t1, t2) \
    "ldp q" #t0 ", q" #t1 ", [%[acc]]\n" \
    "ldr q" #t2 ", [%[acc], #32]\n" \
    "add %[acc], %[acc], %[acc_ld]\n" \
    "fadd v" #r0 ".4s, v" #t0 ".4s, v" #r0 ".4s\n" \
    "fadd v" #r1 ".4s, v" #t1 ".4s, v" #r1 ".4s\n" \
    "fadd v" #r2 ".4s, v" #t2 ".4s, v" #r2 ".4s\n"

#define PUT_F32(r0, r1, r2) STORE_ROW(r0, r1, r2)

#define PUT_F32_TWICE(r0, r1, r2) \
    STORE_ROW(r0, r1, r2) \
    "stp q" #r0 ", q" #r1 ", [%[c2]]\n" \
    "str q" #r2 ", [%[c2], #32]\n" \
    "add %[c2], %[c2], %[ld2]\n"

/* Rows of halves: what is left to do once r0 and r2 hold them. */
#define STORE_HALVES(r0, r2) \
    "str q" #r0 ", [%[c]]\n" \
    "str d" #r2 ", [%[c], #16]\n" \
    "add %[c], %[c], %[ld]\n"

#define STORE_HALVES_TWICE(r0, r2) \
    STORE_HALVES(r0, r2) \
    "str q" #r0 ", [%[c2]]\n" \
    "str d" #r2 ", [%[c2], #16]\n" \
    "add %[c2], %[c2], %[ld2]\n"

#define NARROW(op, r0, r1, r2) \
    op " v" #r0 ".4h, v" #r0 ".4s\n" \
    op "2 v" #r0 ".8h, v" #r1 ".4s\n" \
    op " v" #r2 ".4h, v" #r2 ".4s\n"

#define PUT_BF16(r0, r1, r2) NARROW("bfcvtn", r0, r1, r2) STORE_HALVES(r0, r2)
#define PUT_BF16_TWICE(r0, r1, r2) NARROW("bfcvtn", r0, r1, r2) STORE_HALVES_TWICE(r0, r2)
#define PUT_F16(r0, r1, r2) NARROW("fcvtn", r0, r1, r2) STORE_HALVES(r0, r2)
#define PUT_F16_TWICE(r0, r1, r2) NARROW("fcvtn", r0, r1, r2) STORE_HALVES_TWICE(r0, r2)

/*
 * bf16 without BFCVTN: a half more, and one more if the last bit that stays is set, then the upper halves. A NaN has an
 * empty lower half, since it comes from operands of 16 bits or is the core's own: it stays one. After ROUNDING, with v3 to
 * v5 free.
 */
#define ROUNDING "movi v6.4s, #1, lsl #16\n movi v7.4s, #0x7f, msl #8\n"
#define HALF_OF(r, t) "cmtst v" #t ".4s, v" #r ".4s, v6.4s\n sub v" #t ".4s, v7.4s, v" #t ".4s\n"
#define ROUND_ROW(r0, r1, r2) \
    HALF_OF(r0, 3) HALF_OF(r1, 4) HALF_OF(r2, 5) \
    "addhn v" #r0 ".4h, v" #r0 ".4s, v3.4s\n" \
    "addhn2 v" #r0 ".8h, v" #r1 ".4s, v4.4s\n" \
    "addhn v" #r2 ".4h, v" #r2 ".4s, v5.4s\n"
#define PUT_ROUNDED(r0, r1, r2) ROUND_ROW(r0, r1, r2) STORE_HALVES(r0, r2)
#define PUT_ROUNDED_TWICE(r0, r1, r2) ROUND_ROW(r0, r1, r2) STORE_HALVES_TWICE(r0, r2)

#define FINISH_ROW(take, put, d0, d1, d2) take(d0, d1, d2, 0, 1, 2) put(d0, d1, d2)

#define FINISH_TILE(take, put) \
    FINISH_ROW(take, put, 8, 9, 10) FINISH_ROW(take, put, 11, 12, 13) FINISH_ROW(take, put, 14, 15, 16) \
    FINISH_ROW(take, put, 17, 18, 19) FINISH_ROW(take, put, 20, 21, 22) FINISH_ROW(take, put, 23, 24, 25) \
    FINISH_ROW(take, put, 26, 27, 28) FINISH_ROW(take, put, 29, 30, 31)

#define FINISH_ROUNDED_TILE(take, put) ROUNDING FINISH_TILE(take, put)

#define FINISH_PAIR(take, put, d0, d1, d2, d3, d4, d5) \
    UNZIP_PAIR(d0, d1, d2, d3, d4, d5) \
    take(0, 1, 2, d0, d1, d2) put(0, 1, 2) \
    take(3, 4, 5, d3, d4, d5) put(3, 4, 5)

#define FINISH_MATRIX_TILE(take, put) \
    FINISH_PAIR(take, put, 8, 9, 10, 11, 12, 13) \
    FINISH_PAIR(take, put, 14, 15, 16, 17, 18, 19) \
    FINISH_PAIR(take, put, 20, 21, 22, 23, 24, 25) \
    FINISH_PAIR(take, put, 26, 27, 28, 29, 30, 31)

/* Instead of ZERO_TILE: what KEEP_TILE left. */
#define START_TILE \
    "ldp q8, q9, [%[start]]\n ldp q10, q11, [%[start], #32]\n" \
    "ldp q12, q13, [%[start], #64]\n ldp q14, q15, [%[start], #96]\n" \
    "ldp q16, q17, [%[start], #128]\n ldp q18, q19, [%[start], #160]\n" \
    "ldp q20, q21, [%[start], #192]\n ldp q22, q23, [%[start], #224]\n" \
    "ldp q24, q25, [%[start], #256]\n ldp q26, q27, [%[start], #288]\n" \
    "ldp q28, q29, [%[start], #320]\n ldp q30, q31, [%[start], #352]\n"

#define KEEP_TILE \
    "stp q8, q9, [%[c]]\n stp q10, q11, [%[c], #32]\n" \
    "stp q12, q13, [%[c], #64]\n stp q14, q15, [%[c], #96]\n" \
    "stp q16, q17, [%[c], #128]\n stp q18, q19, [%[c], #160]\n" \
    "stp q20, q21, [%[c], #192]\n stp q22, q23, [%[c], #224]\n" \
    "stp q24, q25, [%[c], #256]\n stp q26, q27, [%[c], #288]\n" \
    "stp q28, q29, [%[c], #320]\n stp q30, q31, [%[c], #352]\n"

/* One micro-tile, over one panel of A and one of B. */
#define RUN_TILE_TO(text, steps, pa, pb, first, acc_at, acc_row, to, row, to2, row2) \
    do { \
        int64_t steps_ = (steps); \
        const void *a_ = (pa), *b_ = (pb), *acc_ = (acc_at); \
        void *c_ = (to), *c2_ = (to2); \
        \
        __asm__ volatile(text \
                         : [k] "+r"(steps_), [a] "+r"(a_), [b] "+r"(b_), [c] "+r"(c_), [c2] "+r"(c2_), \
                           [acc] "+r"(acc_) \
                         : [ld] "r"(row), [ld2] "r"(row2), [acc_ld] "r"(acc_row), [start] "r"(first) \
                         : TILE_CLOBBERS); \
    } while (0)

/* A row of micro-tiles; `size` is that of an element of D. */
#define RUN_ROW_TO(text, steps, pa, panels, places, size) \
    do { \
        int64_t row_ = (places)->d_ld[0] * (size), row2_ = (places)->d_ld[1] * (size); \
        int64_t acc_row_ = (places)->acc_ld * 4; \
        const char *panel_ = (panels)->first, *first_ = (places)->start, *from_ = (places)->acc; \
        char *to_ = (places)->d[0], *to2_ = (places)->d[1]; \
        \
        for (int64_t g_ = 0; g_ < (panels)->count; g_++) { \
            fetch_ahead(panels, places, g_); \
            RUN_TILE_TO(text, steps, pa, panel_, first_, from_, acc_row_, to_, row_, to2_, row2_); \
            panel_ += (panels)->bytes; \
            first_ = first_ ? first_ + 8 * 12 * 4 : NULL; \
            from_ = from_ ? from_ + 12 * 4 : NULL; \
            to_ += 12 * (size); \
            to2_ = to2_ ? to2_ + 12 * (size) : NULL; \
        } \
    } while (0)

/* All combinations of what came before and where it goes; `loop` is the kernel's. */
#define FINISH_ALL(loop, tile, put, steps, pa, panels, places, size) \
    do { \
        if ((places)->start && (places)->d[1]) \
            RUN_ROW_TO(START_TILE loop tile(NO_SUMS, put##_TWICE), steps, pa, panels, places, size); \
        else if ((places)->start) \
            RUN_ROW_TO(START_TILE loop tile(NO_SUMS, put), steps, pa, panels, places, size); \
        else if ((places)->acc && (places)->d[1]) \
            RUN_ROW_TO(ZERO_TILE loop tile(ADD_SUMS, put##_TWICE), steps, pa, panels, places, size); \
        else if ((places)->acc) \
            RUN_ROW_TO(ZERO_TILE loop tile(ADD_SUMS, put), steps, pa, panels, places, size); \
        else if ((places)->d[1]) \
            RUN_ROW_TO(ZERO_TILE loop tile(NO_SUMS, put##_TWICE), steps, pa, panels, places, size); \
        else \
            RUN_ROW_TO(ZERO_TILE loop tile(NO_SUMS, put), steps, pa, panels, places, size); \
    } while (0)

/* Bare sums, to one place. */
#define SETTLE_ALL(loop, tile, steps, pa, panels, places) \
    do { \
        if ((places)->start) \
            RUN_ROW_TO(START_TILE loop tile(NO_SUMS, PUT_F32), steps, pa, panels, places, 4); \
        else \
            RUN_ROW_TO(ZERO_TILE loop tile(NO_SUMS, PUT_F32), steps, pa, panels, places, 4); \
    } while (0)

#define KEEP_ALL(loop, steps, pa, pb, start_at, to) \
    do { \
        if (start_at) \
            RUN_TILE_TO(START_TILE loop KEEP_TILE, steps, pa, pb, start_at, NULL, 0, to, 0, NULL, 0); \
        else \
            RUN_TILE_TO(ZERO_TILE loop KEEP_TILE, steps, pa, pb, NULL, NULL, 0, to, 0, NULL, 0); \
    } while (0)

/* clang-format on */

#endif
