/* See choose.h. */
#include "choose/cuda/choose.h"

#include "choose/cuda/decide.h"
#include "core/dtype.h"
#include "core/part.h"

enum {
    STAGED_LEAST = 4 << 20,    /* of an all_gather, that is faster so on a GPU that ranks share; */
    STAGED_OPERAND = 16 << 20, /* and of what peers touch of a rank in a product */
};

/* What peers touch of a rank's part of a product. */
static int64_t touched_bytes(const weft_problem *p, int world)
{
    weft_span part = p->layout == WEFT_LAYOUT_GATHER_B ? weft_problem_part_n(p, world, 0)
                                                       : weft_problem_part_m(p, world, 0);

    if (p->op != WEFT_OP_AG_GEMM)
        return p->l * p->m * p->n * (int64_t)weft_dtype_size(p->d_dtype);
    return p->l * part.count * p->k * (int64_t)weft_dtype_size(p->dtype);
}

/* Ranks that share a GPU share its memory's rate too: there chunks of a collective hide little, and its sums
 * take longer so. In a ring of a gemm_ar only the owner of a row writes it twice; the tiles of two_level are
 * fetched faster than they are copied by two ranks, and not by more. */
bool weft_cuda_chunks_pay(const weft_cuda_basis *b, const weft_problem *p)
{
    int64_t bytes = p->count * (int64_t)weft_dtype_size(p->dtype) * b->world;
    bool product = p->op < WEFT_OP_ALL_REDUCE,
         large = product && touched_bytes(p, b->world) >= STAGED_OPERAND;

    if (product && !weft_cuda_has_chunks(p, p->schedule, &p->tuning))
        return false;
    if (product && p->schedule == WEFT_SCHEDULE_UNFUSED)
        return b->whole || large;
    if (product && p->op == WEFT_OP_GEMM_AR)
        return b->whole || p->schedule != WEFT_SCHEDULE_TWO_LEVEL || b->world == 2;
    if (product)
        return b->whole || large;
    return b->whole || (p->op == WEFT_OP_ALL_GATHER && bytes >= STAGED_LEAST);
}

weft_problem weft_cuda_choose(const weft_cuda_basis *basis, const weft_problem *asked)
{
    return asked->op >= WEFT_OP_ALL_REDUCE ? weft_cuda_choose_collective(asked, basis)
                                           : weft_cuda_choose_product(asked, basis);
}
