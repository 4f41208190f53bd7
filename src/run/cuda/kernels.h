/* The compiled walkers, embedded as bytes: a fat binary each, loaded through the driver. */
#ifndef WEFT_RUN_CUDA_KERNELS_H
#define WEFT_RUN_CUDA_KERNELS_H

#define WEFT_CUDA_EMBEDDED extern const char __attribute__((visibility("hidden")))

WEFT_CUDA_EMBEDDED weft_cuda_kernels_bf16[],
    weft_cuda_kernels_bf16_224[]; /* Hopper, tiles of 256 and 224 columns */
WEFT_CUDA_EMBEDDED weft_cuda_kernels_f16[], weft_cuda_kernels_f16_224[];
WEFT_CUDA_EMBEDDED weft_cuda_kernels_any[]; /* both types, any GPU from sm_80 on */

/* Their names: [f16][2 * transposed A + transposed B], and for any GPU [f16]. */
static const char *const weft_cuda_walker_names[2][4] = {
    {"weft_walk_bf16_nn", "weft_walk_bf16_nt", "weft_walk_bf16_tn", "weft_walk_bf16_tt"},
    {"weft_walk_f16_nn", "weft_walk_f16_nt", "weft_walk_f16_tn", "weft_walk_f16_tt"}};
static const char *const weft_cuda_any_names[2] = {"weft_walk_any_bf16", "weft_walk_any_f16"};

#endif
