/* Collectives as packets on the fake GPU: what a CTA sends, awaits and receives of its chunk, packets (or
 * lines) `first` to `end`, in each of its hops. */
#ifndef WEFT_TESTS_CUDA_FAKE_PACKETS_H
#define WEFT_TESTS_CUDA_FAKE_PACKETS_H

#include "run/cuda/collective.h"

typedef struct fake_chunk {
    int64_t first, end;
    uint64_t epoch; /* of the run that is under way */
} fake_chunk;

fake_chunk fake_packets_chunk(const weft_cuda_packets *packets, uint32_t cta);
void fake_packets_send(const weft_cuda_packets *packets, fake_chunk chunk);

/* The first rank whose packets are not there; -1 when all are. */
int fake_packets_await(const weft_cuda_packets *packets, fake_chunk chunk, int hop);
void fake_packets_receive(const weft_cuda_packets *packets, fake_chunk chunk, int hop);

#endif
