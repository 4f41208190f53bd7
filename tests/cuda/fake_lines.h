/* Collectives by lines on the fake GPU, as src/run/cuda/lines.cu does it: the parts of fake_packets.h. */
#ifndef WEFT_TESTS_CUDA_FAKE_LINES_H
#define WEFT_TESTS_CUDA_FAKE_LINES_H

#include "fake_packets.h"

void fake_lines_send(const weft_cuda_packets *packets, fake_chunk chunk);
int fake_lines_await(const weft_cuda_packets *packets, fake_chunk chunk, int hop);
void fake_lines_receive(const weft_cuda_packets *packets, fake_chunk chunk, int hop);

#endif
