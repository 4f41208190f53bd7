/*
 * int8 on any aarch64: widened to int16, multiplied by lane into int32. For CPUs older than SDOT; written
 * with intrinsics, because nothing here needs a schedule of its own.
 */
#include "kernels.h"

#include <arm_neon.h>

#define ROW(i, half, lane)                                                                                   \
    sum[i][0] = vmlal_lane_s16(sum[i][0], vget_low_s16(b0), half, lane);                                     \
    sum[i][1] = vmlal_lane_s16(sum[i][1], vget_high_s16(b0), half, lane);                                    \
    sum[i][2] = vmlal_lane_s16(sum[i][2], vget_low_s16(b1), half, lane)

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    const int8_t *pa = a, *pb = b;
    int32x4_t sum[8][3];

    for (int i = 0; i < 8; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = vdupq_n_s32(0);
    for (int64_t p = 0; p < k; p++, pa += 8, pb += 12) {
        int16x8_t wide = vmovl_s8(vld1_s8(pa)), b0 = vmovl_s8(vld1_s8(pb));
        int32_t last;

        __builtin_memcpy(&last, pb + 8, sizeof(last));

        int16x8_t b1 = vmovl_s8(vcreate_s8((uint32_t)last));
        int16x4_t low = vget_low_s16(wide), high = vget_high_s16(wide);

        ROW(0, low, 0);
        ROW(1, low, 1);
        ROW(2, low, 2);
        ROW(3, low, 3);
        ROW(4, high, 0);
        ROW(5, high, 1);
        ROW(6, high, 2);
        ROW(7, high, 3);
    }
    for (int i = 0; i < 8; i++) {
        uint32_t *row = (uint32_t *)c + i * c_ld;

        for (int j = 0; j < 3; j++) {
            uint32x4_t four = vreinterpretq_u32_s32(sum[i][j]);

            vst1q_u32(row + 4 * j, add ? vaddq_u32(vld1q_u32(row + 4 * j), four) : four);
        }
    }
}

const weft_kernel weft_neon_i8_8x12 = {
    .name = "neon_i8_8x12_smlal",
    .type = WEFT_I8,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    .run = run,
};
