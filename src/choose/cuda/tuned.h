/* What `weft tune` found for ranks on GPUs, in place of what choose.h decides. */
#ifndef WEFT_CHOOSE_CUDA_TUNED_H
#define WEFT_CHOOSE_CUDA_TUNED_H

#include "choose/cuda/choose.h"

/* What lines are kept for: ranks on GPUs of that name, which have so many crews each, with a GPU to
 * themselves or not. */
uint64_t weft_cuda_tuned_as(const char *gpu, int crews, bool whole);

/* Looks up a resolved problem that leaves everything open, on GPUs of that name, and sets its schedule and
 * tuning where there is a line for it. */
weft_status weft_cuda_tuned(const weft_cuda_basis *basis, const char *gpu, weft_problem *problem,
                            weft_error_text *error);

#endif
