/* Streaming fp32: see stream.h. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT float

enum { K_STEP = 1, LINES_MOST = 8 };

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

/* 8 columns of 4 k in v8..v15: two registers for each k. Then A. */
#define TRANSPOSE                                                                                            \
    "zip1 v0.4s, v8.4s, v10.4s\n zip2 v1.4s, v8.4s, v10.4s\n zip1 v2.4s, v9.4s, v11.4s\n"                    \
    "zip2 v3.4s, v9.4s, v11.4s\n zip1 v4.4s, v12.4s, v14.4s\n zip2 v5.4s, v12.4s, v14.4s\n"                  \
    "zip1 v6.4s, v13.4s, v15.4s\n zip2 v7.4s, v13.4s, v15.4s\n"                                              \
    "zip1 v8.4s, v0.4s, v2.4s\n zip1 v9.4s, v4.4s, v6.4s\n zip2 v10.4s, v0.4s, v2.4s\n"                      \
    "zip2 v11.4s, v4.4s, v6.4s\n zip1 v12.4s, v1.4s, v3.4s\n zip1 v13.4s, v5.4s, v7.4s\n"                    \
    "zip2 v14.4s, v1.4s, v3.4s\n zip2 v15.4s, v5.4s, v7.4s\n"
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

#include "stream_element.h"

#include "stream.h"

ACROSS(1)
ACROSS(2)
ACROSS(4)
ALONG(1)
ALONG(2)
ALONG(4)
ALONG(8)

const weft_stream weft_stream_f32_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f32_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
