/*
 * Epilogues that no kernel of a product applies to its tile: gated activations, factors of rows and columns
 * beside types other than fp8, values that lie in memory of the GPU. The product is a plan of its own, of the
 * same operation and schedule, whose D are its sums in float32, in symmetric memory that the plan has for
 * them; behind it, on the same stream, one kernel makes D of them. Sums are the same bits as ever, and so is
 * what is made of them; what communication overlaps with stays as it is. It costs writing and reading 4 bytes
 * for every sum, and a launch; gemm_ar and gemm_as move their D as float32, too.
 *
 * A problem that asks for such an epilogue has a plan that is nothing else. Another plan gets one with its
 * first run that needs it, which is collective unless each rank made the plan by itself (unmet.h).
 */
#ifndef WEFT_RUN_CUDA_EPILOGUE_H
#define WEFT_RUN_CUDA_EPILOGUE_H

#include "run/cuda/plan.h"

/* Whether all epilogues of a problem are such. */
bool weft_cuda_epilogue_always(const weft_problem *problem);

/* Whether that of a run is one, on all ranks alike. */
bool weft_cuda_epilogue_needed(const struct weft_plan *plan, const weft_operands *operands,
                               const weft_cuda_values *values);

/* Collective: the product by itself, and memory for its sums; the first fills a plan of such a problem. */
weft_status weft_cuda_epilogue_create(struct weft_plan *plan);
weft_status weft_cuda_epilogue_make(struct weft_plan *plan);
/* The first of them by each rank itself, as weft_cuda_unmet_make. */
bool weft_cuda_epilogue_alone(struct weft_plan *plan, weft_status *status);
/* Not collective: when the GPU is done with it, or after the group's deadline. */
void weft_cuda_epilogue_free(struct weft_plan *plan);

/* On the stream: the product and its epilogue. */
weft_status weft_cuda_epilogue_run(struct weft_plan *plan, const weft_operands *operands,
                                   const weft_cuda_values *values, void *stream);

#endif
