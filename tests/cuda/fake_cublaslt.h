/*
 * cuBLASLt for the fake GPU: the calls that the backend makes, on host memory. Its list of algorithms begins
 * with two that add up in place and in the output's type, which the backend must not take; then comes a slow
 * one, which it takes of fp8 alone, and a fast one. Of fp8 that does not lie on 16 bytes there is none.
 */
#ifndef WEFT_TESTS_CUDA_FAKE_CUBLASLT_H
#define WEFT_TESTS_CUDA_FAKE_CUBLASLT_H

#include "run/cuda/cublaslt.h"

/* Stands in for weft_cublaslt_source; fake_gpu() puts it there. */
const weft_cublaslt *fake_cublaslt(void);

/* From now on there is one, or (as at first) none. */
void fake_cublaslt_install(bool present);

/* Its products since the last call; -1 when one was asked for with a wrong algorithm, workspace or
 * alignment, or first while kernels ran that did not end. */
long fake_cublaslt_take_products(void);

/* Objects that were made and not destroyed. */
long fake_cublaslt_objects(void);

#endif
