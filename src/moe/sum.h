/* The arithmetic of combine: a weighted sum of rows, in the order given, with fp32 accumulation. */
#ifndef WEFT_MOE_SUM_H
#define WEFT_MOE_SUM_H

#include <weft/weft.h>

/*
 * out[i] = round(w[0] * row[0][i] + w[1] * row[1][i] + ...), F16, BF16 or F32. The sum starts from zero and
 * takes the rows in order, one multiply-add each (fused where the machine has it, always or never on one
 * machine), so the bits depend on the rows and weights alone. No row gives zeros. `out` is none of the
 * rows.
 */
void weft_moe_sum(weft_dtype dtype, void *out, const void *const *row, const float *weight, int64_t rows,
                  int64_t elements);

/*
 * out[i] = round(x[i] * factor), and its weighted sum over factors: out[i] = round(sum of w[j] *
 * round(x[i] * factor[j])). The contest's stand-in expert, alone and fused into combine; factors are small
 * integers, exact in every dtype. `other` not NULL: a row that is then added to that, and rounded again, as
 * weft_moe_sum does with weights of one. In scale_sum `out` is neither `x` nor `other`.
 */
void weft_moe_scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements);
void weft_moe_scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                        int64_t factors, const void *other, int64_t elements);

#endif
