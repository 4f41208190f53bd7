/* Streaming bf16 through BFMMLA: see stream.h. */
#include "kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t
#define SUM float

enum { K_STEP = 4 };

#define MMLA(d, x, y) "bfmmla v" #d ".4s, v" #x ".8h, v" #y ".8h\n"

INLINE uint64x2_t load(const uint16_t *p)
{
    return vreinterpretq_u64_u16(vld1q_u16(p));
}

INLINE void store(uint16_t *p, uint64x2_t x)
{
    vst1q_u16(p, vreinterpretq_u16_u64(x));
}

/* 4 lines of 32 columns: columns 8u.. make granule u. */
INLINE void gather(uint16_t *staged, int apart, const uint16_t *b, int64_t ldb)
{
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) {
        uint16x8_t w = vld1q_u16(b + 8 * u), x = vld1q_u16(b + ldb + 8 * u),
                   y = vld1q_u16(b + 2 * ldb + 8 * u), z = vld1q_u16(b + 3 * ldb + 8 * u);
        uint32x4_t wx = vreinterpretq_u32_u16(vzip1q_u16(w, x)), yz = vreinterpretq_u32_u16(vzip1q_u16(y, z)),
                   wx2 = vreinterpretq_u32_u16(vzip2q_u16(w, x)),
                   yz2 = vreinterpretq_u32_u16(vzip2q_u16(y, z));
        uint16_t *to = staged + u * apart;

        vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(wx, yz)));
        vst1q_u16(to + 8, vreinterpretq_u16_u32(vzip2q_u32(wx, yz)));
        vst1q_u16(to + 16, vreinterpretq_u16_u32(vzip1q_u32(wx2, yz2)));
        vst1q_u16(to + 24, vreinterpretq_u16_u32(vzip2q_u32(wx2, yz2)));
    }
}

#include "stream_matrix.h"

const weft_stream weft_stream_bf16_across[] = {
    {1, weft_stream_bf16_across_1}, {2, across_2}, {4, across_4}, {8, across_8}, {0}};
const weft_stream weft_stream_bf16_along[] = {{2, along_2}, {4, along_4}, {8, along_8}, {0}};
