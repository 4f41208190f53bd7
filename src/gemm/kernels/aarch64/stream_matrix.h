/*
 * Streaming of types whose k lie side by side in groups of 4 and 8 bytes, bf16 and int8. The including file
 * defines ELEMENT, SUM, K_STEP, and as assembly
 *
 *     DOT(d, y, a, l)   4 columns of 4 bytes of k in v<y> times those of A in the l-th 4 bytes of v<a>
 *     MMLA(d, x, y)     2 rows in v<x> times 2 columns in v<y>, 8 bytes of k each
 *     GATHER(b)         4 bytes of k of 16 columns of the lines at %[<b>], then past them, into v8..v11
 *     GRANULE(b, c)     8 bytes of k of 8 columns of the lines at %[<b>] and %[<c>] likewise
 *
 * Of the lines of a sweep, each 4 bytes of k begin at another of %[b0].. . Where k runs along the lines, a
 * matrix instruction takes them almost as they lie. Where columns do, zips have to put k together, and they
 * have but two of the four pipes: for 1 and 2 rows dot products, which want 4 bytes only, are faster. A sweep
 * has 16 registers of sums: 16 columns of 4 rows, 32 of 2, 64 of 1.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_MATRIX_H
#define WEFT_KERNELS_AARCH64_STREAM_MATRIX_H

#define LINES(rows) LINES_MOST

enum { LINES_MOST = 2 * K_STEP, CLIMB_BYTES = 16 };

/* 2x2 blocks: rows 2i, 2i + 1 and columns 2j, 2j + 1 are vector 4i + j. */
static inline int64_t place_along(int rows, int64_t i, int64_t j)
{
    (void)rows;
    return (i / 2 * 4 + j / 2) * 4 + i % 2 * 2 + j % 2;
}

static inline int64_t place_across(int rows, int64_t i, int64_t j)
{
    return rows < 4 ? i * (64 / rows) + j : j / 8 * 32 + place_along(rows, i, j % 8);
}

/* clang-format off */

/* 16 columns, 4 bytes of k, times one row. */
#define DOTS(d0, d1, d2, d3, a, l) DOT(d0, 8, a, l) DOT(d1, 9, a, l) DOT(d2, 10, a, l) DOT(d3, 11, a, l)

/* A unit of columns of the lines at %[<b>]: for each row, element l of v<a>. */
#define QUARTER_1(b, a, l) \
    GATHER(b) DOTS(16, 17, 18, 19, a, l) GATHER(b) DOTS(20, 21, 22, 23, a, l) \
    GATHER(b) DOTS(24, 25, 26, 27, a, l) GATHER(b) DOTS(28, 29, 30, 31, a, l)
#define QUARTER_2(b, a, l) \
    GATHER(b) DOTS(16, 17, 18, 19, a, l) DOTS(24, 25, 26, 27, a, l + 2) \
    GATHER(b) DOTS(20, 21, 22, 23, a, l) DOTS(28, 29, 30, 31, a, l + 2)

#define UNIT_1 QUARTER_1(b0, 0, 0) QUARTER_1(b1, 0, 1) QUARTER_1(b2, 0, 2) QUARTER_1(b3, 0, 3)
#define UNIT_2 QUARTER_2(b0, 0, 0) QUARTER_2(b1, 0, 1) QUARTER_2(b2, 1, 0) QUARTER_2(b3, 1, 1)

/* One pair of rows, in v<x>, times 8 columns in four registers. */
#define PAIR(x, y0, y1, y2, y3, d0, d1, d2, d3) MMLA(d0, x, y0) MMLA(d1, x, y1) MMLA(d2, x, y2) MMLA(d3, x, y3)

#define TIMES_2(x0, y0, y1, y2, y3, d0, d1, d2, d3) PAIR(x0, y0, y1, y2, y3, d0, d1, d2, d3)
#define TIMES_4(x0, x1, y0, y1, y2, y3, d0, d1, d2, d3, e0, e1, e2, e3) \
    PAIR(x0, y0, y1, y2, y3, d0, d1, d2, d3) PAIR(x1, y0, y1, y2, y3, e0, e1, e2, e3)
#define TIMES_8(x0, x1, x2, x3, y0, y1, y2, y3) \
    TIMES_4(x0, x1, y0, y1, y2, y3, 16, 17, 18, 19, 20, 21, 22, 23) \
    TIMES_4(x2, x3, y0, y1, y2, y3, 24, 25, 26, 27, 28, 29, 30, 31)

/* 8 columns of 4 rows. */
#define COLUMNS_4(d0, d1, d2, d3, e0, e1, e2, e3) \
    GRANULE(b0, b1) TIMES_4(0, 1, 8, 9, 10, 11, d0, d1, d2, d3, e0, e1, e2, e3) \
    GRANULE(b2, b3) TIMES_4(2, 3, 8, 9, 10, 11, d0, d1, d2, d3, e0, e1, e2, e3)
#define UNIT_4 COLUMNS_4(16, 17, 18, 19, 20, 21, 22, 23) COLUMNS_4(24, 25, 26, 27, 28, 29, 30, 31)

