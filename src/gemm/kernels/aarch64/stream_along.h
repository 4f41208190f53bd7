/* The loop over a transposed B: see stream.h. */
#ifndef WEFT_KERNELS_AARCH64_STREAM_ALONG_H
#define WEFT_KERNELS_AARCH64_STREAM_ALONG_H

#include "stream.h"

/* B as n lines of k. */
INLINE void along(int rows, int64_t m, int64_t n, int64_t k, int64_t block, const ELEMENT *a,
                  const ELEMENT *b, int64_t ldb, SUM *c, int64_t c_ld, int add)
{
    const int64_t ahead = AHEAD_BYTES / (UNIT * (int64_t)sizeof(ELEMENT));
    ELEMENT edge[UNIT * LINE];
    _Alignas(64) ELEMENT staged[STAGED];
    _Alignas(64) SUM sums[8 * UNIT];

    for (int64_t j = 0; j < n; j += UNIT) {
        int64_t cols = least(UNIT, n - j);

        for (int64_t p = 0; p < k; p += block) {
            int64_t end = least(p + block, k);

            memset(sums, 0, sizeof(SUM) * (size_t)(rows * UNIT));
            for (int64_t q = p; q < end; q += LINE) {
                int64_t count = least(LINE, end - q), far = q + ahead, ld = ldb;
                const ELEMENT *from = b + j * ldb + q;

                prefetch_lines(b + (j + far / k * UNIT) * ldb + far % k, ldb, UNIT, LINE);
                if (cols < UNIT || count < LINE) {
                    fill_edge(edge, UNIT, LINE, from, ldb, cols, count);
                    from = edge;
                    ld = LINE;
                }
                stage_along(staged, from, ld);
                multiply(rows, padded(count), a + q * rows, staged, UNIT, sums);
            }
            finish_unit(m, cols, sums, c + j, c_ld, add || p > 0);
        }
    }
}

#endif
