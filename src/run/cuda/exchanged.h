/*
 * Plans whose sums go as marked words, for the kernels of exchange.h: their parameters instead of the arrays
 * of task.h.
 */
#ifndef WEFT_RUN_CUDA_EXCHANGED_H
#define WEFT_RUN_CUDA_EXCHANGED_H

#include "run/cuda/exchange.h"
#include "run/cuda/program.h"

/* Whether a plan's sums go so. */
bool weft_cuda_is_exchanged(const weft_plan_part *part);

/* Bytes that an operand of such a plan needs where sums are stored into it; 0 for the others. */
size_t weft_cuda_exchange_bytes(const weft_plan_part *part, uint32_t operand);

/* Bytes of sums that a rank sends to others. */
int64_t weft_cuda_exchange_sent(const weft_plan_part *part);

/* `sent`: the kernel that multiplies sends them. */
void weft_cuda_exchange_make(const weft_plan_part *part, const weft_cuda_binding *binding, bool sent,
                             weft_cuda_exchange *exchange);

/* Whether weft_exchange_bf16 or _f16 does it, not weft_exchange. */
bool weft_cuda_exchange_by_lines(const weft_cuda_exchange *exchange);

/* CTAs of the kernel, at most `most`; threads of each. */
unsigned weft_cuda_exchange_grid(const weft_cuda_exchange *exchange, bool by_lines, int most);
unsigned weft_cuda_exchange_threads(const weft_cuda_exchange *exchange, bool by_lines, int most);

#endif
