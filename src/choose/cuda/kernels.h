/*
 * What the kernels of GPUs are compiled for: tiles, steps, and how much fits their parameters. Whoever
 * decides for GPUs decides within this; the kernels (src/run/cuda/) are made of it. Included by C and by
 * CUDA.
 */
#ifndef WEFT_CHOOSE_CUDA_KERNELS_H
#define WEFT_CHOOSE_CUDA_KERNELS_H

/* Kernels that walk a plan (walker.h says in which shapes). */
enum { WEFT_CUDA_TILE_M = 256, WEFT_CUDA_TILE_N = 256, WEFT_CUDA_TILE_K = 64 };
enum { WEFT_CUDA_FP8_N = 128, WEFT_CUDA_FP8_K = 128 }; /* the same of fp8, whose tiles are narrower */
enum { WEFT_CUDA_CTA_COPIERS = 2 }; /* copy lanes that a CTA of the Hopper walker runs beside its crew's */
enum { WEFT_CUDA_CREWS_MAX = 160 }; /* whose lanes are passed by value */

/* Products by themselves, k divided (run/cuda/splitk.h). */
enum {
    WEFT_CUDA_SPLITK_STEP = 64,  /* of k */
    WEFT_CUDA_SPLITK_SLICES = 8, /* of a cluster, and CTAs of it in all */
};

/* The tiles that they are compiled in: tokens, columns, and how many CTAs are to fit an SM. */
#define WEFT_CUDA_SPLITK_TILES(X)                                                                            \
    X(8, 64, 3)                                                                                              \
    X(16, 64, 3)                                                                                             \
    X(32, 64, 3)                                                                                             \
    X(64, 64, 2)                                                                                             \
    X(64, 128, 1) X(128, 64, 1) X(128, 128, 1) X(96, 128, 1) X(256, 128, 1) X(256, 64, 1)
enum { WEFT_CUDA_SPLITK_TILE_COUNT = 10 };

/* A tile of 128 tokens or more is multiplied in part where there are fewer: in WIDTHS, from the least on. */
enum { WEFT_CUDA_SPLITK_WIDTHS = 16 };
#define WEFT_CUDA_SPLITK_WIDTH_LEAST(tokens) ((tokens) < 128 ? (tokens) : (tokens) / 2 + 16)

#define WEFT_CUDA_SPLITK_STAGE_BYTES(tokens, cols) (((tokens) + (cols)) * 2 * WEFT_CUDA_SPLITK_STEP)
/* With which so many CTAs fit an SM. */
#define WEFT_CUDA_SPLITK_STAGES(tokens, cols, ctas)                                                          \
    (((ctas) == 1 ? 204 : (ctas) == 2 ? 100 : 68) * 1024 / WEFT_CUDA_SPLITK_STAGE_BYTES(tokens, cols))

/* Sums that the kernel of a product sends (run/cuda/exchange.h). */
enum {
    WEFT_CUDA_EXCHANGE_RANKS = 32, /* what fits the parameters of a kernel */
    WEFT_CUDA_EXCHANGE_WIDTH = 8,  /* columns of a row that a thread handles together */
};

/* Collectives in packets, and in lines of them (run/cuda/collective.h). */
enum {
    WEFT_CUDA_PACKET_BYTES = 16,
    WEFT_CUDA_PACKET_PAYLOAD = 8,
    WEFT_CUDA_PACKET_RANKS = 32, /* what fits the parameters of a kernel */
    WEFT_CUDA_LINE_THREADS = 8,
    WEFT_CUDA_LINE_BYTES = WEFT_CUDA_LINE_THREADS * WEFT_CUDA_PACKET_BYTES,
};

#endif
