/* Combine on x86-64 with AVX-512: 128 columns in eight fp32 accumulators. Two vector ports are left where
 * AVX2 has three, each twice as wide. */
#define VECTOR_BYTES 64
#include "moe/lanes_x86.h"
#include "moe/sum_kernels.h"
#include "moe/sum_rows.h"

void weft_moe_sum_avx512(weft_dtype dtype, void *out, const void *const *row, const float *weight,
                         int64_t rows, int64_t elements)
{
    sum_by_type(dtype, out, row, weight, rows, elements);
}
