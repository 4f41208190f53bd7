/*
 * Climbs where k lies in words of 4 bytes, one fp32 or four int8: transposed, then multiplied by element. The
 * including file defines TIMES(d0, d1, y, z, a, l): v<y> and v<z> times element l of v<a>.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_WORDS_H
#define WEFT_KERNELS_AARCH64_STREAM_WORDS_H

/* 8 columns of 4 words of k in these: to two registers for each word, v8..v15. */
#define ZIP(which, d, x, y) "zip" #which " v" #d ".4s, v" #x ".4s, v" #y ".4s\n"
/* clang-format off */
#define TRANSPOSE(a, b, c, d, e, f, g, h) \
    ZIP(1, 0, a, c) ZIP(2, 1, a, c) ZIP(1, 2, b, d) ZIP(2, 3, b, d) \
    ZIP(1, 4, e, g) ZIP(2, 5, e, g) ZIP(1, 6, f, h) ZIP(2, 7, f, h) \
    ZIP(1, 8, 0, 2) ZIP(1, 9, 4, 6) ZIP(2, 10, 0, 2) ZIP(2, 11, 4, 6) \
    ZIP(1, 12, 1, 3) ZIP(1, 13, 5, 7) ZIP(2, 14, 1, 3) ZIP(2, 15, 5, 7)
/* clang-format on */
#define CLIMB_1                                                                                              \
    "ldr q0, [%[a]], #16\n" COLUMN_1(8, 9, 0, 0) COLUMN_1(10, 11, 0, 1) COLUMN_1(12, 13, 0, 2)               \
        COLUMN_1(14, 15, 0, 3)
#define CLIMB_2                                                                                              \
    "ldp q0, q1, [%[a]], #32\n" COLUMN_2(8, 9, 0, 0) COLUMN_2(10, 11, 0, 2) COLUMN_2(12, 13, 1, 0)           \
        COLUMN_2(14, 15, 1, 2)
#define CLIMB_4                                                                                              \
    "ldp q0, q1, [%[a]], #32\n ldp q2, q3, [%[a]], #32\n" COLUMN_4(8, 9, 0, 0) COLUMN_4(10, 11, 1, 0)        \
        COLUMN_4(12, 13, 2, 0) COLUMN_4(14, 15, 3, 0)
#define CLIMB_8                                                                                              \
    "ldp q0, q1, [%[a]], #32\n ldp q2, q3, [%[a]], #32\n ldp q4, q5, [%[a]], #32\n ldp q6, q7, [%[a]], "     \
    "#32\n" COLUMN_8(8, 9, 0, 0, 1, 0) COLUMN_8(10, 11, 2, 0, 3, 0) COLUMN_8(12, 13, 4, 0, 5, 0)             \
        COLUMN_8(14, 15, 6, 0, 7, 0)

/*
 * Lines 16 KB apart share a set of L1, which holds four: the fewer visits to a line, the less of them come
 * back from L2. With few sums there are registers for 32 bytes of each.
 */
#define BOTH                                                                                                 \
    "ldp q8, q24, [%[l0]], #32\n ldp q9, q25, [%[l1]], #32\n ldp q10, q26, [%[l2]], #32\n"                   \
    "ldp q11, q27, [%[l3]], #32\n ldp q12, q28, [%[l4]], #32\n ldp q13, q29, [%[l5]], #32\n"                 \
    "ldp q14, q30, [%[l6]], #32\n ldp q15, q31, [%[l7]], #32\n"
#define LOW TRANSPOSE(8, 9, 10, 11, 12, 13, 14, 15)
#define HIGH TRANSPOSE(24, 25, 26, 27, 28, 29, 30, 31)
#define STEP_1 BOTH LOW CLIMB_1 HIGH CLIMB_1
#define STEP_2 BOTH LOW CLIMB_2 HIGH CLIMB_2
#define STEP_4 BOTH LOW CLIMB_4 HIGH CLIMB_4
#define STEP_8 LINE_8 LOW CLIMB_8 LINE_8 LOW CLIMB_8

#endif
