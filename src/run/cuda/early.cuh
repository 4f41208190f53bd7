/*
 * A kernel that was launched to come in while the one before it ends
 * (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_ SERIALIZATION) waits here before it touches anything that one may
 * have written or may still read, and only then lets the next one in: so two of a stream are resident at
 * most.
 */
#ifndef WEFT_RUN_CUDA_EARLY_CUH
#define WEFT_RUN_CUDA_EARLY_CUH

static __device__ __forceinline__ void wait_for_stream()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
