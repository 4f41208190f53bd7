/*
 * How a product by itself is divided: tiles, and k over the CTAs of a cluster and over clusters (see
 * run/cuda/splitk.h), and which way is the fastest.
 */
#ifndef WEFT_CHOOSE_CUDA_SPLITK_WAYS_H
#define WEFT_CHOOSE_CUDA_SPLITK_WAYS_H

#include "choose/cuda/kernels.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_splitk_tile {
    int tokens, cols, ctas;
} weft_splitk_tile;

/* In the order of WEFT_CUDA_SPLITK_TILES. */
extern const weft_splitk_tile weft_splitk_tiles[WEFT_CUDA_SPLITK_TILE_COUNT];

typedef struct weft_splitk_way {
    int tile; /* of weft_splitk_tiles, */
    int down; /* so many for all rows, evenly */
    int sharers, slices, groups;
    bool sent; /* sums of slices, to those that add them up */
    double ns;
} weft_splitk_way;

/* The fastest way for m x n x k on a GPU with that many SMs, and of more than 32 rows how long it takes, by a
 * model. */
weft_splitk_way weft_splitk_fastest(int64_t m, int64_t n, int64_t k, bool transb, int sms);

/* Calls visit(context, way) with every way of more than 32 rows that is worth a thought. */
typedef void weft_splitk_visit(void *context, const weft_splitk_way *way);
void weft_splitk_ways(int64_t m, int64_t n, int64_t k, bool transb, int sms, weft_splitk_visit *visit,
                      void *context);

/* Clusters that are on so many SMs at once. */
int64_t weft_splitk_clusters_on(const weft_splitk_way *way, int sms);

/* Tokens that each sharer of a tile brings: as many as there are, evenly over the tiles. */
int64_t weft_splitk_rows(const weft_splitk_way *way, int64_t m);

/* Of a tile's tokens those that are multiplied, of which there are so many rows. */
int weft_splitk_width(int tile, int64_t rows);

/* Stages of a CTA; the second where a rank has a GPU to itself, whose next product may come in early. */
int weft_splitk_stages(int tile, int width);
int weft_splitk_stages_beside(int tile, int width, unsigned grid, int sms);

#endif
