/* Streaming fp16 through FMLAL: see stream.h. */
#include "kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t

enum { K_STEP = 2, UNIT = 24 };

#define LOAD_B "ldp q2, q3, [%[b]]\n ldr q4, [%[b], #32]\n"
#define LOAD_A_1 "ldr h0, [%[a]], #2\n"
#define LOAD_A_2 "ldr s0, [%[a]], #4\n"
#define LOAD_A_4 "ldr d0, [%[a]], #8\n"
#define ROW(d0, d1, d2, d3, d4, d5, e)                                                                       \
    "fmlal v" #d0 ".4s, v2.4h, v0.h[" #e "]\n fmlal2 v" #d1 ".4s, v2.4h, v0.h[" #e "]\n fmlal v" #d2         \
    ".4s, v3.4h, v0.h[" #e "]\n fmlal2 v" #d3 ".4s, v3.4h, v0.h[" #e "]\n fmlal v" #d4                       \
    ".4s, v4.4h, v0.h[" #e "]\n fmlal2 v" #d5 ".4s, v4.4h, v0.h[" #e "]\n"

/* 4 lines of 8 elements at a time are transposed. */
INLINE void stage_along(uint16_t *staged, const uint16_t *b, int64_t ldb)
{
    for (int i = 0; i < UNIT; i += 4) {
        const uint16_t *line = b + i * ldb;

#pragma GCC unroll 4
        for (int p = 0; p < 32; p += 8) {
            uint16x8_t w = vld1q_u16(line + p), x = vld1q_u16(line + ldb + p),
                       y = vld1q_u16(line + 2 * ldb + p), z = vld1q_u16(line + 3 * ldb + p);
            uint16x8_t wy = vzip1q_u16(w, y), xz = vzip1q_u16(x, z), wy2 = vzip2q_u16(w, y),
                       xz2 = vzip2q_u16(x, z);
            uint16x8_t two[4] = {vzip1q_u16(wy, xz), vzip2q_u16(wy, xz), vzip1q_u16(wy2, xz2),
                                 vzip2q_u16(wy2, xz2)};
            uint16_t *to = staged + p * UNIT + i;

#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                vst1_u16(to + 2 * UNIT * q, vget_low_u16(two[q]));
                vst1_u16(to + 2 * UNIT * q + UNIT, vget_high_u16(two[q]));
            }
        }
    }
}

static inline int64_t sum_at(int64_t i, int64_t j)
{
    return i * UNIT + j;
}

#include "stream_element.h"

#include "stream_across.h"
#include "stream_along.h"

STREAM(across_1, across, 1)
STREAM(across_2, across, 2)
STREAM(across_4, across, 4)
STREAM(along_1, along, 1)
STREAM(along_2, along, 2)
STREAM(along_4, along, 4)

const weft_stream weft_stream_f16_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f16_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {0}};
