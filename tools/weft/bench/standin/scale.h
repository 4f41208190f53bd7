/* The arithmetic of the stand-in expert. */
#ifndef WEFT_TOOLS_BENCH_STANDIN_SCALE_H
#define WEFT_TOOLS_BENCH_STANDIN_SCALE_H

#include <weft/weft.h>

/*
 * out[i] = round(x[i] * factor), and its weighted sum over factors: out[i] = round(sum of w[j] *
 * round(x[i] * factor[j])). The stand-in expert, alone and fused into combine; factors are small
 * integers, exact in every dtype. `other` not NULL: a row that is then added to that, and rounded again, as
 * weft_moe_sum does with weights of one. In scale_sum `out` is neither `x` nor `other`.
 */
void weft_standin_scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements);
void weft_standin_scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor,
                            const float *weight, int64_t factors, const void *other, int64_t elements);

#endif
