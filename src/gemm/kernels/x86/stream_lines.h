/*
 * Lines of B that few rows of A pass by as they lie (stream.h, stream_i8.h). The including file defines
 * VECTOR_BYTES.
 */
#ifndef WEFT_GEMM_KERNELS_X86_STREAM_LINES_H
#define WEFT_GEMM_KERNELS_X86_STREAM_LINES_H

#include "core/round.h"
#include "gemm/kernels/x86/vector.h"

enum {
    CACHE_LINE = 64,
    AHEAD_BYTES = 8 << 10,
    AHEAD_MOST = 32 << 10, /* longer lines are fetched by hardware in time */
    NEAR_BYTES = 32 << 10  /* of sums, which are passed through once for every few lines: L1 has them */
};

/* How many lines later is fetched while `lines` of so many bytes are followed; 0: hardware does it. What a
 * thread of many has of a line is over before hardware has found out that it goes on, and the next line lies
 * in another page. */
INLINE int64_t stream_lines_ahead(int64_t line_bytes, int lines)
{
    if (lines * line_bytes > AHEAD_MOST)
        return 0;
    return lines * line_bytes <= AHEAD_BYTES ? AHEAD_BYTES / line_bytes : lines;
}

/* Columns of n at a time, in multiples of `unit`, as evenly as may be: their sums of so many rows are near,
 * and at most `most`. */
INLINE int64_t stream_width(int64_t n, int rows, int unit, int64_t most)
{
    int64_t width = weft_min(most / rows, NEAR_BYTES / 4 / rows) / unit * unit;

    return weft_round_up(weft_divide_up(n, weft_divide_up(n, width)), unit);
}

#endif
