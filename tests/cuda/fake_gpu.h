/*
 * A GPU for machines that have none: the driver calls that the backend makes, on host memory, and an
 * interpreter of the device arrays in place of the kernels. So the lowering, the loading and the protocol
 * are tested everywhere by the same cases that run on a real GPU.
 *
 * Like the Hopper walker, a lane has a loader that runs ahead of its consumer: it reads A and B of the next
 * GEMM as soon as the waits that guard them allow. Lanes and ranks advance in random order, so that a wait
 * too few shows up as a wrong result.
 */
#ifndef WEFT_TESTS_CUDA_FAKE_GPU_H
#define WEFT_TESTS_CUDA_FAKE_GPU_H

#include "run/cuda/driver.h"

/* A device with `crews` crews. `hopper` chooses which walker it stands for. */
weft_cuda_device fake_gpu(int crews, bool hopper, uint64_t seed);

/* How many GEMM tasks went through tensor maps and how many copies through bulk lanes, since the last call.
 */
typedef struct fake_gpu_counts {
    long maps, bulk, gemms;
} fake_gpu_counts;
fake_gpu_counts fake_gpu_take_counts(void);

#endif
