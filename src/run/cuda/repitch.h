/*
 * A and B whose lines do not begin on 16 bytes, or where k ends between them: the copy engine knows nothing
 * finer. A rank's own are copied into padded memory by a launch before the walker's. That costs reading and
 * writing them once, where loading them element by element would cost several times the product. So are those
 * of fp8 whose lines do not go along k, which the tensor cores want, if that makes both go along it.
 */
#ifndef WEFT_RUN_CUDA_REPITCH_H
#define WEFT_RUN_CUDA_REPITCH_H

#include "run/cuda/driver.h"
#include "run/cuda/program.h"

enum { WEFT_CUDA_REPITCHED_MAX = 2 };

typedef struct weft_cuda_repitched {
    weft_cuda_repitch copies[WEFT_CUDA_REPITCHED_MAX];
    int count;
    CUdeviceptr memory;
    size_t bytes;
} weft_cuda_repitched;

/* Finds what a rank must copy, takes the memory and changes `places` to it. `whole`: lines along k must end
 * on a vector, too, as Hopper's copy engine and libraries of fp8 want it. `turned`: the part's operands, of
 * which those that are turned are said to lie so; NULL: nothing is turned. */
weft_status weft_cuda_repitched_make(weft_cuda_device *device, const weft_plan_part *part, bool whole,
                                     weft_cuda_place *places, weft_operand *turned, weft_cuda_repitched *made,
                                     weft_error_text *error);
void weft_cuda_repitched_free(weft_cuda_device *device, weft_cuda_repitched *repitched);

/* Enqueues the copies. */
weft_status weft_cuda_repitched_launch(const weft_cuda_device *device, const weft_cuda_repitched *repitched,
                                       CUstream stream, weft_error_text *error);

#endif
