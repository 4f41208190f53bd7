/* Streaming int8 through SMMLA: see stream.h. */
#include "kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT int8_t
#define SUM int32_t

enum { K_STEP = 8 };

#define MMLA(d, x, y) "smmla v" #d ".4s, v" #x ".16b, v" #y ".16b\n"

INLINE uint64x2_t load(const int8_t *p)
{
    return vreinterpretq_u64_s8(vld1q_s8(p));
}

INLINE void store(int8_t *p, uint64x2_t x)
{
    vst1q_s8(p, vreinterpretq_s8_u64(x));
}

/* From pairs of lines to 4 k side by side: columns 0..7 in the first two vectors, 8..15 in the others. */
INLINE void zip_4(uint32x4_t to[4], const int8_t *b, int64_t ldb)
{
    int8x16_t w = vld1q_s8(b), x = vld1q_s8(b + ldb), y = vld1q_s8(b + 2 * ldb), z = vld1q_s8(b + 3 * ldb);
    int16x8_t wx = vreinterpretq_s16_s8(vzip1q_s8(w, x)), yz = vreinterpretq_s16_s8(vzip1q_s8(y, z)),
              wx2 = vreinterpretq_s16_s8(vzip2q_s8(w, x)), yz2 = vreinterpretq_s16_s8(vzip2q_s8(y, z));

    to[0] = vreinterpretq_u32_s16(vzip1q_s16(wx, yz));
    to[1] = vreinterpretq_u32_s16(vzip2q_s16(wx, yz));
    to[2] = vreinterpretq_u32_s16(vzip1q_s16(wx2, yz2));
    to[3] = vreinterpretq_u32_s16(vzip2q_s16(wx2, yz2));
}

/* 8 lines of 64 columns, 16 at a time: columns 8u.. make granule u. */
INLINE void gather(int8_t *staged, int apart, const int8_t *b, int64_t ldb)
{
    for (int u = 0; u < 8; u += 2) {
        uint32x4_t low[4], high[4];

        zip_4(low, b + 8 * u, ldb);
        zip_4(high, b + 4 * ldb + 8 * u, ldb);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int8_t *to = staged + (u + i / 2) * apart + i % 2 * 32;

            vst1q_s8(to, vreinterpretq_s8_u32(vzip1q_u32(low[i], high[i])));
            vst1q_s8(to + 16, vreinterpretq_s8_u32(vzip2q_u32(low[i], high[i])));
        }
    }
}

#include "stream_matrix.h"

const weft_stream weft_stream_i8_across[] = {{2, across_2}, {4, across_4}, {8, across_8}, {0}};
const weft_stream weft_stream_i8_along[] = {{2, along_2}, {4, along_4}, {8, along_8}, {0}};
