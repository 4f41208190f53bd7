/* The grouped-GEMM kernel on the fake GPU: the same parameters and the same results as
 * src/run/cuda/grouped_sm90.cu, in plain loops. */
#ifndef WEFT_TESTS_CUDA_FAKE_GROUPED_H
#define WEFT_TESTS_CUDA_FAKE_GROUPED_H

#include "run/cuda/grouped.h"

/* In the order of the stream. False: there is no room. */
bool fake_grouped(const weft_cuda_grouped_launch *launch, CUstream stream);

#endif
