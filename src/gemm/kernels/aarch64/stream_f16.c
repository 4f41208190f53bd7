/* Streaming fp16 through FMLAL: see stream.h. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t

enum { K_STEP = 2, LINES_MOST = 8, CLIMB_BYTES = 16 };

#define LINES(rows) 8

static inline int64_t place_across(int rows, int64_t i, int64_t j)
{
    return i * (64 / rows) + j;
}

#define LOAD_1(p) "ldr q8, [%[" #p "]], #16\n"
#define LOAD_2(p) "ldp q8, q9, [%[" #p "]], #32\n"
#define LOAD_4(p) LOAD_2(p) "ldp q10, q11, [%[" #p "]], #32\n"
#define TIMES(d0, d1, y, z, a, l)                                                                            \
    "fmlal v" #d0 ".4s, v" #y ".4h, v" #a ".h[" #l "]\n fmlal2 v" #d1 ".4s, v" #y ".4h, v" #a ".h[" #l "]\n"
#define MUL_0(d0, d1, a, l) TIMES(d0, d1, 8, 0, a, l)
#define MUL_1(d0, d1, a, l) TIMES(d0, d1, 9, 0, a, l)
#define MUL_2(d0, d1, a, l) TIMES(d0, d1, 10, 0, a, l)
#define MUL_3(d0, d1, a, l) TIMES(d0, d1, 11, 0, a, l)

#define SWEEP_A_1 "ldr q0, [%[a]]\n"
#define SWEEP_A_2 "ldp q0, q1, [%[a]]\n"
#define SWEEP_A_4 SWEEP_A_2 "ldp q2, q3, [%[a], #32]\n"
#define SWEEP_1                                                                                              \
    ROW_1(l0, 0, 0)                                                                                          \
    ROW_1(l1, 0, 1)                                                                                          \
    ROW_1(l2, 0, 2) ROW_1(l3, 0, 3) ROW_1(l4, 0, 4) ROW_1(l5, 0, 5) ROW_1(l6, 0, 6) ROW_1(l7, 0, 7)
#define SWEEP_2                                                                                              \
    ROW_2(l0, 0, 0)                                                                                          \
    ROW_2(l1, 0, 2)                                                                                          \
    ROW_2(l2, 0, 4) ROW_2(l3, 0, 6) ROW_2(l4, 1, 0) ROW_2(l5, 1, 2) ROW_2(l6, 1, 4) ROW_2(l7, 1, 6)
#define SWEEP_4                                                                                              \
    ROW_4(l0, 0, 0)                                                                                          \
    ROW_4(l1, 0, 4)                                                                                          \
    ROW_4(l2, 1, 0) ROW_4(l3, 1, 4) ROW_4(l4, 2, 0) ROW_4(l5, 2, 4) ROW_4(l6, 3, 0) ROW_4(l7, 3, 4)

#include "stream_halves.h"

/* Rows of A come apart in loading. */
#define DOT(d, y, x) "fmlal v" #d ".4s, v" #y ".4h, v" #x ".4h\n fmlal2 v" #d ".4s, v" #y ".4h, v" #x ".4h\n"
#define ALL_COLUMNS(x, a, b, c, d, e, f, g, h)                                                               \
    DOT(a, 8, x)                                                                                             \
    DOT(b, 9, x) DOT(c, 10, x) DOT(d, 11, x) DOT(e, 12, x) DOT(f, 13, x) DOT(g, 14, x) DOT(h, 15, x)

#define STEP_1 "ldr q0, [%[a]], #16\n" LINE_8 ALL_COLUMNS(0, 16, 17, 18, 19, 20, 21, 22, 23)
#define STEP_2                                                                                               \
    "ld2 {v0.8h, v1.8h}, [%[a]], #32\n" LINE_8 ALL_COLUMNS(0, 16, 17, 18, 19, 20, 21, 22, 23)                \
        ALL_COLUMNS(1, 24, 25, 26, 27, 28, 29, 30, 31)
#define STEP_4                                                                                               \
    LINE_8 TRANSPOSE "ldp q8, q9, [%[a]], #32\n ldp q10, q11, [%[a]], #32\n" COLUMN_4(0, 0, 8, 0)            \
        COLUMN_4(1, 0, 8, 4) COLUMN_4(2, 0, 9, 0) COLUMN_4(3, 0, 9, 4) COLUMN_4(4, 0, 10, 0)                 \
            COLUMN_4(5, 0, 10, 4) COLUMN_4(6, 0, 11, 0) COLUMN_4(7, 0, 11, 4)
#define STEP_8                                                                                               \
    LINE_8 TRANSPOSE                                                                                         \
        "ldp q8, q9, [%[a]], #32\n ldp q10, q11, [%[a]], #32\n ldp q12, q13, [%[a]], #32\n ldp q14, q15, "   \
        "[%[a]], #32\n" COLUMN_8(0, 0, 8, 0, 8, 4) COLUMN_8(1, 0, 9, 0, 9, 4) COLUMN_8(2, 0, 10, 0, 10, 4)   \
            COLUMN_8(3, 0, 11, 0, 11, 4) COLUMN_8(4, 0, 12, 0, 12, 4) COLUMN_8(5, 0, 13, 0, 13, 4)           \
                COLUMN_8(6, 0, 14, 0, 14, 4) COLUMN_8(7, 0, 15, 0, 15, 4)

#include "stream_element.h"

const weft_stream weft_stream_f16_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f16_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
