/* Few rows of an int8 B as it lies, AVX-512 VNNI: see stream_i8.h. */
#define VECTOR_BYTES 64
#define HAS_VNNI 1
#include "gemm/kernels/x86/stream_i8.h"

STREAMS(avx512, i8, 4)
STREAMS(avx512, i8_amx, 64)
