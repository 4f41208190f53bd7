/* Few rows of a B as it lies, AVX2: see stream.h. */
#define VECTOR_BYTES 32
#include "gemm/kernels/x86/stream.h"

STREAMS(avx2, f32, WEFT_F32, WEFT_F32, 1)
STREAMS(avx2, f16, WEFT_F16, WEFT_F32, 1)
STREAMS(avx2, bf16, WEFT_BF16, WEFT_F32, 1)
