/*
 * How an extent is divided over ranks: contiguous parts whose sizes differ by at most one, the longer
 * ones first. Any extent and any number of parts; parts may be empty when the extent is short.
 */
#ifndef WEFT_CORE_PART_H
#define WEFT_CORE_PART_H

#include "core/round.h"

#include <weft/weft.h>

#include <math.h>
#include <stdbool.h>

/* The part that holds element `position`, which must lie inside the extent. */
int64_t weft_part_of(int64_t extent, int64_t parts, int64_t position);

/* Tiles of an extent that is cut into parts first: none has elements of two. */
static inline int64_t weft_part_tiles(int64_t extent, int parts, int64_t tile)
{
    int64_t tiles = 0;

    for (int part = 0; part < parts; part++)
        tiles += weft_divide_up(weft_part(extent, parts, part).count, tile);
    return tiles;
}

/* Whether `batch` matrices of rows x cols are so few elements that no count of bytes made of them overflows,
 * not even of all ranks together. No machine holds more. */
static inline bool weft_extents_fit(int64_t rows, int64_t cols, int64_t batch)
{
    return (double)rows * (double)cols * (double)batch <= 0x1p46;
}

/* The same for memory with gaps: `batch` matrices `stride` apart of rows of `cols`, `ld` apart. */
static inline bool weft_span_fits(int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride)
{
    double between = rows > 1 ? (double)(rows - 1) * (double)ld : 0;
    double before = batch > 1 ? (double)(batch - 1) * fabs((double)stride) : 0;

    return before + between + (double)cols <= 0x1p46;
}

/* Whether any two of them share elements: matrices side by side, or row by row in turns, do not. */
bool weft_batch_overlaps(int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride);

#endif
