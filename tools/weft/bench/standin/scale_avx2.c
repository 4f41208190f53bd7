/* The stand-in expert on x86-64 with AVX2, FMA and F16C. */
#define VECTOR_BYTES 32
#define KERNELS weft_standin_kernels_avx2
#include "bench/standin/scale_x86.h"
