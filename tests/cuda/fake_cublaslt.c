/* See fake_cublaslt.h. */
#include "fake_cublaslt.h"
#include "fake_gpu.h"

#include "core/dtype.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const int64_t LOAD_NS = 3000000000;

enum {
    SCHEME_AT = 0, /* in an algorithm; then come the alignments it was promised */
    TILE_AT = 5,
    ALGORITHMS = 5,
    TRUE_SCHEME = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    WORKSPACE_BYTES = 4096
};

enum { SLOW_TILE = CUBLASLT_MATMUL_TILE_512x64, FAST_TILE = CUBLASLT_MATMUL_TILE_64x64 };

typedef struct fake_desc {
    cublasOperation_t transa, transb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
} fake_desc;

typedef struct fake_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
} fake_layout;

typedef struct fake_preference {
    uint32_t schemes, alignment[4];
} fake_preference;

static _Atomic long products, objects;
static _Atomic bool wrong;

static void *make(size_t bytes)
{
    objects++;
    return calloc(1, bytes);
}

static cublasStatus_t drop(void *object)
{
    objects--;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t create(cublasLtHandle_t *handle)
{
    *handle = make(1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(cublasLtHandle_t handle)
{
    return drop(handle);
}

static size_t version(void)
{
    return 130100;
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                  cudaDataType_t scale)
{
    *desc = make(sizeof(fake_desc));
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc)
{
    return drop(desc);
}

static cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                               const void *value, size_t bytes)
{
    fake_desc *d = (fake_desc *)desc;
    void *to = attribute == CUBLASLT_MATMUL_DESC_TRANSA         ? (void *)&d->transa
               : attribute == CUBLASLT_MATMUL_DESC_TRANSB       ? (void *)&d->transb
               : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE     ? (void *)&d->epilogue
               : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? (void *)&d->bias
                                                                : NULL;

    if (!to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                    uint64_t cols, int64_t ld)
{
    fake_layout *made = make(sizeof(*made));

    *made = (fake_layout){type, rows, cols, ld};
    *layout = (cublasLtMatrixLayout_t)made;
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout);
}

static cublasStatus_t preference_create(cublasLtMatmulPreference_t *preference)
{
    *preference = make(sizeof(fake_preference));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference);
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                     size_t bytes)
{
    fake_preference *p = (fake_preference *)preference;

    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&p->schemes, value, bytes);
    else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* An algorithm is its scheme, its tile and the alignments it was promised. */
static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int asked,
                                cublasLtMatmulHeuristicResult_t *found, int *count)
{
    static const uint32_t schemes[ALGORITHMS] = {CUBLASLT_REDUCTION_SCHEME_INPLACE,
                                                 CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, TRUE_SCHEME,
                                                 TRUE_SCHEME, TRUE_SCHEME},
                          tiles[ALGORITHMS] = {CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_TILE_64x64,
                                               SLOW_TILE, FAST_TILE, CUBLASLT_MATMUL_TILE_UNDEFINED};
    const fake_preference *p = (const fake_preference *)preference;
    bool fp8 = ((const fake_layout *)a)->type == CUDA_R_8F_E4M3,
         none = fp8 && (p->alignment[0] | p->alignment[1]) % 16;

    (void)handle, (void)desc, (void)b, (void)c, (void)d;
    wrong = wrong || p->schemes != TRUE_SCHEME;
    for (*count = 0; *count < ALGORITHMS && *count < asked && !none; (*count)++) {
        found[*count] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = WORKSPACE_BYTES};
        found[*count].algo.data[SCHEME_AT] = schemes[*count];
        found[*count].algo.data[TILE_AT] = tiles[*count];
        for (int i = 0; i < 4; i++)
            found[*count].algo.data[1 + i] = p->alignment[i];
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t config(const cublasLtMatmulAlgo_t *algorithm,
                             cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t bytes,
                             size_t *written)
{
    bool tile = attribute == CUBLASLT_ALGO_CONFIG_TILE_ID;

    if ((!tile && attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) || bytes != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    *(uint32_t *)value = (uint32_t)algorithm->data[tile ? TILE_AT : SCHEME_AT];
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static weft_dtype dtype_of(const fake_layout *layout)
{
    return layout->type == CUDA_R_16F       ? WEFT_F16
           : layout->type == CUDA_R_16BF    ? WEFT_BF16
           : layout->type == CUDA_R_8F_E4M3 ? WEFT_FP8_E4M3
                                            : WEFT_F32;
}

static double get(const fake_layout *layout, const void *at, uint64_t row, uint64_t col)
{
    return weft_element_get(dtype_of(layout), at, (size_t)(row + col * (uint64_t)layout->ld));
}

static bool aligned(const void *at, uint64_t promised)
{
    return promised > 0 && (uintptr_t)at % promised == 0;
}

typedef struct fake_product {
    fake_desc desc;
    fake_layout a, b, c, d;
    const void *a_at, *b_at, *c_at;
    void *d_at;
    float alpha, beta;
} fake_product;

static void multiply(void *argument)
{
    fake_product *p = argument;
    bool ta = p->desc.transa == CUBLAS_OP_T, tb = p->desc.transb == CUBLAS_OP_T;
    uint64_t depth = ta ? p->a.rows : p->a.cols;

    for (uint64_t col = 0; col < p->d.cols; col++)
        for (uint64_t row = 0; row < p->d.rows; row++) {
            double sum = 0;

            for (uint64_t k = 0; k < depth; k++)
                sum += (ta ? get(&p->a, p->a_at, k, row) : get(&p->a, p->a_at, row, k)) *
                       (tb ? get(&p->b, p->b_at, col, k) : get(&p->b, p->b_at, k, col));
            sum *= p->alpha;
            if (p->beta != 0)
                sum += p->beta * get(&p->c, p->c_at, row, col);
            if (p->desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
                sum += weft_element_get(dtype_of(&p->d), p->desc.bias, (size_t)row);
            if (p->desc.epilogue & CUBLASLT_EPILOGUE_RELU && sum < 0)
                sum = 0;
            weft_element_set(dtype_of(&p->d), p->d_at, (size_t)(row + col * (uint64_t)p->d.ld), sum);
        }
    free(p);
}

/* As some drivers do, a kernel is loaded when it is first launched, once all that runs has ended. What the
 * library multiplies by one kernel nobody knows: here it is a shape. */
static void load(const fake_product *p)
{
    enum { SHAPES_MAX = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t rows, cols, depth;
    } loaded[SHAPES_MAX];
    static int count;
    bool found = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++)
        found = loaded[i].rows == p->d.rows && loaded[i].cols == p->d.cols &&
                loaded[i].depth == p->a.rows * p->a.cols;
    if (!found && count < SHAPES_MAX) {
        loaded[count].rows = p->d.rows;
        loaded[count].cols = p->d.cols;
        loaded[count++].depth = p->a.rows * p->a.cols;
        wrong = !fake_gpu_settle(LOAD_NS) || wrong;
    }
    pthread_mutex_unlock(&lock);
}

static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                             const void *a_at, cublasLtMatrixLayout_t a, const void *b_at,
                             cublasLtMatrixLayout_t b, const void *beta, const void *c_at,
                             cublasLtMatrixLayout_t c, void *d_at, cublasLtMatrixLayout_t d,
                             const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                             cudaStream_t stream)
{
    fake_product *p = malloc(sizeof(*p));

    (void)handle;
    wrong = wrong || algorithm->data[SCHEME_AT] != TRUE_SCHEME ||
            algorithm->data[TILE_AT] !=
                (((const fake_layout *)a)->type == CUDA_R_8F_E4M3 ? SLOW_TILE : FAST_TILE) ||
            !workspace || workspace_bytes < WORKSPACE_BYTES || !aligned(a_at, algorithm->data[1]) ||
            !aligned(b_at, algorithm->data[2]) || !aligned(c_at, algorithm->data[3]) ||
            !aligned(d_at, algorithm->data[4]);
    products++;
    *p = (fake_product){*(const fake_desc *)desc,
                        *(const fake_layout *)a,
                        *(const fake_layout *)b,
                        *(const fake_layout *)c,
                        *(const fake_layout *)d,
                        a_at,
                        b_at,
                        c_at,
                        d_at,
                        *(const float *)alpha,
                        *(const float *)beta};
    load(p);
    return fake_gpu_call(multiply, p, (CUstream)stream) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static _Atomic bool present;

const weft_cublaslt *fake_cublaslt(void)
{
    static const weft_cublaslt calls = {create,
                                        destroy,
                                        version,
                                        matmul,
                                        desc_create,
                                        desc_destroy,
                                        desc_set,
                                        layout_create,
                                        layout_destroy,
                                        preference_create,
                                        preference_destroy,
                                        preference_set,
                                        heuristic,
                                        config};

    return present ? &calls : NULL;
}

void fake_cublaslt_install(bool found)
{
    present = found;
}

long fake_cublaslt_take_products(void)
{
    return atomic_exchange(&wrong, false) ? -1 : atomic_exchange(&products, 0);
}

long fake_cublaslt_objects(void)
{
    return objects;
}
