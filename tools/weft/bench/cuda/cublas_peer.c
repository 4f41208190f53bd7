#include "bench/cuda/cublas_peer.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>

static void *open_library(void)
{
    static const char *const places[] = {
        "/usr/local/cuda/lib64/libcublasLt.so.*",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.*",
        "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.*"};
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; !library && i < sizeof(places) / sizeof(places[0]); i++) {
        glob_t found = {0};
        if (glob(places[i], 0, NULL, &found) == 0)
            library = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return library;
}

int cublas_peer_open(cublas_peer *peer, const weft_cuda_driver *cu)
{
    cublas_peer opened = {.cu = cu, .library = open_library(), .workspace_bytes = (size_t)64 << 20};
    if (!opened.library)
        return -1;
    *(void **)&opened.create = dlsym(opened.library, "cublasLtCreate");
    *(void **)&opened.destroy = dlsym(opened.library, "cublasLtDestroy");
    *(void **)&opened.get_version = dlsym(opened.library, "cublasLtGetVersion");
    *(void **)&opened.matmul = dlsym(opened.library, "cublasLtMatmul");
    *(void **)&opened.desc_create = dlsym(opened.library, "cublasLtMatmulDescCreate");
    *(void **)&opened.desc_set = dlsym(opened.library, "cublasLtMatmulDescSetAttribute");
    *(void **)&opened.layout_create = dlsym(opened.library, "cublasLtMatrixLayoutCreate");
    *(void **)&opened.preference_create = dlsym(opened.library, "cublasLtMatmulPreferenceCreate");
    *(void **)&opened.preference_set = dlsym(opened.library, "cublasLtMatmulPreferenceSetAttribute");
    *(void **)&opened.heuristic = dlsym(opened.library, "cublasLtMatmulAlgoGetHeuristic");
    if (!opened.create || !opened.get_version || !opened.matmul || !opened.desc_create || !opened.desc_set ||
        !opened.layout_create || !opened.preference_create || !opened.preference_set || !opened.heuristic ||
        opened.create(&opened.handle))
        return -1;
    opened.version = opened.get_version();
    if (cu->cuMemAlloc(&opened.workspace, opened.workspace_bytes) != CUDA_SUCCESS)
        return -1;
    *peer = opened;
    return 0;
}

/* cuBLAS counts by columns: the row-major product is B transposed times A transposed. */
static int make_product(cublas_peer *peer, int64_t m, int64_t n, int64_t k, cudaDataType_t type, bool along_k,
                        cublas_product *product)
{
    cublas_product made = {0};
    cublasLtMatmulPreference_t preference;
    cublasOperation_t turn = along_k ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (peer->desc_create(&made.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        peer->desc_set(made.desc, CUBLASLT_MATMUL_DESC_TRANSA, &turn, sizeof(turn)) ||
        peer->layout_create(&made.a, type, (uint64_t)k, (uint64_t)m, k) ||
        peer->layout_create(&made.b, type, (uint64_t)(along_k ? k : n), (uint64_t)(along_k ? n : k),
                            along_k ? k : n) ||
        peer->layout_create(&made.c, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n) ||
        peer->preference_create(&preference) ||
        peer->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &peer->workspace_bytes,
                             sizeof(peer->workspace_bytes)) ||
        peer->heuristic(peer->handle, made.desc, made.b, made.a, made.c, made.c, preference, PEER_CANDIDATES,
                        made.found, &made.count) ||
        made.count == 0)
        return -1;
    *product = made;
    return 0;
}

int cublas_product_make(cublas_peer *peer, int64_t m, int64_t n, int64_t k, cublas_product *product)
{
    return make_product(peer, m, n, k, CUDA_R_16BF, false, product);
}

int cublas_product_make_fp8(cublas_peer *peer, int64_t m, int64_t n, int64_t k, cublas_product *product)
{
    return make_product(peer, m, n, k, CUDA_R_8F_E4M3, true, product);
}

int cublas_product_run(cublas_peer *peer, const cublas_product *product, int candidate, const void *a,
                       const void *b, void *c, CUstream stream)
{
    float one = 1, zero = 0;
    return peer->matmul(peer->handle, product->desc, &one, b, product->b, a, product->a, &zero, c, product->c,
                        c, product->c, &product->found[candidate].algo, (void *)(uintptr_t)peer->workspace,
                        peer->workspace_bytes, stream)
               ? -1
               : 0;
}
