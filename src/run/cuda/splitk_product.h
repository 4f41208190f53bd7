/*
 * A product that the kernels weft_splitk_* make (splitk.h), ready to run. It is the product of a rank alone,
 * or the one GEMM task of an unfused plan, as with cuBLASLt; a problem's tuning says so (`library` = 3).
 */
#ifndef WEFT_RUN_CUDA_SPLITK_PRODUCT_H
#define WEFT_RUN_CUDA_SPLITK_PRODUCT_H

#include "choose/cuda/splitk_ways.h"
#include "run/cuda/driver.h"
#include "run/cuda/exchange.h"
#include "run/cuda/program.h"
#include "run/cuda/splitk.h"
#include "run/cuda/tail.h"

/* A product that is ready to run; `kernel` NULL: none. */
typedef struct weft_splitk_product {
    CUfunction kernel;
    weft_cuda_splitk args;
    unsigned grid, cluster, threads, shared_bytes;
    CUdeviceptr memory; /* of groups of slices */
    size_t memory_bytes;
    bool early; /* may come in while the kernel before it ends */
    bool sends; /* its sums to other ranks, and does not store them */
    bool fits;  /* all of it is on a GPU that ranks share at once: it may wait for theirs */
    weft_cuda_extent weights;
} weft_splitk_product;

/* The product of a part whose problem says so, of several ranks that of its GEMM task. `product->kernel` is
 * NULL, which is no error, where the operands are not aligned. `crews`: the rank's share of the GPU's. `way`
 * NULL: the fastest. */
weft_status weft_splitk_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                     const weft_cuda_place *places, const weft_task *task, int crews,
                                     const weft_splitk_way *way, weft_splitk_product *product,
                                     weft_error_text *error);
void weft_splitk_product_free(weft_cuda_device *device, weft_splitk_product *product);

/* Enqueues it; where it sends, with `exchange`. `ahead`: no kernel that may still run when it is let in
 * writes the weights, so the first of them are asked for at once. */
weft_status weft_splitk_product_launch(weft_cuda_device *device, const weft_splitk_product *product,
                                       const weft_cuda_exchange *exchange, bool ahead, CUstream stream,
                                       weft_error_text *error);

#endif
