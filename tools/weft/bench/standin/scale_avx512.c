/* The stand-in expert on x86-64 with AVX-512. */
#define VECTOR_BYTES 64
#define KERNELS weft_standin_kernels_avx512
#include "bench/standin/scale_x86.h"
