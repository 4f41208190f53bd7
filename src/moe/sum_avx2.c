/* Combine on x86-64 with AVX2, FMA and F16C: 64 columns in eight fp32 accumulators. */
#define VECTOR_BYTES 32
#include "moe/lanes_x86.h"
#include "moe/sum_kernels.h"
#include "moe/sum_rows.h"

void weft_moe_sum_avx2(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                       int64_t elements)
{
    sum_by_type(dtype, out, row, weight, rows, elements);
}
