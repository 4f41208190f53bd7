/*
 * Sums of a product as marked words (`exchange` of a tuning): what the kernels weft_splitk_send_* and
 * weft_exchange, and weft_exchange_bf16 and _f16 by whole lines, are given. Included by C and by CUDA.
 *
 * A rank adds up its part of the rows, or in a gemm_ar of one hop all of them. Its inbox has those rows once
 * for every rank, its own included: the kernel that multiplies stores there, and either it or a kernel behind
 * it waits for all ranks' sums and adds them up, in rank order. In two hops the owner of rows then sends what
 * it finished, likewise.
 *
 * What arrives says itself that it has arrived, and all of it is payload: a word of 4 bytes in an inbox is 0
 * until it has come. It travels with all bits turned over, and the one word that would be 0 then, two NaNs or
 * a NaN, as another NaN. Whoever has read it makes it 0 again. Inboxes are doubled by parity: a rank writes
 * those of run e + 2 after it has finished e + 1, for which every peer sent it something, so every peer was
 * through with run e, zeros included. Nothing else orders runs. That needs every rank to hear from every
 * other one in every run, so every rank has rows.
 */
#ifndef WEFT_RUN_CUDA_EXCHANGE_H
#define WEFT_RUN_CUDA_EXCHANGE_H

#include "task.h"

enum {
    WEFT_CUDA_EXCHANGE_THREADS = 256,
    WEFT_CUDA_EXCHANGE_LINE = 8,     /* threads side by side, of a warp */
    WEFT_CUDA_EXCHANGE_TOGETHER = 8, /* ranks' lines, or lines of results, that it waits for at a time */
    WEFT_CUDA_UNIT_BYTES = 16,       /* that a thread stores at once: four words */
};

typedef struct weft_cuda_exchange {
    weft_cuda_control *control; /* counts the runs */
    int32_t m, n, world, rank;
    int32_t row0, rows;               /* that this rank adds up */
    int32_t m_each, m_more;           /* every rank m_each, the first m_more ranks one more: weft_part */
    float inverse_each, inverse_long; /* 1 / m_each, 1 / (m_each + 1) */
    int32_t scattered;                /* sums go to the owner of their rows only, not to every rank */
    int32_t returns;                  /* owners send what they finished to all */
    int32_t receives;                 /* weft_splitk_send_*: adds up, too */
    int32_t wire, dtype;              /* weft_dtype of sums that travel; of D, C and bias */
    int64_t inbox_bytes;              /* of one parity, and of results; between their two instances */
    int64_t row_bytes, results_bytes;
    char *to[WEFT_CUDA_EXCHANGE_RANKS];      /* each rank's inbox: this rank's row of it */
    char *results[WEFT_CUDA_EXCHANGE_RANKS]; /* each rank's inbox of results */
    char *inbox;                             /* row 0 of this rank's */
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
    struct weft_cuda_emulation *link; /* as of weft_cuda_args */
} weft_cuda_exchange;

#endif
