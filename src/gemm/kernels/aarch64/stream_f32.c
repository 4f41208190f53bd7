/*
 * Few rows of fp32 A against a row-major B (k lines of n) that is used once: B streams from memory straight
 * into FMLA, without being packed. Up to 4 rows; 1, 2 and 4 are compiled apart.
 *
 * A strip of sums stays in L1 while all k of a block pass over it, as many lines of B at a time as there are
 * rows: more would meet in the same sets of the cache where lines are a power of two apart. Every sum grows
 * by fused multiply-adds in ascending k, as in the packed kernel, so the bits are the same. Per 4 columns and
 * k with one row: 1 load of B, 1 load and 1 store of sums, 1 FMLA: memory is the limit.
 */
#include "kernels.h"

#include <arm_neon.h>
#include <string.h>

enum { PANEL = 4, SUMS = 8192 };

#define INLINE static inline __attribute__((always_inline))

/* sums[i] += A(i, p) * B(p, .) for `lines` successive p and `cols` columns. */
INLINE void add_lines(int rows, int lines, const float *a, const float *b, int64_t ldb, float *sums,
                      int64_t width, int64_t cols)
{
    float32x4_t x[4];
    int64_t j = 0;

    for (int p = 0; p < lines; p++)
        x[p] = vld1q_f32(a + p * PANEL);
    for (; j + 4 <= cols; j += 4) {
        float32x4_t line[4];

        for (int p = 0; p < lines; p++)
            line[p] = vld1q_f32(b + p * ldb + j);
        for (int i = 0; i < rows; i++) {
            float32x4_t sum = vld1q_f32(sums + i * width + j);

            for (int p = 0; p < lines; p++)
                sum = vfmaq_n_f32(sum, line[p], x[p][i]);
            vst1q_f32(sums + i * width + j, sum);
        }
    }
    for (; j < cols; j++) {
        for (int i = 0; i < rows; i++) {
            for (int p = 0; p < lines; p++)
                sums[i * width + j] = __builtin_fmaf(a[p * PANEL + i], b[p * ldb + j], sums[i * width + j]);
        }
    }
}

INLINE void strip(int rows, int64_t cols, int64_t k, const float *a, const float *b, int64_t ldb, float *c,
                  int64_t c_ld, int add, int64_t m)
{
    float sums[SUMS];
    int64_t width = SUMS / rows;
    int64_t p = 0;

    for (int i = 0; i < rows; i++)
        memset(sums + i * width, 0, (size_t)cols * sizeof(float));
    for (; p + rows <= k; p += rows)
        add_lines(rows, rows, a + p * PANEL, b + p * ldb, ldb, sums, width, cols);
    for (; p < k; p++)
        add_lines(rows, 1, a + p * PANEL, b + p * ldb, ldb, sums, width, cols);
    for (int64_t i = 0; i < m; i++) {
        float *to = c + i * c_ld;

        for (int64_t j = 0; j < cols; j++)
            to[j] = add ? to[j] + sums[i * width + j] : sums[i * width + j];
    }
}

void weft_stream_across_f32(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,
                            int64_t ldb, void *c, int64_t c_ld, int add)
{
    int64_t width = SUMS / (m == 1 ? 1 : m == 2 ? 2 : 4);

    for (int64_t p = 0; p < k; p += block) {
        int64_t depth = k - p < block ? k - p : block;
        const float *rows_a = (const float *)a + p * PANEL;

        for (int64_t j = 0; j < n; j += width) {
            int64_t cols = n - j < width ? n - j : width;
            const float *from = (const float *)b + p * ldb + j;
            float *to = (float *)c + j;

            if (m == 1)
                strip(1, cols, depth, rows_a, from, ldb, to, c_ld, add || p > 0, m);
            else if (m == 2)
                strip(2, cols, depth, rows_a, from, ldb, to, c_ld, add || p > 0, m);
            else
                strip(4, cols, depth, rows_a, from, ldb, to, c_ld, add || p > 0, m);
        }
    }
}
