/* Streaming fp32: see stream.h. */
#include "kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT float

enum { K_STEP = 1, UNIT = 24 };

#define LOAD_B "ldp q2, q3, [%[b]]\n ldp q4, q5, [%[b], #32]\n ldp q6, q7, [%[b], #64]\n"
#define LOAD_A_1 "ldr s0, [%[a]], #4\n"
#define LOAD_A_2 "ldr d0, [%[a]], #8\n"
#define LOAD_A_4 "ldr q0, [%[a]], #16\n"
#define ROW(d0, d1, d2, d3, d4, d5, e)                                                                       \
    "fmla v" #d0 ".4s, v2.4s, v0.s[" #e "]\n fmla v" #d1 ".4s, v3.4s, v0.s[" #e "]\n fmla v" #d2             \
    ".4s, v4.4s, v0.s[" #e "]\n fmla v" #d3 ".4s, v5.4s, v0.s[" #e "]\n fmla v" #d4 ".4s, v6.4s, v0.s[" #e   \
    "]\n fmla v" #d5 ".4s, v7.4s, v0.s[" #e "]\n"

/* 4x4 elements at a time are transposed. */
INLINE void stage_along(float *staged, const float *b, int64_t ldb)
{
    for (int i = 0; i < UNIT; i += 4) {
        const float *line = b + i * ldb;

#pragma GCC unroll 4
        for (int p = 0; p < 16; p += 4) {
            float32x4_t w = vld1q_f32(line + p), x = vld1q_f32(line + ldb + p),
                        y = vld1q_f32(line + 2 * ldb + p), z = vld1q_f32(line + 3 * ldb + p);
            float32x4_t wy = vzip1q_f32(w, y), xz = vzip1q_f32(x, z), wy2 = vzip2q_f32(w, y),
                        xz2 = vzip2q_f32(x, z);
            float *to = staged + p * UNIT + i;

            vst1q_f32(to, vzip1q_f32(wy, xz));
            vst1q_f32(to + UNIT, vzip2q_f32(wy, xz));
            vst1q_f32(to + 2 * UNIT, vzip1q_f32(wy2, xz2));
            vst1q_f32(to + 3 * UNIT, vzip2q_f32(wy2, xz2));
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

const weft_stream weft_stream_f32_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f32_along[] = {{1, along_1}, {2, along_2}, {4, along_4}, {0}};
