/*
 * How far a computed element may be from the exact one. One function, used by tests and benches alike, so
 * that nobody compares under a tolerance of his own.
 *
 * Every sum is formed in float32 (int32: exactly) from products that are exact or rounded once, in some order
 * of at most k + W additions, each with a relative error of at most u of what it adds up; what it adds up is
 * bounded by `magnitude` = |alpha| * sum |a b| + |beta c| + |bias|. Sums that travel in a narrower type are
 * rounded once more at each of at most W hops, and where they stay and ranks add to them in that type, what a
 * rank adds is rounded too. The activation has a slope of at most 1.13 and an error of a
 * few units in the last place. Storing D rounds once.
 */
#ifndef WEFT_RUN_BOUND_H
#define WEFT_RUN_BOUND_H

#include <weft/weft.h>

/* Relative error of rounding to a type (half its unit in the last place); 0 for integers. */
double weft_bound_unit(weft_dtype dtype);

/* `exact` is the exact result after the activation. */
double weft_bound_gemm(const weft_problem *problem, int world, double magnitude, double exact);

/*
 * The same for fp8 by the tensor cores of Hopper GPUs. An instruction adds 32 products to a sum: it shifts
 * all to the exponent of the largest, keeps 14 bits of each and cuts off the rest, so that it errs by less
 * than 2^-13 of the largest for each, and the largest is at most what was added up so far. Sums that are
 * promoted to float32 every 128 of k begin from nothing in every block of them, with the first of its four
 * instructions, and so lose 32 + 3 * 33 times that of the block's own magnitude; those that stay (fp8_fast)
 * lose 33 times of the whole with each of k / 32 instructions. The worst case, in which all that is cut off
 * has one sign; it is typically the root of it.
 */
double weft_bound_gemm_tensor(const weft_problem *problem, int world, double magnitude, double exact);

/* gate * up, `gate` being the exact value after the activation; their sums are as far off as any. */
double weft_bound_gated(const weft_problem *problem, int world, double gate_magnitude, double gate,
                        double up_magnitude, double up);

/* A reduction of one element over `world` ranks, `magnitude` being the sum of absolute values. */
double weft_bound_reduce(weft_dtype dtype, int world, double magnitude, double exact);

#endif
