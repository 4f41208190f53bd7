/*
 * The bodies of REDUCE and COPY tasks on plain memory: no ranks, no waits, nothing allocated.
 *
 * A view is a matrix stored row by row. Several views of one call have the same shape.
 */
#ifndef WEFT_RUN_CPU_REDUCE_H
#define WEFT_RUN_CPU_REDUCE_H

#include <weft/weft.h>

#include <stdint.h>

typedef struct weft_view {
    char *data;
    int64_t ld; /* elements from one row to the next */
} weft_view;

/*
 * Every destination receives sources[0] op sources[1] op …, combined in this order. float32, float16 and
 * bfloat16 are combined in float32 and rounded once at the end (to nearest even); integers in their own type
 * and wrap. In min and max a NaN wins. A destination may be one of the sources.
 */
void weft_reduce_rows(weft_dtype dtype, weft_reduction reduction, int64_t rows, int64_t cols,
                      const weft_view *sources, int source_count, weft_dtype to,
                      const weft_view *destinations, int destination_count);

/* The same with the sum of the sources divided by `over`: some of them may be sums themselves. */
void weft_average_rows(weft_dtype dtype, int over, int64_t rows, int64_t cols, const weft_view *sources,
                       int source_count, weft_dtype to, const weft_view *destinations, int destination_count);

/* Destination ← source, of elements of `bytes` bytes; the two must not overlap unless they are the same. */
void weft_copy(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination, weft_view source);

/* The same with destination element (i, j) ← source element (j, i). */
void weft_copy_transposed(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination,
                          weft_view source);

#endif
