/*
 * Few rows of A against a B that is used once: B streams from memory where it lies, without being packed.
 * The loops for any type. The file that includes this says how its type is multiplied:
 *
 *     ELEMENT, SUM      of B; of the sums
 *     ELEMENT_A         of A, where it is not that of B: B is widened on its way
 *     K_STEP            the kernel's
 *     LINES(rows)       lines of a row-major B that are taken at a time; at most LINES_MOST
 *     sweep             rows x (64 / rows) sums after another += A * LINES(rows) lines of k, along the lines
 *     place_across      where `sweep` keeps the sum of a row and column of a unit of 64 / rows columns
 *     climb             rows x 8 sums += A * 8 columns, each a line of k, CLIMB_BYTES of k at a time
 *     place_along       where `climb` keeps the sum of a row and column
 *
 * What decides is that hardware fetches B ahead of its use. It follows eight sequential streams well, four
 * and sixteen less so, and runs about 1.5 KB past the end of each: lines that are left early are fetched in
 * vain. Prefetching several lines by hand on top of it gained little or lost. Hence eight lines at a time,
 * followed over as many columns as there is room for sums.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_H
#define WEFT_KERNELS_AARCH64_STREAM_H

#include "core/round.h"

#include <string.h>

#ifndef ELEMENT_A
#define ELEMENT_A ELEMENT
#endif

enum {
    WIDTH_SUMS = WEFT_STREAM_BYTES / 4, /* of all columns that are followed at a time */
    K_CLIMB = CLIMB_BYTES / sizeof(ELEMENT)
};

/* `lines` lines of `count` elements, as the first of `all` lines of `width`, with zeros behind. */
static inline void fill_edge(ELEMENT *edge, int64_t all, int64_t width, const ELEMENT *from, int64_t ld,
                             int64_t lines, int64_t count)
{
    memset(edge, 0, (size_t)(all * width) * sizeof(ELEMENT));
    for (int64_t i = 0; i < lines; i++)
        memcpy(edge + i * width, from + i * ld, (size_t)count * sizeof(ELEMENT));
}

/* The same for `count` elements of A, of `width`. A zero behind is negative where there are such (float):
 * times the zeros of B it adds nothing to any sum, not even to the sign of one that is zero. */
static inline void fill_edge_a(ELEMENT_A *edge, int64_t width, const ELEMENT_A *from, int64_t count)
{
    for (int64_t i = count; i < width; i++)
        edge[i] = (ELEMENT_A)-0.0f;
    memcpy(edge, from, (size_t)count * sizeof(ELEMENT_A));
}

/* ---- B as k lines of n ---------------------------------------------------------------------------- */

/* `lines` successive k, `cols` columns; what does not fill a sweep or a unit is filled up with zeros. */
INLINE void sweep_edges(int rows, int64_t lines, int64_t cols, const ELEMENT_A *a, const ELEMENT *b,
                        int64_t ldb, SUM *sums)
{
    const int all = LINES(rows), unit = 64 / rows;
    int64_t done = lines == all ? cols / unit * unit : 0;
    ELEMENT edge[LINES_MOST * 64];
    ELEMENT_A edge_a[LINES_MOST * 8];

    if (done)
        sweep(rows, done / unit, a, b, ldb, sums);
    if (done == cols)
        return;
    fill_edge_a(edge_a, all * rows, a, weft_round_up(lines, K_STEP) * rows);
    for (int64_t j = done; j < cols; j += unit) {
        fill_edge(edge, all, unit, b + j, ldb, lines, weft_min(unit, cols - j));
        sweep(rows, 1, edge_a, edge, unit, sums + j * rows);
    }
}

/* The sums of `cols` columns go to C. */
INLINE void finish_across(int rows, int64_t m, int64_t cols, const SUM *sums, SUM *c, int64_t c_ld, int add)
{
    const int unit = 64 / rows;

    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < cols; j += unit) {
            SUM *to = c + i * c_ld + j;

            for (int64_t x = 0; x < weft_min(unit, cols - j); x++) {
                SUM sum = sums[j * rows + place_across(rows, i, x)];

                to[x] = add ? to[x] + sum : sum;
            }
        }
    }
}

