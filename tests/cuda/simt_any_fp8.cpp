#define WEFT_CUDA_FP8
#include "simt.h"

#include "run/cuda/walk_sm80.cu"
