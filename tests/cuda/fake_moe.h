/* The kernels of mixture of experts on the fake GPU, CTA by CTA: the same arrays and the same protocol as
 * src/run/cuda/moe.cu, in plain loops. */
#ifndef WEFT_TESTS_CUDA_FAKE_MOE_H
#define WEFT_TESTS_CUDA_FAKE_MOE_H

#include "run/cuda/moe.h"

/* The first rank whose posts a CTA of the kernel waits for; -1: it can run. `round`: which it is. */
int fake_moe_awaits(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                    uint32_t cta, uint64_t *round);

/* What a CTA of MOVE does before it waits: its rows to all ranks. */
void fake_moe_move(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, uint32_t cta);

void fake_moe_run(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                  uint32_t cta, uint32_t ctas);

#endif
