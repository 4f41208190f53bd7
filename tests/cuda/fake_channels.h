/* Collectives with counts and messages on the fake GPU: what a CTA of weft_channels does
 * (run/cuda/channel.h), a chunk at a time. */
#ifndef WEFT_TESTS_CUDA_FAKE_CHANNELS_H
#define WEFT_TESTS_CUDA_FAKE_CHANNELS_H

#include "run/cuda/channel.h"

#include <stdbool.h>

/* How far a CTA is: its job, and the round of it. */
typedef struct fake_progress {
    int64_t round;
    int32_t job; /* of those that are its, by their number */
    bool ends;   /* all chunks are through, and jobs end */
} fake_progress;

/* A step of it: whether anything happened. `over`: it has done all. */
bool fake_channels_step(const weft_cuda_channels *channels, uint32_t cta, uint32_t ctas, fake_progress *at,
                        bool *over);

/* Whom it waits for, or -1. */
int fake_channels_await(const weft_cuda_channels *channels, uint32_t cta, uint32_t ctas,
                        const fake_progress *at);

#endif
