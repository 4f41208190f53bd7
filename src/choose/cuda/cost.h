/*
 * How long a rank's own product takes with each walker and each division of k, and which is the fastest. A
 * model of a few numbers, measured on an H200 (docs/performance/gpu.md says how well it chooses); those of
 * the walker for any GPU are derived.
 */
#ifndef WEFT_CHOOSE_CUDA_COST_H
#define WEFT_CHOOSE_CUDA_COST_H

#include "choose/cuda/walker.h"

typedef struct weft_cuda_shape {
    int64_t m, n, k, l;
    int pairs;           /* crews of two CTAs that there are */
    bool transa, transb; /* as of a problem */
} weft_cuda_shape;

/* Nanoseconds that an SM takes to load 128 bytes of a line of memory for the tensor cores: of lines that
 * begin with the 32 bytes that memory moves together, and of others. */
#define WEFT_CUDA_LINE_NS(elems) ((elems) % 16 ? 3.0 : 1.13)

/* What of so many bytes L2 does not keep that keeps about `cached`, an H200's WEFT_CUDA_L2_BYTES: there is no
 * sharp line. */
enum { WEFT_CUDA_L2_BYTES = 29600000 };
double weft_cuda_beyond_l2(double bytes, double cached);

/* How the product is made. */
typedef struct weft_cuda_way {
    int walker; /* of weft_cuda_walkers; -1: the one for any GPU */
    int ctas;
    int64_t tile_m, tile_n;
    int64_t chunk_k; /* as of a problem: 0 = tiles are whole */
    int workers;
    double ns;
} weft_cuda_way;

/* That walker, with tiles whole or (`divided`) along k too; false where there is nothing to divide. */
bool weft_cuda_cost(const weft_cuda_shape *shape, int walker, bool divided, weft_cuda_way *way);

/* The fastest of all; only with whole tiles where `whole`. */
weft_cuda_way weft_cuda_cost_least(const weft_cuda_shape *shape, bool whole);

/* The same by the walker for any GPU, one CTA to each of `sms` SMs; `narrow`: only by tiles of 128 columns.
 */
weft_cuda_way weft_cuda_cost_any(const weft_cuda_shape *shape, int sms, bool narrow);

#endif
