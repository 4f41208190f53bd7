/* The rungs below fused on a GPU: their memory, and the kernels of a round on a stream. All ranks are in this
 * process. */
#ifndef WEFT_TOOLS_BENCH_CUDA_LADDER_H
#define WEFT_TOOLS_BENCH_CUDA_LADDER_H

#include "bench/cuda/ladder_device.h"
#include "run/cuda/moe.h"

typedef struct ladder {
    const weft_cuda_driver *cu;
    CUmodule module;
    CUfunction kernel[LADDER_COUNT_OF_KERNELS];
} ladder;

weft_status ladder_open(const weft_cuda_driver *cu, ladder *l, weft_error_text *error);
void ladder_close(ladder *l); /* one that is all zero is fine */

const char *ladder_name(ladder_rung rung);

/* Of a layer as fused has it, on a rank; both memories NULL: only measures. They must be zero at first. */
ladder_args ladder_lay_out(ladder_rung rung, const weft_device_moe_shape *shape, int world, int rank,
                           char *symmetric, char *own, size_t *symmetric_bytes, size_t *own_bytes);

/* Dispatch (0) or combine (1) of a round. `fetches`: also puts what arrived in the order of experts, where
 * the rung's dispatch does not. */
weft_status ladder_put(const ladder *l, const ladder_args *rank, int half, bool fetches,
                       weft_cuda_moe_room room, CUstream stream, weft_error_text *error);

/* Experts that can be told apart, for any rung: of `rank` it takes packed, base, first, experts_here,
 * row_bytes and dtype. */
weft_status ladder_scale(const ladder *l, const ladder_args *rank, weft_cuda_moe_room room, CUstream stream,
                         weft_error_text *error);

#endif
