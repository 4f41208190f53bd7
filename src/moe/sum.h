/* The arithmetic of combine: a weighted sum of rows, in the order given, with fp32 accumulation. */
#ifndef WEFT_MOE_SUM_H
#define WEFT_MOE_SUM_H

#include <weft/weft.h>

/*
 * out[i] = round(w[0] * row[0][i] + w[1] * row[1][i] + ...), F16, BF16 or F32. The sum starts from zero and
 * takes the rows in order, one multiply-add each (fused where the machine has it, always or never on one
 * machine), so the bits depend on the rows and weights alone. No row gives zeros. `out` is none of the
 * rows, unless all weights are one.
 */
void weft_moe_sum(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                  int64_t elements);

#endif
