/* The kernels of float16 and bfloat16; simt_any_fp8.cpp has those of fp8. */
#include "simt.h"

#include "run/cuda/walk_sm80.cu"
