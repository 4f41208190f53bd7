/*
 * The shapes that the Hopper walker is compiled in, by the tile of D that a crew makes at a time.
 *
 * A crew of two CTAs shares what it loads of B. One CTA is a crew where a cluster would multiply zeros or
 * there are too few tiles. `exchanged`: the weights are on the tensor cores' 64-row axis and the few rows of
 * D on the other, that is, the crew multiplies the transposed matrices.
 */
#ifndef WEFT_CHOOSE_CUDA_WALKER_H
#define WEFT_CHOOSE_CUDA_WALKER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_cuda_walker {
    int ctas;
    int32_t tile_m, tile_n;
    bool exchanged;
} weft_cuda_walker;

enum {
    WEFT_CUDA_PAIR_256,
    WEFT_CUDA_PAIR_224,
    WEFT_CUDA_PAIR_128,
    WEFT_CUDA_ONE_256,
    WEFT_CUDA_ONE_128,
    WEFT_CUDA_FEW_ROWS,
    WEFT_CUDA_WALKERS
};

extern const weft_cuda_walker weft_cuda_walkers[WEFT_CUDA_WALKERS];

/* The walker for a plan: of crews of `ctas` (0 = two) and tiles of at most `rows` x `cols`. fp8 has two, with
 * 128 columns. */
int weft_cuda_walker_for(int ctas, int64_t rows, int64_t cols, bool fp8);

/* Columns of the tensor cores' B in one box, where k is contiguous. */
uint32_t weft_cuda_walker_box(const weft_cuda_walker *walker);

/* The kernel among the four of a walker: by which of its operands have k across the lines in memory. */
int weft_cuda_walker_form(const weft_cuda_walker *walker, bool transa, bool transb);

#endif