INLINE void across(int rows, int64_t m, int64_t n, int64_t k, int64_t block, const ELEMENT_A *a,
                   const ELEMENT *b, int64_t ldb, SUM *sums, SUM *c, int64_t c_ld, int add)
{
    const int64_t width = WIDTH_SUMS / rows / 64 * 64;

    for (int64_t j = 0; j < n; j += width) {
        int64_t cols = weft_min(width, n - j);

        for (int64_t p = 0; p < k; p += block) {
            int64_t end = weft_min(p + block, k);

            memset(sums, 0, sizeof(SUM) * (size_t)(weft_round_up(cols, 64) * rows));
            for (int64_t q = p; q < end; q += LINES(rows))
                sweep_edges(rows, weft_min(LINES(rows), end - q), cols, a + q * rows, b + q * ldb + j, ldb,
                            sums);
            finish_across(rows, m, cols, sums, c + j, c_ld, add || p > 0);
        }
    }
}

/* ---- B as n lines of k ---------------------------------------------------------------------------- */

/* 8 columns over one block of k; the last CLIMB_BYTES of k are filled up with zeros. */
INLINE void climb_block(int rows, int64_t k, const ELEMENT_A *a, const ELEMENT *const line[8], SUM *sums)
{
    int64_t steps = k / K_CLIMB, done = steps * K_CLIMB;
    ELEMENT edge[8 * K_CLIMB];
    ELEMENT_A edge_a[K_CLIMB * 8];
    const ELEMENT *edges[8];

    memset(sums, 0, sizeof(SUM) * (size_t)(rows * 8));
    if (steps)
        climb(rows, steps, a, line, sums);
    if (done == k)
        return;
    memset(edge, 0, sizeof(edge));
    for (int j = 0; j < 8; j++) {
        memcpy(edge + j * K_CLIMB, line[j] + done, (size_t)(k - done) * sizeof(ELEMENT));
        edges[j] = edge + j * K_CLIMB;
    }
    fill_edge_a(edge_a, K_CLIMB * rows, a + done * rows, weft_round_up(k - done, K_STEP) * rows);
    climb(rows, 1, edge_a, edges, sums);
}

INLINE void along(int rows, int64_t m, int64_t n, int64_t k, int64_t block, const ELEMENT_A *a,
                  const ELEMENT *b, int64_t ldb, SUM *c, int64_t c_ld, int add)
{
    _Alignas(64) SUM sums[8 * 8];

    for (int64_t j = 0; j < n; j += 8) {
        int64_t cols = weft_min(8, n - j);

        for (int64_t p = 0; p < k; p += block) {
            const ELEMENT *line[8];

            for (int x = 0; x < 8; x++)
                line[x] = b + (x < cols ? j + x : j) * ldb + p;
            climb_block(rows, weft_min(block, k - p), a + p * rows, line, sums);
            for (int64_t i = 0; i < m; i++) {
                SUM *to = c + i * c_ld + j;

                for (int64_t x = 0; x < cols; x++) {
                    SUM sum = sums[place_along(rows, i, x)];

                    to[x] = add || p > 0 ? to[x] + sum : sum;
                }
            }
        }
    }
}

#define ACROSS(rows)                                                                                         \
    static void across_##rows(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,  \
                              int64_t ldb, void *sums, void *c, int64_t c_ld, int add)                       \
    {                                                                                                        \
        across(rows, m, n, k, block, a, b, ldb, sums, c, c_ld, add);                                         \
    }

#define ALONG(rows)                                                                                          \
    static void along_##rows(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,   \
                             int64_t ldb, void *sums, void *c, int64_t c_ld, int add)                        \
    {                                                                                                        \
        (void)sums;                                                                                          \
        along(rows, m, n, k, block, a, b, ldb, c, c_ld, add);                                                \
    }

#endif
