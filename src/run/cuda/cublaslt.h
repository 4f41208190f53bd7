/*
 * cuBLASLt, loaded at run time where it is installed: nothing of it is linked, and weft is whole without it.
 * A rank's own product goes to it where the plan says so (`library` of a problem's tuning): that of a rank
 * alone, or the one GEMM task of an unfused plan, before or after the kernel that does the rest.
 *
 * The same bits every run: the algorithm is one of cuBLASLt's own list that does not add up in place or in a
 * short type, the first or one that is clearly faster by a model (cublaslt_cost.h), so it depends on the
 * shape, the strides, the GPU and the version alone, and never on times. Of several ranks the products of a
 * group, whose runs follow each other, have one workspace; that of a rank alone belongs to the product.
 */
#ifndef WEFT_RUN_CUDA_CUBLASLT_H
#define WEFT_RUN_CUDA_CUBLASLT_H

#include "run/cuda/driver.h"
#include "run/cuda/program.h"

#include <cublasLt.h>

/* Name here, name in the library. */
#define WEFT_CUBLASLT_CALLS(X)                                                                               \
    X(create, cublasLtCreate)                                                                                \
    X(destroy, cublasLtDestroy)                                                                              \
    X(version, cublasLtGetVersion)                                                                           \
    X(matmul, cublasLtMatmul)                                                                                \
    X(desc_create, cublasLtMatmulDescCreate)                                                                 \
    X(desc_destroy, cublasLtMatmulDescDestroy)                                                               \
    X(desc_set, cublasLtMatmulDescSetAttribute)                                                              \
    X(layout_create, cublasLtMatrixLayoutCreate)                                                             \
    X(layout_destroy, cublasLtMatrixLayoutDestroy)                                                           \
    X(preference_create, cublasLtMatmulPreferenceCreate)                                                     \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy)                                                   \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute)                                                  \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic)                                                             \
    X(config, cublasLtMatmulAlgoConfigGetAttribute)

typedef struct weft_cublaslt {
#define WEFT_CUBLASLT_MEMBER(member, name) __typeof__(&name) member;
    WEFT_CUBLASLT_CALLS(WEFT_CUBLASLT_MEMBER)
#undef WEFT_CUBLASLT_MEMBER
} weft_cublaslt;

/* The library's functions; NULL where it is not installed, or WEFT_CUBLASLT turns it off. Tests put a fake
 * one there. */
extern const weft_cublaslt *(*weft_cublaslt_source)(void);

/* For people: the version that was found and what it is used for, or why there is none. */
void weft_cublaslt_describe(char *text, size_t bytes);

/* A product that is ready to run; `lt` NULL: none. */
typedef struct weft_cublaslt_product {
    const weft_cublaslt *lt;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t left, right, c, d; /* by columns: B, A, C and D transposed */
    cublasLtMatmulAlgo_t algorithm;
    CUdeviceptr workspace;
    size_t workspace_bytes;
    bool borrowed; /* the workspace is the group's */
    const void *left_at, *right_at, *c_at;
    void *d_at;
    float alpha, beta;
} weft_cublaslt_product;

/*
 * The product of a part whose problem says so, of several ranks that of its GEMM task. `product->lt` is NULL,
 * which is no error, where cuBLASLt is not there or not as good: operands of a rank alone that are not
 * aligned. `shared` (may be NULL) is the workspace that the group's products share; the first takes it.
 */
weft_status weft_cublaslt_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                       const weft_cuda_place *places, const weft_task *task,
                                       weft_cuda_workspace *shared, weft_cublaslt_product *product,
                                       weft_error_text *error);
void weft_cublaslt_product_free(weft_cuda_device *device, weft_cublaslt_product *product);

/* Enqueues it. */
weft_status weft_cublaslt_product_launch(const weft_cublaslt_product *product, CUstream stream,
                                         weft_error_text *error);

#endif
