/* The loop over a row-major B: see stream.h. */
#ifndef WEFT_KERNELS_AARCH64_STREAM_ACROSS_H
#define WEFT_KERNELS_AARCH64_STREAM_ACROSS_H

#include "stream.h"

/* Some successive k, `cols` columns: one chunk of columns after another. */
INLINE void across_lines(int rows, const ELEMENT *a, int64_t lines, int64_t cols, const ELEMENT *b,
                         int64_t ldb, SUM *sums)
{
    const int all = ACROSS_LINES(rows);
    const int64_t ahead = AHEAD_BYTES / (all * (int64_t)sizeof(ELEMENT));
    ELEMENT edge[ACROSS_LINES_MOST * CHUNK];
    _Alignas(64) ELEMENT staged[STAGED];

    for (int64_t j = 0; j < cols; j += CHUNK) {
        int64_t count = least(CHUNK, cols - j), far = j + ahead, ld = ldb;
        const ELEMENT *from = b + j;

        prefetch_lines(b + far / cols * all * ldb + far % cols, ldb, all, CHUNK);
        if (count < CHUNK || lines < all) {
            fill_edge(edge, all, CHUNK, from, ldb, lines, count);
            from = edge;
            ld = CHUNK;
        }
        from = stage_across(all, staged, from, ld);
        for (int64_t u = 0; u < count; u += UNIT, sums += rows * UNIT)
            multiply(rows, padded(lines), a, from + u * UNIT_STEP(rows), ld, sums);
    }
}

/* B as k lines of n. */
INLINE void across(int rows, int64_t m, int64_t n, int64_t k, int64_t block, const ELEMENT *a,
                   const ELEMENT *b, int64_t ldb, SUM *c, int64_t c_ld, int add)
{
    const int64_t width = SUMS / rows / CHUNK * CHUNK;
    _Alignas(64) SUM sums[SUMS];

    for (int64_t j = 0; j < n; j += width) {
        int64_t cols = least(width, n - j);

        for (int64_t p = 0; p < k; p += block) {
            int64_t end = least(p + block, k);

            memset(sums, 0, sizeof(SUM) * (size_t)((cols + UNIT - 1) / UNIT * UNIT * rows));
            for (int64_t q = p; q < end; q += ACROSS_LINES(rows))
                across_lines(rows, a + q * rows, least(ACROSS_LINES(rows), end - q), cols, b + q * ldb + j,
                             ldb, sums);
            for (int64_t u = 0; u < cols; u += UNIT)
                finish_unit(m, least(UNIT, cols - u), sums + u * rows, c + j + u, c_ld, add || p > 0);
        }
    }
}

#endif
