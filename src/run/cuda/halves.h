/*
 * Unfused products whose other half is a collective by itself (3 as `exchange` of a tuning): all_reduce,
 * reduce_scatter or all_gather of the same bytes, by the kernel and the schedule that `auto` takes for it.
 * Its plan stands beside the product's, in the same block of memory, with signals and control in place of
 * those of the tasks that it replaces. What it moves lies without gaps: other operands are staged.
 *
 * The caller's operand need not be where peers reach it, but for D of a gemm_ar that is large: A is stored to
 * the others by its own rank, and what goes by packets or in one shot is received by its own rank. Staged, a
 * gemm_ar's sums stay with the ranks that add them up, in memory of the plan's, and every rank fetches them.
 */
#ifndef WEFT_RUN_CUDA_HALVES_H
#define WEFT_RUN_CUDA_HALVES_H

#include "choose/cuda/choose.h"
#include "run/cuda/program.h"

/* The part of the collective that stands beside `part`; without ranks (world 0) where none does. `packets`:
 * small ones may go so. */
weft_status weft_cuda_halves_make(const weft_plan_part *part, const weft_cuda_basis *basis, bool packets,
                                  weft_plan_part *collective, weft_error_text *error);

/* Whether the product itself needs an operand: the collective has replaced the tasks that had the others. */
bool weft_cuda_halves_keeps(const weft_plan_part *part, uint32_t operand);

/* Which of the caller's operands a collective reads or writes as one row: D, or A of an ag_gemm. */
int weft_cuda_halves_role(const weft_problem *problem);

/* The role of the product that peers touch in it, as a bit; 0: none. */
uint32_t weft_cuda_halves_touched(const weft_plan_part *part, const weft_plan_part *collective);

/* The bytes of its inboxes on every rank; 0: it has none. */
size_t weft_cuda_halves_bytes(const weft_plan_part *collective, weft_cuda_wire wire);

/* Where the operands of the collective of a binding lie, [operand * world + rank]: the product's own, and
 * from inboxes[rank] on. */
void weft_cuda_halves_places(const weft_plan_part *part, const weft_cuda_binding *binding,
                             weft_cuda_place *out);

#endif
