/*
 * Lines of B that few rows of A pass by as they lie (stream.h, stream_i8.h). The including file defines
 * VECTOR_BYTES.
 */
#ifndef WEFT_GEMM_KERNELS_X86_STREAM_LINES_H
#define WEFT_GEMM_KERNELS_X86_STREAM_LINES_H

#include "gemm/kernels/x86/vector.h"

enum { CACHE_LINE = 64, AHEAD_BYTES = 8 << 10 };

/* How many lines later is fetched while `lines` of so many bytes are followed; 0: hardware does it. What a
 * thread of many has of a line is over before hardware has found out that it goes on, and the next line lies
 * in another page. */
INLINE int64_t stream_lines_ahead(int64_t line_bytes, int lines)
{
    return lines * line_bytes <= AHEAD_BYTES ? AHEAD_BYTES / line_bytes : 0;
}

#endif
