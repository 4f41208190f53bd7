/* See makes.h. */
#include "choose/cuda/makes.h"

#include "choose/cuda/kernels.h"
#include "core/dtype.h"
#include "core/part.h"

enum { VECTOR = 8 /* elements of 16 bytes */ };

bool weft_cuda_multiplies_everywhere(const weft_problem *p, int world)
{
    bool rows = p->op == WEFT_OP_AG_GEMM &&
                (p->layout == WEFT_LAYOUT_GATHER_B || p->layout == WEFT_LAYOUT_GATHER_B_K),
         sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    int last = world - 1; /* which has the least */

    return (rows ? weft_problem_part_m(p, world, last).count : p->m) > 0 &&
           (rows || sums ? p->n : weft_problem_part_n(p, world, last).count) > 0 &&
           (sums ? weft_problem_part_k(p, world, last).count : p->k) > 0;
}

/* The copy engine reads whole 16 bytes of lines, of which A has k and B n or k. */
bool weft_splitk_makes(const weft_problem *p, int world)
{
    bool sums = world > 1 && (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR);
    weft_dtype out = sums ? p->wire_dtype : p->d_dtype;
    int64_t k = sums ? p->k / world : p->k, n = world > 1 && !sums ? p->n / world : p->n;
    bool even =
        world == 1 || (sums ? weft_parts_even(p->k, p->granule_k, world, VECTOR) && p->n % VECTOR == 0
                            : weft_parts_even(p->n, p->granule_n, world, VECTOR) && p->k % VECTOR == 0);

    return p->op < WEFT_OP_ALL_REDUCE && (p->dtype == WEFT_F16 || p->dtype == WEFT_BF16) &&
           !weft_layout_gathers_k(p->layout) && (out == p->dtype || out == WEFT_F32) && p->l == 1 &&
           p->alpha != 0 && !p->transa && weft_cuda_multiplies_everywhere(p, world) && even &&
           k % VECTOR == 0 && (p->transb || n % VECTOR == 0) && p->m <= INT32_MAX && p->n <= INT32_MAX &&
           p->k <= INT32_MAX;
}

/* Of fp8 it has products along k of both, in whole vectors, and not of two e5m2. By default it promotes sums
 * to float32 on the way, as weft does. */
static bool takes_fp8(const weft_problem *p, int world, weft_dtype out)
{
    return p->dtype == WEFT_FP8_E4M3 && !p->transa && p->transb && !p->bias &&
           weft_parts_even(p->n, p->granule_n, world, 16) && weft_parts_even(p->k, p->granule_k, world, 16) &&
           (out == WEFT_F32 || out == WEFT_F16 || out == WEFT_BF16);
}

/* With alpha = 0 cuBLASLt may still read A and B. It takes a bias to lie on 16 bytes, which nobody knows
 * before a run, and columns of D in the middle of lines are slow; so of several ranks it is given neither.
 * Scales of a run are for weft's own kernels. */
bool weft_cublaslt_makes(const weft_problem *p, int world)
{
    bool sums = world > 1 && (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR);
    weft_dtype out = sums ? p->wire_dtype : p->d_dtype;

    bool halves = (p->dtype == WEFT_F16 || p->dtype == WEFT_BF16) && (out == p->dtype || out == WEFT_F32);

    return p->op < WEFT_OP_ALL_REDUCE && !p->scales && (halves || takes_fp8(p, world, out)) && p->l == 1 &&
           weft_cuda_multiplies_everywhere(p, world) && p->m <= INT32_MAX && p->n <= INT32_MAX &&
           p->k <= INT32_MAX && p->alpha != 0 &&
           (sums || p->act == WEFT_ACT_NONE || p->act == WEFT_ACT_RELU) && (sums || world == 1 || !p->bias) &&
           (world == 1 || p->op != WEFT_OP_GEMM_AS || weft_parts_even(p->n, p->granule_n, world, VECTOR));
}

bool weft_cuda_exchanges(const weft_problem *p, int world, int hops)
{
    bool rows = p->op == WEFT_OP_GEMM_RS ? p->layout != WEFT_LAYOUT_SCATTER_COLS : p->op == WEFT_OP_GEMM_AR,
         divided = p->op == WEFT_OP_GEMM_RS || hops == 2;

    return rows && !(divided && p->granule_m) && world > 1 && world <= WEFT_CUDA_EXCHANGE_RANKS &&
           hops <= (divided ? 2 : 1) && p->l == 1 && p->m >= (divided ? world : 1) && p->n > 0 &&
           p->n % WEFT_CUDA_EXCHANGE_WIDTH == 0 && p->wire_dtype <= WEFT_BF16 && p->d_dtype <= WEFT_BF16 &&
           p->m <= INT32_MAX / 2 && p->m * p->n <= INT32_MAX;
}
