/*
 * What the products are measured against on a GPU: cuBLAS, with the collective before or after it, one after
 * the other. The collective is weft's own, by plain copies and sums on all SMs.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_BASELINE_H
#define WEFT_TOOLS_BENCH_CUDA_BASELINE_H

#include "bench/cuda/cublas_peer.h"
#include "run/cuda/world.h"

typedef struct gpu_baseline {
    weft_cuda_world comm;
    weft_cuda_world second;        /* over a link: what gathers the sums of a gemm_ar again; or none */
    const weft_cuda_world *inputs; /* A and B of a rank's own product */
    const cublas_product *product;
    void *result;
    int products;    /* of all ranks that run: they share the one GPU */
    bool comm_first; /* gather, then multiply; else multiply, then sum or scatter */
    CUevent join;
} gpu_baseline;

/* The collective that the operation would need: its memory and its kernels on every rank that runs, paced by
 * an emulated link where the options have one. False where the ranks do not divide it evenly, or it cannot be
 * made. */
bool gpu_baseline_make(weft_cuda_device *device, const weft_problem *problem, int world,
                       const weft_cuda_world_options *options, gpu_baseline *baseline,
                       weft_error_text *error);
void gpu_baseline_free(gpu_baseline *baseline);

/* One round, on the streams of `comm`: begins and ends on the first. */
bool gpu_baseline_enqueue(gpu_baseline *baseline, cublas_peer *peer, weft_error_text *error);

/* The collective alone. */
bool gpu_baseline_enqueue_comm(gpu_baseline *baseline, weft_error_text *error);

#endif
