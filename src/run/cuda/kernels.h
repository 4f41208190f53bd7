/* The compiled walkers, embedded as bytes: a fat binary each, loaded through the driver. */
#ifndef WEFT_RUN_CUDA_KERNELS_H
#define WEFT_RUN_CUDA_KERNELS_H

#include <stdbool.h>

/* Whether they are in this build: without them all that a fake GPU can test still is. */
extern const bool weft_cuda_has_kernels;

#define WEFT_CUDA_EMBEDDED extern const char __attribute__((visibility("hidden")))

WEFT_CUDA_EMBEDDED weft_cuda_kernels_bf16[], weft_cuda_kernels_bf16_224[], weft_cuda_kernels_bf16_128[],
    weft_cuda_kernels_bf16_one256[], weft_cuda_kernels_bf16_one128[],
    weft_cuda_kernels_bf16_few[]; /* Hopper, in the order of walker.h */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_f16[], weft_cuda_kernels_f16_224[], weft_cuda_kernels_f16_128[],
    weft_cuda_kernels_f16_one256[], weft_cuda_kernels_f16_one128[], weft_cuda_kernels_f16_few[];
WEFT_CUDA_EMBEDDED weft_cuda_kernels_bf16_splitk[], weft_cuda_kernels_f16_splitk[],
    weft_cuda_kernels_bf16_splitk_send[], weft_cuda_kernels_f16_splitk_send[],
    weft_cuda_kernels_bf16_splitk_sent[], weft_cuda_kernels_f16_splitk_sent[];
WEFT_CUDA_EMBEDDED weft_cuda_kernels_fp8[], weft_cuda_kernels_fp8_one[]; /* Hopper */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_any[], weft_cuda_kernels_any_fp8[]; /* any GPU from sm_80 on */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_collective[], weft_cuda_kernels_packets[], weft_cuda_kernels_lines[],
    weft_cuda_kernels_channels[], weft_cuda_kernels_onesided[], weft_cuda_kernels_sums[],
    weft_cuda_kernels_exchange[], weft_cuda_kernels_epilogue[], weft_cuda_kernels_moe[]; /* likewise */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_moe_move[];                                         /* Hopper */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_grouped[], weft_cuda_kernels_grouped_stored[];      /* Hopper */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_multimem[]; /* GPUs with multicast, sm_90 on */

#endif
