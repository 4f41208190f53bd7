/* Which products the kernels that make one by themselves can make, and cuBLASLt: by the problem alone. */
#ifndef WEFT_CHOOSE_CUDA_MAKES_H
#define WEFT_CHOOSE_CUDA_MAKES_H

#include "plan/plan.h"

/* Whether every rank has something to multiply. */
bool weft_cuda_multiplies_everywhere(const weft_problem *problem, int world);

/* Whether the product of a rank of `world` is one that the kernels weft_splitk_* make: 16-bit types, A by
 * rows, no batch. */
bool weft_splitk_makes(const weft_problem *problem, int world);

/* Whether it is one that cuBLASLt makes as weft does: 16-bit types, no batch, no activation but relu and of
 * several ranks no bias (gemm_rs and gemm_ar: any, weft applies them to the sums). */
bool weft_cublaslt_makes(const weft_problem *problem, int world);

/* Whether a kernel can send its sums: in 1 or 2 hops, as `exchange` of a tuning. */
bool weft_cuda_exchanges(const weft_problem *problem, int world, int hops);

#endif
