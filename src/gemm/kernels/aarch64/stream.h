/*
 * Few rows of A against a B that is used once: B streams from memory where it lies, without being packed.
 * What stream_across.h (B as k lines of n) and stream_along.h (n lines of k) share. They are the loops for
 * any type; the file that includes them says how its type is multiplied:
 *
 *     ELEMENT, SUM        of A and B; of the sums
 *     K_STEP              the kernel's
 *     UNIT                columns that are multiplied at a time
 *     ACROSS_LINES(rows)  lines of a row-major B that are taken at a time; at most ACROSS_LINES_MOST
 *     CHUNK               columns of them, whole units and whole cache lines
 *     STAGED              elements that stage_across or stage_along fill at most
 *     stage_across        `lines` lines of CHUNK elements are put in the order `multiply` wants: the lines
 * are k stage_along         UNIT lines of a cache line each likewise: the lines are columns multiply rows x
 * UNIT sums += A * (UNIT columns of what was staged), over k successive k sum_at              where
 * `multiply` keeps the sum of a row and column
 *
 * Each piece of B is used up before the next one is touched: lines a power of two apart share a set of the
 * cache, which holds four. Pieces at the edges are copied into a full one first. Sums stay in cache for a
 * block of k, and are then added to C.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_H
#define WEFT_KERNELS_AARCH64_STREAM_H

#include <string.h>

enum {
    LINE = 64 / sizeof(ELEMENT), /* elements of a cache line */
    SUMS = 16384,                /* half of L1 was slower: B's lines are then cut shorter */
    AHEAD_BYTES = 16384          /* of B that are prefetched */
};

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t padded(int64_t k)
{
    return (k + K_STEP - 1) / K_STEP * K_STEP;
}

/* `lines` lines of `count` elements, as the first of `all` lines of `width`, with zeros behind. */
static inline void fill_edge(ELEMENT *edge, int64_t all, int64_t width, const ELEMENT *b, int64_t ldb,
                             int64_t lines, int64_t count)
{
    memset(edge, 0, (size_t)(all * width) * sizeof(ELEMENT));
    for (int64_t i = 0; i < lines; i++)
        memcpy(edge + i * width, b + i * ldb, (size_t)count * sizeof(ELEMENT));
}

INLINE void prefetch_lines(const ELEMENT *b, int64_t ldb, int lines, int count)
{
    for (int i = 0; i < lines; i++) {
        for (int j = 0; j < count; j += LINE)
            __builtin_prefetch(b + i * ldb + j, 0, 1);
    }
}

/* The finished sums of one unit of columns go to C. */
INLINE void finish_unit(int64_t m, int64_t cols, const SUM *sums, SUM *c, int64_t c_ld, int add)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < cols; j++)
            c[i * c_ld + j] = add ? c[i * c_ld + j] + sums[sum_at(i, j)] : sums[sum_at(i, j)];
    }
}

#define STREAM(name, order, rows)                                                                            \
    static void name(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,           \
                     int64_t ldb, void *c, int64_t c_ld, int add)                                            \
    {                                                                                                        \
        order(rows, m, n, k, block, a, b, ldb, c, c_ld, add);                                                \
    }

#endif
