/*
 * Streaming by element: a row of B times one element of A. The including file defines ELEMENT (and
 * ELEMENT_A and SUM, if they are not that and float), K_STEP, LINES, LINES_MOST, place_across, and as
 * assembly
 *
 *     LOAD_2(p), LOAD_4(p)   16 (32) columns at %[<p>], which is then past them
 *     MUL_<g>(d0, d1, a, l)  the g-th 8 of them times element l of v<a>, onto two registers of sums
 *     SWEEP_A_<rows>         A, for as many k, from v0 on
 *     SWEEP_<rows>           all LINES of a unit, by ROW_<rows>; the next LINES are %[next] bytes further
 *     STEP_<rows>            CLIMB_BYTES of k of 8 columns, by COLUMN_<rows>
 *
 * With CLIMBS_BY_DOTS it also says how a climb of 1 and 2 rows begins and ends.
 *
 * A sweep has 16 registers of sums, whatever the rows: 16 columns of 4 rows, 32 of 2, 64 of 1. A stays in
 * registers for a whole sweep. Written in assembly because the order of the multiplies decides: in the order
 * compilers chose, they ran at half rate.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_ELEMENT_H
#define WEFT_KERNELS_AARCH64_STREAM_ELEMENT_H

#ifndef SUM
#define SUM float
#endif

#ifndef ELEMENT_A
#define ELEMENT_A ELEMENT
#endif

/* clang-format off */

/* One k: the line %[<p>] times successive elements of A from l of v<a> on. */
#define ROW_1(p, a, l) \
    LOAD_4(p) MUL_0(16, 17, a, l) MUL_1(18, 19, a, l) MUL_2(20, 21, a, l) MUL_3(22, 23, a, l) \
    LOAD_4(p) MUL_0(24, 25, a, l) MUL_1(26, 27, a, l) MUL_2(28, 29, a, l) MUL_3(30, 31, a, l)
#define ROW_2(p, a, l) \
    LOAD_4(p) MUL_0(16, 17, a, l) MUL_1(18, 19, a, l) MUL_2(20, 21, a, l) MUL_3(22, 23, a, l) \
    MUL_0(24, 25, a, l + 1) MUL_1(26, 27, a, l + 1) MUL_2(28, 29, a, l + 1) MUL_3(30, 31, a, l + 1)
#define ROW_4(p, a, l) \
    LOAD_2(p) MUL_0(16, 17, a, l) MUL_1(18, 19, a, l) MUL_0(20, 21, a, l + 1) MUL_1(22, 23, a, l + 1) \
    MUL_0(24, 25, a, l + 2) MUL_1(26, 27, a, l + 2) MUL_0(28, 29, a, l + 3) MUL_1(30, 31, a, l + 3)

#define SUMS_1(op) op " q16, q17, [%[c]]\n"
#define SUMS_2(op) SUMS_1(op) op " q18, q19, [%[c], #32]\n"
#define SUMS_4(op) SUMS_2(op) op " q20, q21, [%[c], #64]\n" op " q22, q23, [%[c], #96]\n"
#define SUMS_8(op) SUMS_4(op) \
    op " q24, q25, [%[c], #128]\n" op " q26, q27, [%[c], #160]\n" \
    op " q28, q29, [%[c], #192]\n" op " q30, q31, [%[c], #224]\n"

#define CLOBBERS \
    "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

#define LINE_REGISTERS \
    [l0] "+r"(l0), [l1] "+r"(l1), [l2] "+r"(l2), [l3] "+r"(l3), [l4] "+r"(l4), [l5] "+r"(l5), [l6] "+r"(l6), [l7] "+r"(l7)

#define SWEEP(rows) \
    __asm__ volatile(SWEEP_A_##rows "1:\n" SUMS_8("ldp") SWEEP_##rows SUMS_8("stp") \
                     "add %[c], %[c], #256\n subs %[n], %[n], #1\n b.gt 1b\n" \
                     : [n] "+r"(units), [c] "+r"(sums), LINE_REGISTERS \
                     : [a] "r"(a), [next] "r"(ld * LINES(rows)) \
                     : CLOBBERS)

/* clang-format on */

INLINE void sweep(int rows, int64_t units, const ELEMENT_A *a, const ELEMENT *b, int64_t ldb, SUM *sums)
{
    uintptr_t ld = (uintptr_t)ldb * sizeof(ELEMENT), l0 = (uintptr_t)b, l1 = l0 + ld, l2 = l1 + ld,
              l3 = l2 + ld, l4 = l3 + ld, l5 = l4 + ld, l6 = l5 + ld, l7 = l6 + ld;

    if (rows == 4)
        SWEEP(4);
    else if (rows == 2)
        SWEEP(2);
    else
        SWEEP(1);
}

static inline int64_t place_along(int rows, int64_t i, int64_t j)
{
    (void)rows;
    return i * 8 + j;
}

/* clang-format off */

/* 8 columns of one k, in v<y> (and v<z>), times elements of A as above (8 rows: the last 4 from m of v<b> on). */
#define COLUMN_1(y, z, a, l) TIMES(16, 17, y, z, a, l)
#define COLUMN_2(y, z, a, l) COLUMN_1(y, z, a, l) TIMES(18, 19, y, z, a, l + 1)
#define COLUMN_4(y, z, a, l) COLUMN_2(y, z, a, l) TIMES(20, 21, y, z, a, l + 2) TIMES(22, 23, y, z, a, l + 3)
#define COLUMN_8(y, z, a, l, b, m) \
    COLUMN_4(y, z, a, l) \
    TIMES(24, 25, y, z, b, m) TIMES(26, 27, y, z, b, m + 1) TIMES(28, 29, y, z, b, m + 2) TIMES(30, 31, y, z, b, m + 3)

#define LINE_8 \
    "ldr q8, [%[l0]], #16\n ldr q9, [%[l1]], #16\n ldr q10, [%[l2]], #16\n ldr q11, [%[l3]], #16\n" \
    "ldr q12, [%[l4]], #16\n ldr q13, [%[l5]], #16\n ldr q14, [%[l6]], #16\n ldr q15, [%[l7]], #16\n"

#ifndef CLIMBS_BY_DOTS
#define BEGIN_1 SUMS_1("ldp")
#define END_1 SUMS_1("stp")
#define BEGIN_2 SUMS_2("ldp")
#define END_2 SUMS_2("stp")
#endif
#define BEGIN_4 SUMS_4("ldp")
#define END_4 SUMS_4("stp")
#define BEGIN_8 SUMS_8("ldp")
#define END_8 SUMS_8("stp")

#define CLIMB(rows) \
    __asm__ volatile(BEGIN_##rows "1:\n" STEP_##rows "subs %[n], %[n], #1\n b.gt 1b\n" END_##rows \
                     : [n] "+r"(steps), [a] "+r"(a), LINE_REGISTERS \
                     : [c] "r"(sums) \
                     : CLOBBERS)

/* clang-format on */

INLINE void climb(int rows, int64_t steps, const ELEMENT_A *a, const ELEMENT *const line[8], SUM *sums)
{
    const ELEMENT *l0 = line[0], *l1 = line[1], *l2 = line[2], *l3 = line[3], *l4 = line[4], *l5 = line[5],
                  *l6 = line[6], *l7 = line[7];

    if (rows == 8)
        CLIMB(8);
    else if (rows == 4)
        CLIMB(4);
    else if (rows == 2)
        CLIMB(2);
    else
        CLIMB(1);
}

#include "stream.h"

ACROSS(1)
ACROSS(2)
ACROSS(4)
ALONG(1)
ALONG(2)
ALONG(4)
ALONG(8)

#endif
