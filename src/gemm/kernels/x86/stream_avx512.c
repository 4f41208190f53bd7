/* Few rows of a B as it lies, AVX-512: see stream.h. */
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/stream.h"

STREAMS(avx512, f32, WEFT_F32, WEFT_F32, 1)
STREAMS(avx512, f16, WEFT_F16, WEFT_F32, 1)
STREAMS(avx512, bf16, WEFT_BF16, WEFT_F32, 1)
STREAMS(avx512, bf16_pairs, WEFT_BF16, WEFT_BF16, 2)
STREAMS(avx512, bf16_amx, WEFT_BF16, WEFT_BF16, 32)
