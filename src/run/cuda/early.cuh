/*
 * A kernel that was launched to come in while the one before it ends
 * (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) waits here before it touches anything that one may
 * have written or may still read, and only then lets the next one in: so two of a stream are resident at
 * most. A kernel that receives what the product before it sends lets the next product in at once, and ends
 * after the one before it: then there are three.
 */
#ifndef WEFT_RUN_CUDA_EARLY_CUH
#define WEFT_RUN_CUDA_EARLY_CUH

static __device__ __forceinline__ void let_next_in()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_last()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_stream()
{
    wait_for_last();
    let_next_in();
}

#endif
