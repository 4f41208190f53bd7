/*
 * Streaming halves on cores without an instruction that multiplies them into fp32: they are widened between
 * load and FMLA, against an A of fp32. So B costs the bytes it has, and every product is that of fp32. The
 * including file defines, as assembly,
 *
 *     WIDEN(lo, hi, raw, zero)   8 halves of v<raw> to v<lo> and v<hi>; v<zero> holds zeros
 *
 * Widening takes as many instructions as multiplying one row, two for 16 bytes each; memory is slower.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_WIDENED_H
#define WEFT_KERNELS_AARCH64_STREAM_WIDENED_H

#include "stream_halves.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t
#define ELEMENT_A float

enum { K_STEP = 1, LINES_MOST = 8, CLIMB_BYTES = 16 };

#define LINES(rows) ((rows) == 2 ? 8 : 4)

static inline int64_t place_across(int rows, int64_t i, int64_t j)
{
    return i * (64 / rows) + j;
}

/* clang-format off */

/* A is in v0..v3, zeros in v7. */
#define LOAD_2(p) "ldp q4, q5, [%[" #p "]], #32\n" WIDEN(8, 9, 4, 7) WIDEN(10, 11, 5, 7)
#define LOAD_4(p) LOAD_2(p) "ldp q4, q5, [%[" #p "]], #32\n" WIDEN(12, 13, 4, 7) WIDEN(14, 15, 5, 7)
#define TIMES(d0, d1, y, z, a, l) \
    "fmla v" #d0 ".4s, v" #y ".4s, v" #a ".s[" #l "]\n fmla v" #d1 ".4s, v" #z ".4s, v" #a ".s[" #l "]\n"
#define MUL_0(d0, d1, a, l) TIMES(d0, d1, 8, 9, a, l)
#define MUL_1(d0, d1, a, l) TIMES(d0, d1, 10, 11, a, l)
#define MUL_2(d0, d1, a, l) TIMES(d0, d1, 12, 13, a, l)
#define MUL_3(d0, d1, a, l) TIMES(d0, d1, 14, 15, a, l)

#define NOUGHT(v) "movi v" #v ".2d, #0\n"
#define SWEEP_A_1 NOUGHT(7) "ldr q0, [%[a]]\n"
#define SWEEP_A_2 NOUGHT(7) "ldp q0, q1, [%[a]]\n ldp q2, q3, [%[a], #32]\n"
#define SWEEP_A_4 SWEEP_A_2
#define SWEEP_1 ROW_1(l0, 0, 0) ROW_1(l1, 0, 1) ROW_1(l2, 0, 2) ROW_1(l3, 0, 3)
#define SWEEP_2 \
    ROW_2(l0, 0, 0) ROW_2(l1, 0, 2) ROW_2(l2, 1, 0) ROW_2(l3, 1, 2) \
    ROW_2(l4, 2, 0) ROW_2(l5, 2, 2) ROW_2(l6, 3, 0) ROW_2(l7, 3, 2)
#define SWEEP_4 ROW_4(l0, 0, 0) ROW_4(l1, 1, 0) ROW_4(l2, 2, 0) ROW_4(l3, 3, 0)

/* 8 k of the column in v<y>: the first 4 times v<x0>, the others times v<x1>. */
#define FMLA(d, y, x) "fmla v" #d ".4s, v" #y ".4s, v" #x ".4s\n"
#define DOT_1(y, d) WIDEN(4, 5, y, 7) FMLA(d, 4, 0) FMLA(d, 5, 1)
#define DOT_2(y, d, e) WIDEN(4, 5, y, 7) FMLA(d, 4, 0) FMLA(e, 4, 1) FMLA(d, 5, 2) FMLA(e, 5, 3)
#define STEP_1 \
    NOUGHT(7) "ldp q0, q1, [%[a]], #32\n" LINE_8 \
    DOT_1(8, 16) DOT_1(9, 17) DOT_1(10, 18) DOT_1(11, 19) DOT_1(12, 20) DOT_1(13, 21) DOT_1(14, 22) DOT_1(15, 23)
#define STEP_2 \
    NOUGHT(7) "ld2 {v0.4s, v1.4s}, [%[a]], #32\n ld2 {v2.4s, v3.4s}, [%[a]], #32\n" LINE_8 \
    DOT_2(8, 16, 24) DOT_2(9, 17, 25) DOT_2(10, 18, 26) DOT_2(11, 19, 27) \
    DOT_2(12, 20, 28) DOT_2(13, 21, 29) DOT_2(14, 22, 30) DOT_2(15, 23, 31)

/* One k of 8 columns, in v<y>. */
#define TURN_4(y) WIDEN(8, 9, y, 15) "ldr q10, [%[a]], #16\n" COLUMN_4(8, 9, 10, 0)
#define TURN_8(y) WIDEN(8, 9, y, 15) "ldp q10, q11, [%[a]], #32\n" COLUMN_8(8, 9, 10, 0, 11, 0)
#define STEP_4 \
    LINE_8 TRANSPOSE NOUGHT(15) TURN_4(0) TURN_4(1) TURN_4(2) TURN_4(3) TURN_4(4) TURN_4(5) TURN_4(6) TURN_4(7)
#define STEP_8 \
    LINE_8 TRANSPOSE NOUGHT(15) TURN_8(0) TURN_8(1) TURN_8(2) TURN_8(3) TURN_8(4) TURN_8(5) TURN_8(6) TURN_8(7)

/* clang-format on */

#include "stream_element.h"

#endif
