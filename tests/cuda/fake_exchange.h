/* Products by themselves and their sums as marked words, on the fake GPU (src/run/cuda/exchange.h, splitk.h).
 */
#ifndef WEFT_TESTS_CUDA_FAKE_EXCHANGE_H
#define WEFT_TESTS_CUDA_FAKE_EXCHANGE_H

#include "fake_gpu.h"

/* The steps of an exchange. Those that wait give the rank which has not sent what they need, or -1. */
void fake_exchange_send_all(const weft_cuda_exchange *exchange);
int fake_exchange_await(const weft_cuda_exchange *exchange);
void fake_exchange_add_up(const weft_cuda_exchange *exchange);
int fake_exchange_await_results(const weft_cuda_exchange *exchange); /* of the rows that others finish */
void fake_exchange_take(const weft_cuda_exchange *exchange);

typedef struct fake_splitk {
    weft_cuda_splitk args;
    weft_cuda_exchange exchange; /* where it sends */
    bool sends, sent;            /* sent: slices send each other their sums */
    fake_map weights, tokens;
    int tile_tokens, tile_cols, form;
    uint32_t ctas, cluster;
} fake_splitk;

/* All of a product's kernel; frees its argument, a fake_splitk. */
void fake_splitk_run(void *splitk);

#endif