#define A_1 "ldr q0, [%[a]]\n"
#define A_2 "ldp q0, q1, [%[a]]\n"
#define A_4 A_2 "ldp q2, q3, [%[a], #32]\n"

#define SUMS_2(op) op " q16, q17, [%[c]]\n" op " q18, q19, [%[c], #32]\n"
#define SUMS_4(op) SUMS_2(op) op " q20, q21, [%[c], #64]\n" op " q22, q23, [%[c], #96]\n"
#define SUMS_8(op) SUMS_4(op) \
    op " q24, q25, [%[c], #128]\n" op " q26, q27, [%[c], #160]\n" \
    op " q28, q29, [%[c], #192]\n" op " q30, q31, [%[c], #224]\n"

#define CLOBBERS \
    "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

#define SWEEP(rows) \
    __asm__ volatile(A_##rows "1:\n" SUMS_8("ldp") UNIT_##rows SUMS_8("stp") \
                     "add %[c], %[c], #256\n subs %[n], %[n], #1\n b.gt 1b\n" \
                     : [n] "+r"(units), [c] "+r"(sums), [b0] "+r"(b0), [b1] "+r"(b1), [b2] "+r"(b2), [b3] "+r"(b3) \
                     : [a] "r"(a), [ld] "r"(ld), [ld2] "r"(2 * ld), [ld3] "r"(3 * ld) \
                     : CLOBBERS)

/*
 * Two granules of 8 columns: 8 loads, then pairs of columns by 8 bytes. Columns are loaded into v8..v15, A into
 * v0..v3 twice.
 */
#define GRANULE_A_2 "ldr q0, [%[a]], #16\n"
#define GRANULE_A_4 "ldp q0, q1, [%[a]], #32\n"
#define GRANULE_A_8 "ldp q0, q1, [%[a]], #32\n ldp q2, q3, [%[a]], #32\n"
#define LOW_8(y0, y1, y2, y3) TIMES_8(0, 1, 2, 3, y0, y1, y2, y3)
#define LOW_4(y0, y1, y2, y3) TIMES_4(0, 1, y0, y1, y2, y3, 16, 17, 18, 19, 20, 21, 22, 23)
#define LOW_2(y0, y1, y2, y3) TIMES_2(0, y0, y1, y2, y3, 16, 17, 18, 19)

#define CLIMB(rows) \
    __asm__ volatile(SUMS_##rows("ldp") \
                     "1:\n" GRANULE_A_##rows \
                     "ldr q8, [%[l0]], #16\n ldr q9, [%[l1]], #16\n ldr q10, [%[l2]], #16\n ldr q11, [%[l3]], #16\n" \
                     "ldr q12, [%[l4]], #16\n ldr q13, [%[l5]], #16\n ldr q14, [%[l6]], #16\n ldr q15, [%[l7]], #16\n" \
                     "zip1 v4.2d, v8.2d, v9.2d\n zip1 v5.2d, v10.2d, v11.2d\n" \
                     "zip1 v6.2d, v12.2d, v13.2d\n zip1 v7.2d, v14.2d, v15.2d\n" \
                     LOW_##rows(4, 5, 6, 7) GRANULE_A_##rows \
                     "zip2 v8.2d, v8.2d, v9.2d\n zip2 v10.2d, v10.2d, v11.2d\n" \
                     "zip2 v12.2d, v12.2d, v13.2d\n zip2 v14.2d, v14.2d, v15.2d\n" \
                     LOW_##rows(8, 10, 12, 14) \
                     "subs %[n], %[n], #1\n b.gt 1b\n" SUMS_##rows("stp") \
                     : [n] "+r"(steps), [a] "+r"(a), [l0] "+r"(l0), [l1] "+r"(l1), [l2] "+r"(l2), [l3] "+r"(l3), \
                       [l4] "+r"(l4), [l5] "+r"(l5), [l6] "+r"(l6), [l7] "+r"(l7) \
                     : [c] "r"(sums) \
                     : CLOBBERS)

/* clang-format on */

INLINE void sweep(int rows, int64_t units, const ELEMENT *a, const ELEMENT *b, int64_t ldb, SUM *sums)
{
    int64_t ld = ldb * (int64_t)sizeof(ELEMENT);
    uintptr_t quarter = (uintptr_t)ld * (LINES_MOST / 4), b0 = (uintptr_t)b, b1 = b0 + quarter,
              b2 = b1 + quarter, b3 = b2 + quarter;

    if (rows == 1)
        SWEEP(1);
    else if (rows == 2)
        SWEEP(2);
    else
        SWEEP(4);
}

INLINE void climb(int rows, int64_t steps, const ELEMENT *a, const ELEMENT *const line[8], SUM *sums)
{
    const ELEMENT *l0 = line[0], *l1 = line[1], *l2 = line[2], *l3 = line[3], *l4 = line[4], *l5 = line[5],
                  *l6 = line[6], *l7 = line[7];

    if (rows == 2)
        CLIMB(2);
    else if (rows == 4)
        CLIMB(4);
    else
        CLIMB(8);
}

#include "stream.h"

ACROSS(1)
ACROSS(2)
ACROSS(4)
ALONG(2)
ALONG(4)
ALONG(8)

#endif
