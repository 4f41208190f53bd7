/*
 * Streaming by matrix instructions, BFMMLA and SMMLA: 2 columns of B times 2 rows of A, KR = K_STEP of k at a
 * time, which are 8 bytes. The including file defines ELEMENT, SUM, K_STEP, and
 *
 *     load, store  16 bytes of B
 *     MMLA         the instruction, as assembly
 *     gather       K_STEP lines of CHUNK columns to granules `apart` elements apart
 *
 * Staged: for each 8 columns, granules of K_STEP k, 4 vectors each.
 */
#ifndef WEFT_KERNELS_AARCH64_STREAM_MATRIX_H
#define WEFT_KERNELS_AARCH64_STREAM_MATRIX_H

/* Granules of a unit: more would spread over too many lines of B, fewer would fetch the sums too often. */
#define GRANULES(rows) ((rows) < 8 ? 2 : 4)
#define ACROSS_LINES(rows) (GRANULES(rows) * K_STEP)
#define UNIT_STEP(rows) ACROSS_LINES(rows)

enum {
    UNIT = 8,
    CHUNK = 64 / sizeof(ELEMENT),
    ACROSS_LINES_MOST = 4 * K_STEP,
    STAGED = ACROSS_LINES_MOST * CHUNK,
    LINE_GRANULES = 8 /* in a cache line of k */
};

/* 2x2 blocks: rows 2i, 2i + 1 and columns 2j, 2j + 1 are vector 4i + j. */
static inline int64_t sum_at(int64_t i, int64_t j)
{
    return (i / 2 * 4 + j / 2) * 4 + i % 2 * 2 + j % 2;
}

INLINE const ELEMENT *stage_across(int lines, ELEMENT *staged, const ELEMENT *b, int64_t ldb)
{
    for (int p = 0; p < lines; p += K_STEP)
        gather(staged + p * UNIT, lines * UNIT, b + p * ldb, ldb);
    return staged;
}

INLINE void stage_along(ELEMENT *staged, const ELEMENT *b, int64_t ldb)
{
    for (int g = 0; g < LINE_GRANULES; g += 2, b += 2 * K_STEP, staged += 2 * 8 * K_STEP) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            uint64x2_t x = load(b + 2 * j * ldb), y = load(b + (2 * j + 1) * ldb);

            store(staged + j * 2 * K_STEP, vzip1q_u64(x, y));
            store(staged + (4 + j) * 2 * K_STEP, vzip2q_u64(x, y));
        }
    }
}

/* clang-format off */

/* Per granule: 16 bytes of A for each pair of rows, 64 of B. v16..v31: sums; v0..v3: A; v4..v7: B. */
#define LOAD_B "ldp q4, q5, [%[b]]\n ldp q6, q7, [%[b], #32]\n add %[b], %[b], #64\n"
#define LOAD_A_2 "ldr q0, [%[a]], #16\n"
#define LOAD_A_4 "ldp q0, q1, [%[a]], #32\n"
#define LOAD_A_8 "ldp q0, q1, [%[a]]\n ldp q2, q3, [%[a], #32]\n add %[a], %[a], #64\n"
#define PAIR(x, d0, d1, d2, d3) MMLA(d0, x, 4) MMLA(d1, x, 5) MMLA(d2, x, 6) MMLA(d3, x, 7)
#define PAIRS_2 PAIR(0, 16, 17, 18, 19)
#define PAIRS_4 PAIRS_2 PAIR(1, 20, 21, 22, 23)
#define PAIRS_8 PAIRS_4 PAIR(2, 24, 25, 26, 27) PAIR(3, 28, 29, 30, 31)

#define SUMS_2(op) op " q16, q17, [%[c]]\n" op " q18, q19, [%[c], #32]\n"
#define SUMS_4(op) SUMS_2(op) op " q20, q21, [%[c], #64]\n" op " q22, q23, [%[c], #96]\n"
#define SUMS_8(op) SUMS_4(op) \
    op " q24, q25, [%[c], #128]\n" op " q26, q27, [%[c], #160]\n" \
    op " q28, q29, [%[c], #192]\n" op " q30, q31, [%[c], #224]\n"

#define MULTIPLY(rows) \
    __asm__ volatile(SUMS_##rows("ldp") \
                     "1:\n" LOAD_A_##rows LOAD_B PAIRS_##rows \
                     "subs %[k], %[k], %[step]\n b.gt 1b\n" SUMS_##rows("stp") \
                     : [k] "+r"(k), [a] "+r"(a), [b] "+r"(b) \
                     : [c] "r"(sums), [step] "r"((int64_t)K_STEP) \
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", \
                       "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

/* clang-format on */

INLINE void multiply(int rows, int64_t k, const ELEMENT *a, const ELEMENT *b, int64_t ldb, SUM *sums)
{
    (void)ldb;
    if (rows == 2)
        MULTIPLY(2);
    else if (rows == 4)
        MULTIPLY(4);
    else
        MULTIPLY(8);
}

#include "stream_across.h"
#include "stream_along.h"

STREAM(across_2, across, 2)
STREAM(across_4, across, 4)
STREAM(across_8, across, 8)
STREAM(along_2, along, 2)
STREAM(along_4, along, 4)
STREAM(along_8, along, 8)

#endif
