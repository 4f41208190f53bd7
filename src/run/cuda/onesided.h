/* Put, get, signals and atomics of programs in the memory of GPUs, called on the host. */
#ifndef WEFT_RUN_CUDA_ONESIDED_H
#define WEFT_RUN_CUDA_ONESIDED_H

#include "run/onesided.h"

extern const weft_onesided_ops weft_cuda_onesided;

#endif
