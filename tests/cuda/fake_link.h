/* What stands for the peers of a rank in the loop, on the fake GPU: no time passes on its link. */
#ifndef WEFT_TESTS_CUDA_FAKE_LINK_H
#define WEFT_TESTS_CUDA_FAKE_LINK_H

#include "bench/cuda/link.h"

#include <stdbool.h>

/* In the order of the device's kernels. */
typedef enum fake_link_kind { FAKE_LINK_SIGNALS, FAKE_LINK_PACKETS, FAKE_LINK_LINES } fake_link_kind;

/* A CTA of so many answers one run, if the rank has come so far: whether it did. */
bool fake_link_step(const weft_cuda_link *link, fake_link_kind by, uint32_t cta, uint32_t ctas);

/* How many runs a CTA has answered. */
uint64_t fake_link_answered(const weft_cuda_link *link, uint32_t cta);

#endif
