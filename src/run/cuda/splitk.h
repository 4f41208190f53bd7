/*
 * A product by itself, k divided: what the kernels weft_splitk_* are given. Included by C and by CUDA.
 *
 * Where a product has few rows, or few tiles, a plan's kernel takes longer to begin and to finish than to
 * multiply. These kernels know nothing of plans, tasks and signals. The weights (B) are on the tensor cores'
 * 64-row axis and the rows of A, the tokens, on the other. A cluster makes a tile: each of its CTAs, which
 * is a slice, multiplies its share of k, then adds up its share of the tile, in the order of k: out of the
 * shared memory of all, or, where those are many sums, out of the GPU's, which is faster then. Where
 * a cluster is not enough, several groups of slices make a tile: each writes its sums to memory, and the last
 * to come adds them up, in the order of k too. So the bits are the same every run, and no CTA ever waits for
 * one outside its cluster.
 */
#ifndef WEFT_RUN_CUDA_SPLITK_H
#define WEFT_RUN_CUDA_SPLITK_H

#include "choose/cuda/kernels.h"

#include <stdint.h>

/* Tokens whose sums of 16 columns are one vector of each of a warp's threads. */
enum { WEFT_CUDA_SPLITK_EIGHT = 8 };

/* More of `ahead` take longer: they hold up what the kernel before waits for. */
enum { WEFT_CUDA_SPLITK_AHEAD = 3 };

/* Stages begin on a multiple of 1024, behind their barriers. */
#define WEFT_CUDA_SPLITK_SHARED_BYTES(stage_bytes) (2 * 1024 + (stage_bytes))
enum { WEFT_CUDA_SPLITK_SHARED_MOST = WEFT_CUDA_SPLITK_SHARED_BYTES(204 * 1024) };
#define WEFT_CUDA_SPLITK_THREADS(cols) ((cols)*2 + 32)

/* Stands for a CUtensorMap, which must lie on 64 bytes. */
typedef struct weft_cuda_splitk_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        uint64_t words[16];
} weft_cuda_splitk_map;

typedef struct weft_cuda_splitk {
    weft_cuda_splitk_map weights, tokens;
    int32_t m, n, steps; /* of D; of k, in WEFT_CUDA_SPLITK_STEP */
    int32_t m_tiles, slices, groups;
    int32_t stages; /* of a CTA: at least as many as where the tile's CTAs fill an SM */
    int32_t width;  /* tokens that are multiplied: see WEFT_CUDA_SPLITK_WIDTHS */
    int32_t stage_bytes;
    int32_t sharers; /* tiles side by side whose CTAs bring their tokens to one another */
    int32_t rows;    /* of the tokens, that each of them brings: tiles of as many as there are, evenly */
    int32_t eights;  /* of tokens, that a slice adds up, where sums are sent */
    int32_t ahead;   /* steps whose weights a CTA asks for before the kernel before it has ended */
    void *d;
    const void *c, *bias; /* NULL: none */
    int64_t d_ld, c_ld;
    int32_t dtype;   /* weft_dtype of the three */
    int32_t wide;    /* they allow accesses of 16 bytes, every 8 columns */
    int32_t changes; /* the epilogue does more than store */
    int32_t own; /* a CTA has all sums of its tile, of 16 bits, and sends them or, wide, without C, stores */
    float alpha, beta;
    int32_t act;
    float *sums;       /* of groups: [tile][group][token][column] */
    float *sent;       /* of slices: [tile][group][slice][eight tokens][thread][4] */
    uint32_t *arrived; /* groups of a tile's share that are there: [tile][slice], zero between runs */
} weft_cuda_splitk;

#endif
