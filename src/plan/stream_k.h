/*
 * Stream-K: the k-iterations of all result tiles, in units of tile_k, divided evenly over the compute lanes.
 *
 * As many tiles as fill all lanes equally are done whole, first, in the order given. The rest, fewer tiles
 * than lanes, is laid end to end in units of iterations and cut into equal shares. A tile that falls into one
 * share is still whole; one that is cut leaves its slices in private memory, and the lane of its last slice
 * finishes it by a REDUCE over the slices in ascending k. Where a rank has the product to itself
 * (gemm_local.c), the lanes that have slices of a tile divide its finishing, too: each takes a band of its
 * rows.
 */
#ifndef WEFT_PLAN_STREAM_K_H
#define WEFT_PLAN_STREAM_K_H

#include "plan/gemm_parts.h"

/* A tile of this rank's product: rows of its A, columns of its B. */
typedef struct weft_tile {
    int64_t batch;
    weft_span rows, cols;
} weft_tile;

/* The slices of a tile that was cut, and the wait that says all are there. */
typedef struct weft_slices {
    int64_t number;      /* among the cut tiles */
    int64_t total;       /* iterations of all cut tiles */
    int64_t first_share; /* of the lane that has slice 0; the others follow */
    int64_t count;
    weft_span band; /* rows of the tile that are finished together: all of them, or one of several bands */
    uint32_t signal;
} weft_slices;

typedef struct weft_stream_k {
    weft_gemm_gen *gen;
    weft_span rows, cols; /* of the product */
    int64_t tile_m, tile_n, grain_n;
    bool cuts;          /* some tile is cut */
    int64_t tiles;      /* numbered by batch, then row, then column */
    int64_t step;       /* k of an iteration; 0 = all of it */
    int64_t iterations; /* of each */
    bool banded;        /* lanes divide the finishing of a tile */
    uint32_t slices, signals;
    int64_t slot_rows, slot_cols; /* of a tile kept somewhere */
} weft_stream_k;

/* What an operation does with tile `tile`: `slices` is NULL where the lane computes it whole. */
typedef void (*weft_tile_emit)(void *context, int lane, int64_t tile, const weft_slices *slices);

/*
 * Declares what is needed for the product of the local A with columns [0, cols) of the local B. Where there
 * would be fewer tiles than `tiles_wanted`, tiles are made narrower, down to WEFT_PACK_COLUMNS.
 */
weft_stream_k weft_stream_k_begin(weft_gemm_gen *gen, int64_t cols, int64_t tiles_wanted);

/* The same with k cut only at multiples of `step` (itself one of tile_k), and the finishing divided. */
weft_stream_k weft_stream_k_begin_banded(weft_gemm_gen *gen, int64_t cols, int64_t step);

/* The width of tiles so that m x cols has `wanted` of them, if that can be without making them too narrow. */
int64_t weft_stream_k_width(const weft_problem *problem, int64_t cols, int64_t wanted);

/* The same division of what `rank` multiplies, to know its tiles by. */
weft_stream_k weft_stream_k_on(const weft_stream_k *stream, int rank);

weft_tile weft_stream_k_tile(const weft_stream_k *stream, int64_t number);

/* Emits all tiles in `order` (NULL: ascending). */
void weft_stream_k_run(weft_stream_k *stream, const int64_t *order, weft_tile_emit emit, void *context);

/* Inside `emit`: adds A and B of a whole tile to the open GEMM task. */
void weft_stream_k_product(const weft_stream_k *stream, const weft_tile *tile);

/* Inside `emit`: adds the slices as sources of the open REDUCE task, and the wait for them. */
void weft_stream_k_sources(const weft_stream_k *stream, const weft_tile *tile, const weft_slices *slices);

#endif
