/* Streaming fp32: see stream.h. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT float

enum { K_STEP = 1, LINES_MOST = 8, CLIMB_BYTES = 32 };

/*
 * One row needs so few multiplies that sums can pass by for each line of B, which then is a single stream and
 * prefetched further ahead than hardware does: faster than plain loads. Of 4 rows, 8 lines that are 16 KB
 * apart would push each other out of L1.
 */
#define LINES(rows) ((rows) == 1 ? 1 : (rows) == 2 ? 8 : 4)

static inline int64_t place_across(int rows, int64_t i, int64_t j)
{
    return i * (64 / rows) + j;
}

#define LOAD_1(p) "ldp q8, q9, [%[" #p "]], #32\n"
#define LOAD_2(p) LOAD_1(p) "ldp q10, q11, [%[" #p "]], #32\n"
#define LOAD_4(p) LOAD_2(p) "ldp q12, q13, [%[" #p "]], #32\n ldp q14, q15, [%[" #p "]], #32\n"
#define TIMES(d0, d1, y, z, a, l)                                                                            \
    "fmla v" #d0 ".4s, v" #y ".4s, v" #a ".s[" #l "]\n fmla v" #d1 ".4s, v" #z ".4s, v" #a ".s[" #l "]\n"
#define MUL_0(d0, d1, a, l) TIMES(d0, d1, 8, 9, a, l)
#define MUL_1(d0, d1, a, l) TIMES(d0, d1, 10, 11, a, l)
#define MUL_2(d0, d1, a, l) TIMES(d0, d1, 12, 13, a, l)
#define MUL_3(d0, d1, a, l) TIMES(d0, d1, 14, 15, a, l)

#define SWEEP_A_1 "ldr s0, [%[a]]\n"
#define SWEEP_A_2 "ldp q0, q1, [%[a]]\n ldp q2, q3, [%[a], #32]\n"
#define SWEEP_A_4 SWEEP_A_2
#define SWEEP_1                                                                                              \
    "prfm pldl3keep, [%[l0], #16384]\n prfm pldl3keep, [%[l0], #16448]\n"                                    \
    "prfm pldl3keep, [%[l0], #16512]\n prfm pldl3keep, [%[l0], #16576]\n" ROW_1(l0, 0, 0)
#define SWEEP_2                                                                                              \
    ROW_2(l0, 0, 0)                                                                                          \
    ROW_2(l1, 0, 2)                                                                                          \
    ROW_2(l2, 1, 0) ROW_2(l3, 1, 2) ROW_2(l4, 2, 0) ROW_2(l5, 2, 2) ROW_2(l6, 3, 0) ROW_2(l7, 3, 2)
#define AHEAD(p) "prfm pldl3keep, [%[" #p "], %[next]]\n"
#define SWEEP_4                                                                                              \
    AHEAD(l0)                                                                                                \
    ROW_4(l0, 0, 0)                                                                                          \
    AHEAD(l1) ROW_4(l1, 1, 0) AHEAD(l2) ROW_4(l2, 2, 0) AHEAD(l3) ROW_4(l3, 3, 0)

/* 8 columns of 4 k in these: to two registers for each k, v8..v15. */
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

#include "stream_element.h"

const weft_stream weft_stream_f32_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f32_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
