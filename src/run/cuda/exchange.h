/*
 * Sums of a product as packets (`exchange` of a tuning): what the kernels weft_splitk_send_* and
 * weft_exchange are given. Included by C and by CUDA.
 *
 * A rank adds up its part of the rows, or in a gemm_ar of one hop all of them. Its inbox has a row of packets
 * for every rank, its own included: the kernel that multiplies stores there, and either it or a kernel behind
 * it waits for all ranks' packets and adds them up, in rank order. In two hops the owner of rows then sends
 * what it finished, as packets too. A packet is 8 bytes of payload and the run's number: see collective.h,
 * also for why inboxes are doubled by parity and nothing else orders runs. That needs every rank to hear from
 * every other one in every run, so every rank has rows.
 */
#ifndef WEFT_RUN_CUDA_EXCHANGE_H
#define WEFT_RUN_CUDA_EXCHANGE_H

#include "task.h"

enum {
    WEFT_CUDA_EXCHANGE_RANKS = 32, /* what fits the parameters of a kernel */
    WEFT_CUDA_EXCHANGE_WIDTH = 8,  /* columns of a row that a thread handles together */
    WEFT_CUDA_EXCHANGE_THREADS = 256,
};

typedef struct weft_cuda_exchange {
    weft_cuda_control *control; /* counts the runs */
    int32_t m, n, world, rank;
    int32_t row0, rows;  /* that this rank adds up */
    int32_t scattered;   /* sums go to the owner of their rows only, not to every rank */
    int32_t returns;     /* owners send what they finished to all */
    int32_t receives;    /* weft_splitk_send_*: adds up, too */
    int32_t wire, dtype; /* weft_dtype of sums that travel; of D, C and bias */
    int64_t inbox_bytes; /* of one parity, and of results; between their two instances */
    int64_t row_bytes, results_bytes;
    char *to[WEFT_CUDA_EXCHANGE_RANKS];      /* each rank's inbox: this rank's row of it */
    char *results[WEFT_CUDA_EXCHANGE_RANKS]; /* each rank's inbox of results */
    const char *inbox;                       /* row 0 of this rank's */
    const void *sums;                        /* weft_exchange: NULL, or sums that it sends first */
    int64_t sums_ld;
    void *d;
    const void *c, *bias; /* NULL: none */
    int64_t d_ld, c_ld;
    int32_t wide;       /* D allows accesses of 16 bytes, every 8 columns */
    int32_t d_from_row; /* the row of the product that D's first is */
    float alpha, beta;
    int32_t act, changes;               /* changes: the epilogue does more than store */
    weft_cuda_control *const *controls; /* every rank's */
    const uint32_t *stop;               /* NULL, or a word of host memory: not zero ends the run */
    uint64_t deadline_ns;
    /* weft_exchange_link: see emulate.h; packets have come this long after they were sent */
    struct weft_cuda_emulation *link;
    int64_t link_ns;
} weft_cuda_exchange;

#endif
