/*
 * Few rows of bf16 A against a transposed B (n lines of k) that is used once: B streams from memory straight
 * into BFMMLA, without being packed. Up to 8 rows; the work per byte of B grows with the row pairs, so 1, 2
 * and 4 pairs are compiled apart.
 *
 * Inside a k block the sums grow in the same order as in the packed kernel, so the bits are the same.
 */
#include "kernels.h"

#include <arm_neon.h>
#include <string.h>

enum { PANEL = 8 };

#define INLINE static inline __attribute__((always_inline))

INLINE bfloat16x8_t load(const uint16_t *p)
{
    return vreinterpretq_bf16_u16(vld1q_u16(p));
}

INLINE bfloat16x8_t zip_64(bfloat16x8_t x, bfloat16x8_t y, int second)
{
    uint64x2_t a = vreinterpretq_u64_bf16(x), b = vreinterpretq_u64_bf16(y);

    return vreinterpretq_bf16_u64(second ? vzip2q_u64(a, b) : vzip1q_u64(a, b));
}

INLINE void clear(float32x4_t sums[4][4])
{
    for (int i = 0; i < 16; i++)
        sums[i / 4][i % 4] = vdupq_n_f32(0);
}

/* sums[i][j] holds rows 2i, 2i+1 and columns 2j, 2j+1; `cols` of the 8 columns are stored or added. */
INLINE void finish(float32x4_t sums[4][4], int pairs, int64_t cols, float *c, int64_t c_ld, int add)
{
    for (int i = 0; i < 2 * pairs; i++) {
        float row[PANEL], *to = c + i * c_ld;

        for (int j = 0; j < 4; j++)
            vst1_f32(row + 2 * j, i & 1 ? vget_high_f32(sums[i / 2][j]) : vget_low_f32(sums[i / 2][j]));
        for (int64_t j = 0; j < cols; j++)
            to[j] = add ? to[j] + row[j] : row[j];
    }
}

/* ---- B as n rows of k: each column of the product reads one of them ------------------------------- */

INLINE void transposed_block(int64_t k, const uint16_t *a, const uint16_t *const line[PANEL],
                             float32x4_t sums[4][4], int pairs)
{
    int64_t p = 0;

    for (; p + 8 <= k; p += 8) {
        const uint16_t *here = a + p * PANEL;

        for (int j = 0; j < 4; j++) {
            bfloat16x8_t x = load(line[2 * j] + p), y = load(line[2 * j + 1] + p);

            for (int i = 0; i < pairs; i++) {
                sums[i][j] = vbfmmlaq_f32(sums[i][j], load(here + 8 * i), zip_64(x, y, 0));
                sums[i][j] = vbfmmlaq_f32(sums[i][j], load(here + 32 + 8 * i), zip_64(x, y, 1));
            }
        }
    }
    for (; p < k; p += 4) {
        for (int j = 0; j < 4; j++) {
            uint16_t two[8] = {0};
            size_t bytes = (size_t)(k - p < 4 ? k - p : 4) * 2;

            memcpy(two, line[2 * j] + p, bytes);
            memcpy(two + 4, line[2 * j + 1] + p, bytes);
            for (int i = 0; i < pairs; i++)
                sums[i][j] = vbfmmlaq_f32(sums[i][j], load(a + p * PANEL + 8 * i), load(two));
        }
    }
}

INLINE void transposed(int64_t n, int64_t k, int64_t block, const uint16_t *a, const uint16_t *b, int64_t ldb,
                       float *c, int64_t c_ld, int add, int pairs)
{
    for (int64_t j = 0; j < n; j += PANEL) {
        int64_t cols = n - j < PANEL ? n - j : PANEL;

        for (int64_t p = 0; p < k; p += block) {
            const uint16_t *line[PANEL];
            float32x4_t sums[4][4];

            for (int x = 0; x < PANEL; x++)
                line[x] = b + (j + (x < cols ? x : cols - 1)) * ldb + p;
            clear(sums);
            transposed_block(k - p < block ? k - p : block, a + p * PANEL, line, sums, pairs);
            finish(sums, pairs, cols, c + j, c_ld, add || p > 0);
        }
    }
}

void weft_stream_bf16(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,
                      int64_t ldb, void *c, int64_t c_ld, int add)
{
    if (m <= 2)
        transposed(n, k, block, a, b, ldb, c, c_ld, add, 1);
    else if (m <= 4)
        transposed(n, k, block, a, b, ldb, c, c_ld, add, 2);
    else
        transposed(n, k, block, a, b, ldb, c, c_ld, add, 4);
}
