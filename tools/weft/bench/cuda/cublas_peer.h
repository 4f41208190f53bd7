/* cuBLAS as a peer for the benchmarks, loaded at run time: the fastest of its default and its own candidates.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_CUBLAS_PEER_H
#define WEFT_TOOLS_BENCH_CUDA_CUBLAS_PEER_H

#include "run/cuda/driver.h"

#include <cublasLt.h>

enum { PEER_CANDIDATES = 8 };

typedef struct cublas_peer {
    const weft_cuda_driver *cu;
    cublasLtHandle_t handle;
    size_t version;
    CUdeviceptr workspace;
    size_t workspace_bytes;
    void *library;
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    size_t (*get_version)(void);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                             const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                             const cublasLtMatmulAlgo_t *, void *, size_t, CUstream);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                     const void *, size_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *);
} cublas_peer;

/* One row-major product C[m,n] = A[m,k] B[k,n], bfloat16 with float32 sums. */
typedef struct cublas_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t found[PEER_CANDIDATES];
    int count, best;
} cublas_product;

/* 0, or -1 where cuBLAS cannot be loaded. */
int cublas_peer_open(cublas_peer *peer, const weft_cuda_driver *cu);
/* The same of e4m3, for a B that is stored n x k; C is bfloat16. Sums are promoted on the way, its default.
 */
int cublas_product_make_fp8(cublas_peer *peer, int64_t m, int64_t n, int64_t k, cublas_product *product);
int cublas_product_make(cublas_peer *peer, int64_t m, int64_t n, int64_t k, cublas_product *product);
int cublas_product_run(cublas_peer *peer, const cublas_product *product, int candidate, const void *a,
                       const void *b, void *c, CUstream stream);

#endif
