/* Products in bfloat16, and a block of memory with the operands of one of at most 64 x 64 x 64. */
#ifndef WEFT_TESTS_CUDA_SMALL_PRODUCT_H
#define WEFT_TESTS_CUDA_SMALL_PRODUCT_H

#include <weft/weft.h>

enum { BLOCK_BYTES = 3 * 16384 };

static inline weft_problem product(int64_t m, int64_t n, int64_t k)
{
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
    p.m = m, p.n = n, p.k = k;
    p.dtype = p.d_dtype = WEFT_BF16;
    return p;
}

static inline weft_operands operands_in(char *block)
{
    return (weft_operands){
        .size = sizeof(weft_operands), .a = block, .b = block + 16384, .d = block + 2 * 16384};
}

#endif
