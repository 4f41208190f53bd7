/* The compiled walkers, embedded as bytes: a fat binary each, loaded through the driver. */
#ifndef WEFT_RUN_CUDA_KERNELS_H
#define WEFT_RUN_CUDA_KERNELS_H

extern const char weft_cuda_kernels_bf16[] __attribute__((visibility("hidden"))); /* Hopper, bfloat16 */
extern const char weft_cuda_kernels_f16[] __attribute__((visibility("hidden")));  /* Hopper, float16 */
extern const char weft_cuda_kernels_any[]
    __attribute__((visibility("hidden"))); /* both, any GPU from sm_80 on */

#endif
