/*
 * Combine on aarch64: 64 columns at a time, so that sixteen fp32 accumulators hide the latency of the
 * multiply-adds while the rows stream by once.
 */
#include "moe/lanes_neon.h"
#include "moe/sum_kernels.h"
#include "moe/sum_rows.h"

void weft_moe_sum_neon(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                       int64_t elements)
{
    sum_by_type(dtype, out, row, weight, rows, elements);
}
