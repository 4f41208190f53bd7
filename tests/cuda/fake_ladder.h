/* The ladder of `weft bench moe` on the fake GPU: its kernels' own text, one thread a CTA. */
#ifndef WEFT_TESTS_CUDA_FAKE_LADDER_H
#define WEFT_TESTS_CUDA_FAKE_LADDER_H

#include "bench/cuda/ladder_device.h"

#include <stdbool.h>

/* The kernel of a name; -1: there is none. */
int fake_ladder_find(const char *name);

/* Before its first CTA. */
void fake_ladder_begin(const ladder_args *args, ladder_kernel kernel);

/* Runs a CTA, unless that would wait: then false, and nothing has happened. */
bool fake_ladder_run(const ladder_args *args, ladder_kernel kernel, uint32_t cta, uint32_t ctas);

#endif
