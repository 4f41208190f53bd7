/*
 * How an extent is divided over ranks: contiguous parts whose sizes differ by at most one, the longer
 * ones first. Any extent and any number of parts; parts may be empty when the extent is short.
 */
#ifndef WEFT_CORE_PART_H
#define WEFT_CORE_PART_H

#include <stdint.h>

typedef struct weft_span {
    int64_t begin;
    int64_t count;
} weft_span;

weft_span weft_part(int64_t extent, int64_t parts, int64_t index);

/* The part that holds element `position`, which must lie inside the extent. */
int64_t weft_part_of(int64_t extent, int64_t parts, int64_t position);

#endif
