/* The terms of combine, for sum_loops.h: rows as they lie. The including file has load_lanes. */
typedef const void *const terms;

INLINE const void *term_line(const terms *row, int64_t r)
{
    return row[r];
}

INLINE lanes term_lanes(weft_dtype dtype, const terms *row, int64_t r, const void *line, int64_t i)
{
    (void)row, (void)r;
    return load_lanes(dtype, line, i);
}

#include "moe/sum_loops.h"
