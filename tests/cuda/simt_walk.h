/*
 * The walker for any GPU (src/run/cuda/walk_sm80.cu), its own text, run by the threads of simt.h in place of
 * the fake GPU's interpreter.
 */
#ifndef WEFT_TESTS_CUDA_SIMT_WALK_H
#define WEFT_TESTS_CUDA_SIMT_WALK_H

#include "run/cuda/task.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct simt_walk simt_walk;

typedef enum simt_kernel { SIMT_BF16, SIMT_F16, SIMT_FP8 } simt_kernel;

simt_walk *simt_walk_begin(const weft_cuda_args *args, uint32_t ctas, simt_kernel kernel);

/* Lets every CTA run until all its threads wait for others; whether any of them did more than look. */
bool simt_walk_step(simt_walk *walk);
bool simt_walk_over(const simt_walk *walk);
void simt_walk_free(simt_walk *walk);

/* Since the last call: matrices of eight lines that were loaded, and those of which two lines were in the
 * same banks; asynchronous copies, and products of warps. */
typedef struct simt_counts {
    long matrices, conflicts, copies, products;
} simt_counts;
simt_counts simt_take_counts(void);

#ifdef __cplusplus
}
#endif

#endif
