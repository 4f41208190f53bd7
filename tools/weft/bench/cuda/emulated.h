/* The kernels for measurements over an emulated link (run/cuda/emulate.h, link.h), which only the bench has.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_EMULATED_H
#define WEFT_TOOLS_BENCH_CUDA_EMULATED_H

#include "run/cuda/driver.h"

/* Loads them, once. Nothing may run on the GPU. */
weft_status emulated_load(weft_cuda_device *device, weft_error_text *error);

#endif
