/* The CUDA backend's entry; the one header of it that needs no CUDA header. */
#ifndef WEFT_RUN_CUDA_BACKEND_H
#define WEFT_RUN_CUDA_BACKEND_H

#include "run/backend.h"

extern const weft_backend weft_cuda_backend;

#endif
