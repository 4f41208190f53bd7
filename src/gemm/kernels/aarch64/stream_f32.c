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

#include "stream_words.h"

#include "stream_element.h"

const weft_stream weft_stream_f32_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f32_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
