/* Few rows of an int8 B as it lies, AVX2: see stream_i8.h. */
#define VECTOR_BYTES 32
#define HAS_VNNI 0
#include "gemm/kernels/x86/stream_i8.h"

STREAMS(avx2, i8, 2)
