/*
 * The unfused half of the operations that multiply first: the whole local product (Stream-K, or one task
 * where a library makes it), then one announcement to all peers that it is there.
 */
#ifndef WEFT_PLAN_GEMM_WHOLE_H
#define WEFT_PLAN_GEMM_WHOLE_H

#include "plan/stream_k.h"

typedef struct weft_gemm_whole {
    weft_gemm_gen *gen;
    weft_stream_k stream; /* not where a library multiplies */
    int64_t cols, tasks;  /* that finish a piece of the product */
    uint32_t target;      /* operand of this rank that receives the product */
    int64_t target_col;   /* where its first column lies there */
    bool copies;          /* what `target` receives, the results that are staged receive too */
    bool epilogue;
    uint32_t finished; /* counts tiles */
} weft_gemm_whole;

/* Declares what is needed; `cols` of the local B take part. */
weft_gemm_whole weft_gemm_whole_begin(weft_gemm_gen *gen, int64_t cols);

/* Multiplies, and gates all lanes behind it. */
void weft_gemm_whole_multiply(weft_gemm_whole *whole);

/* The same, then posts `ready` once at every peer. */
void weft_gemm_whole_run(weft_gemm_whole *whole, uint32_t ready);

/* The product of the whole local A and B as sums that every rank reads, all lanes gated behind those of all
 * ranks. Returns the operand they are in; of a rank that is alone the product is finished, and that is D. */
uint32_t weft_gemm_whole_sums(weft_gemm_gen *gen);

#endif
