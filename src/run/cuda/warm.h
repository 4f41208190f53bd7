/*
 * The first launch of every kernel, when a GPU is opened.
 *
 * A kernel's first launch may load its code, or give all kernels more local memory, and then waits until no
 * kernel runs. Were that the launch of one rank while the kernel of another waits for it, both would wait for
 * their deadline. So every walker runs once, with nothing to do, before there are any others.
 */
#ifndef WEFT_RUN_CUDA_WARM_H
#define WEFT_RUN_CUDA_WARM_H

#include "run/cuda/driver.h"

weft_status weft_cuda_warm(weft_cuda_device *device, weft_error_text *error);

#endif
