/* Streaming int8 through SDOT: see stream.h. Of row-major lines, four at a time are interleaved. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT int8_t
#define SUM uint32_t /* they wrap */

enum { K_STEP = 4, LINES_MOST = 8, CLIMB_BYTES = 32 };

#define LINES(rows) 8

static inline int64_t place_across(int rows, int64_t i, int64_t j)
{
    return i * (64 / rows) + j;
}

/* clang-format off */

#define SDOT(d, y, a, l) "sdot v" #d ".4s, v" #y ".16b, v" #a ".4b[" #l "]\n"
#define TIMES(d0, d1, y, z, a, l) SDOT(d0, y, a, l) SDOT(d1, z, a, l)

/* 4 k of 16 columns, into v8..v11. */
#define QUAD(w, x, y, z) \
    "ldr q4, [%[" #w "]], #16\n ldr q5, [%[" #x "]], #16\n ldr q6, [%[" #y "]], #16\n ldr q7, [%[" #z "]], #16\n" \
    "zip1 v12.16b, v4.16b, v5.16b\n zip2 v13.16b, v4.16b, v5.16b\n" \
    "zip1 v14.16b, v6.16b, v7.16b\n zip2 v15.16b, v6.16b, v7.16b\n" \
    "zip1 v8.8h, v12.8h, v14.8h\n zip2 v9.8h, v12.8h, v14.8h\n" \
    "zip1 v10.8h, v13.8h, v15.8h\n zip2 v11.8h, v13.8h, v15.8h\n"
#define UPPER QUAD(l0, l1, l2, l3)
#define LOWER QUAD(l4, l5, l6, l7)
#define DOTS(d0, d1, d2, d3, a, l) SDOT(d0, 8, a, l) SDOT(d1, 9, a, l) SDOT(d2, 10, a, l) SDOT(d3, 11, a, l)

#define COLUMNS_1(d0, d1, d2, d3) UPPER DOTS(d0, d1, d2, d3, 0, 0) LOWER DOTS(d0, d1, d2, d3, 0, 1)
#define COLUMNS_2(d0, d1, d2, d3, e0, e1, e2, e3) \
    UPPER DOTS(d0, d1, d2, d3, 0, 0) DOTS(e0, e1, e2, e3, 0, 1) LOWER DOTS(d0, d1, d2, d3, 0, 2) DOTS(e0, e1, e2, e3, 0, 3)
#define COLUMNS_4(a) \
    DOTS(16, 17, 18, 19, a, 0) DOTS(20, 21, 22, 23, a, 1) DOTS(24, 25, 26, 27, a, 2) DOTS(28, 29, 30, 31, a, 3)

#define SWEEP_A_1 "ldr d0, [%[a]]\n"
#define SWEEP_A_2 "ldr q0, [%[a]]\n"
#define SWEEP_A_4 "ldp q0, q1, [%[a]]\n"
#define SWEEP_1 COLUMNS_1(16, 17, 18, 19) COLUMNS_1(20, 21, 22, 23) COLUMNS_1(24, 25, 26, 27) COLUMNS_1(28, 29, 30, 31)
#define SWEEP_2 COLUMNS_2(16, 17, 18, 19, 24, 25, 26, 27) COLUMNS_2(20, 21, 22, 23, 28, 29, 30, 31)
#define SWEEP_4 UPPER COLUMNS_4(0) LOWER COLUMNS_4(1)

/* clang-format on */

#include "stream_words.h"

#include "stream_element.h"

const weft_stream weft_stream_i8_sdot_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_i8_sdot_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
