/*
 * Products that the kernels weft_splitk_* make (splitk.h): which there are, how such a one is divided, and a
 * rank's own ready to run. It is the product of a rank alone, or the one GEMM task of an unfused plan, as
 * with cuBLASLt; a problem's tuning says so (`library` = 3).
 */
#ifndef WEFT_RUN_CUDA_SPLITK_PRODUCT_H
#define WEFT_RUN_CUDA_SPLITK_PRODUCT_H

#include "run/cuda/driver.h"
#include "run/cuda/exchange.h"
#include "run/cuda/program.h"
#include "run/cuda/splitk.h"

/* How a product is divided: see splitk.h. */
typedef struct weft_splitk_way {
    int tile; /* of WEFT_CUDA_SPLITK_TILES, */
    int down; /* so many for all rows, evenly */
    int sharers, slices, groups;
    bool sent; /* sums of slices, to those that add them up */
    double ns;
} weft_splitk_way;

/* Whether the product of a rank of `world` is one that the kernels make: 16-bit types, A by rows, no batch.
 */
bool weft_splitk_makes(const weft_problem *problem, int world);

/* The fastest way for m x n x k on a GPU with that many SMs, and of more than 32 rows how long it takes, by a
 * model. */
weft_splitk_way weft_splitk_fastest(int64_t m, int64_t n, int64_t k, bool transb, int sms);

/* Calls visit(context, way) with every way of more than 32 rows that is worth a thought. */
typedef void weft_splitk_visit(void *context, const weft_splitk_way *way);
void weft_splitk_ways(int64_t m, int64_t n, int64_t k, bool transb, int sms, weft_splitk_visit *visit,
                      void *context);

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
} weft_splitk_product;

/* The product of a part whose problem says so, of several ranks that of its GEMM task. `product->kernel` is
 * NULL, which is no error, where the operands are not aligned. `crews`: the rank's share of the GPU's. `way`
 * NULL: the fastest. */
weft_status weft_splitk_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                     const weft_cuda_place *places, const weft_task *task, int crews,
                                     const weft_splitk_way *way, weft_splitk_product *product,
                                     weft_error_text *error);
void weft_splitk_product_free(weft_cuda_device *device, weft_splitk_product *product);

/* Enqueues it; where it sends, with `exchange`. */
weft_status weft_splitk_product_launch(weft_cuda_device *device, const weft_splitk_product *product,
                                       const weft_cuda_exchange *exchange, CUstream stream,
                                       weft_error_text *error);

#endif
