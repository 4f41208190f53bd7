/*
 * Streaming by element: 24 columns and one k of B times one element of A. The including file defines ELEMENT,
 * K_STEP, UNIT = 24, stage_along (as stream.h says, to rows of 24 columns), sum_at, and as assembly
 *
 *     LOAD_B             24 elements at %[b]
 *     LOAD_A_1 (_2, _4)  so many elements at %[a] into v0, which is then past them
 *     ROW                those of B times element e of v0, onto six registers of sums
 *
 * Written in assembly because the order of the multiplies decides: in the order compilers chose, they ran at
 * half rate.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_ELEMENT_H
#define WEFT_KERNELS_AARCH64_STREAM_ELEMENT_H

#define SUM float

#define ACROSS_LINES(rows) 4
#define UNIT_STEP(rows) 1

enum { CHUNK = 192 / sizeof(ELEMENT), ACROSS_LINES_MOST = 4, STAGED = 64 / sizeof(ELEMENT) * UNIT };

/* Rows of B are multiplied as they lie. */
INLINE const ELEMENT *stage_across(int lines, ELEMENT *staged, const ELEMENT *b, int64_t ldb)
{
    (void)lines;
    (void)staged;
    (void)ldb;
    return b;
}

/* clang-format off */

#define ROWS_1 ROW(8, 9, 10, 11, 12, 13, 0)
#define ROWS_2 ROWS_1 ROW(14, 15, 16, 17, 18, 19, 1)
#define ROWS_4 ROWS_2 ROW(20, 21, 22, 23, 24, 25, 2) ROW(26, 27, 28, 29, 30, 31, 3)

#define SUMS_1(op) op " q8, q9, [%[c]]\n" op " q10, q11, [%[c], #32]\n" op " q12, q13, [%[c], #64]\n"
#define SUMS_2(op) SUMS_1(op) \
    op " q14, q15, [%[c], #96]\n" op " q16, q17, [%[c], #128]\n" op " q18, q19, [%[c], #160]\n"
#define SUMS_4(op) SUMS_2(op) \
    op " q20, q21, [%[c], #192]\n" op " q22, q23, [%[c], #224]\n" op " q24, q25, [%[c], #256]\n" \
    op " q26, q27, [%[c], #288]\n" op " q28, q29, [%[c], #320]\n" op " q30, q31, [%[c], #352]\n"

#define ONE_K(rows) LOAD_A_##rows LOAD_B "add %[b], %[b], %[ld]\n" ROWS_##rows

#define MULTIPLY(rows) \
    __asm__ volatile(SUMS_##rows("ldp") \
                     "subs %[k], %[k], #4\n b.lt 2f\n" \
                     "1:\n" ONE_K(rows) ONE_K(rows) ONE_K(rows) ONE_K(rows) \
                     "subs %[k], %[k], #4\n b.ge 1b\n" \
                     "2:\n adds %[k], %[k], #4\n b.eq 4f\n" \
                     "3:\n" ONE_K(rows) "subs %[k], %[k], #1\n b.gt 3b\n" \
                     "4:\n" SUMS_##rows("stp") \
                     : [k] "+r"(k), [a] "+r"(a), [b] "+r"(b) \
                     : [ld] "r"(ldb * (int64_t)sizeof(ELEMENT)), [c] "r"(sums) \
                     : "cc", "memory", "v0", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
                       "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", \
                       "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

/* clang-format on */

INLINE void multiply(int rows, int64_t k, const ELEMENT *a, const ELEMENT *b, int64_t ldb, float *sums)
{
#ifdef LOAD_A_4
    if (rows == 4) {
        MULTIPLY(4);
        return;
    }
    if (rows == 2) {
        MULTIPLY(2);
        return;
    }
#endif
    (void)rows;
    MULTIPLY(1);
}

#endif
