/* See cublaslt.h. */
#include "run/cuda/cublaslt.h"

#include "core/env.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- the library ------------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    weft_cublaslt calls;
    bool ready;
} library = {.once = PTHREAD_ONCE_INIT};

/* By its name first: a program that has it, as PyTorch does, has it loaded already. */
static void *find_library(void)
{
    static const char *const places[] = {
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "/usr/local/cuda/lib64/libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.12",
    };
    const char *asked = weft_env_word(WEFT_ENV_CUBLASLT);
    void *handle = NULL;

    if (strcmp(asked, "off") == 0)
        return NULL;
    if (strcmp(asked, "auto") != 0)
        return dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; !handle && i < sizeof(places) / sizeof(places[0]); i++)
        handle = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static void load(void)
{
    void *handle = find_library();

    if (!handle)
        return;
    library.ready = true;
#define WEFT_CUBLASLT_FIND(member, name)                                                                     \
    *(void **)&library.calls.member = dlsym(handle, #name);                                                  \
    library.ready = library.ready && library.calls.member;
    WEFT_CUBLASLT_CALLS(WEFT_CUBLASLT_FIND)
#undef WEFT_CUBLASLT_FIND
}

static const weft_cublaslt *open_library(void)
{
    pthread_once(&library.once, load);
    return library.ready ? &library.calls : NULL;
}

const weft_cublaslt *(*weft_cublaslt_source)(void) = open_library;

void weft_cublaslt_describe(char *text, size_t bytes)
{
    const weft_cublaslt *lt = weft_cublaslt_source();
    size_t version = lt ? lt->version() : 0;

    const char *asked = weft_env_word(WEFT_ENV_CUBLASLT);

    if (lt)
        snprintf(
            text, bytes,
            "cuBLASLt %zu.%zu.%zu makes the product of one rank under unfused, and under auto where it wins",
            version / 10000, version / 100 % 100, version % 100);
    else if (strcmp(asked, "auto") == 0 || strcmp(asked, "off") == 0)
        snprintf(text, bytes, "%s",
                 strcmp(asked, "off") == 0 ? "cuBLASLt turned off by WEFT_CUBLASLT" : "no cuBLASLt");
    else
        snprintf(text, bytes, "no cuBLASLt: %.200s, as WEFT_CUBLASLT says, cannot be loaded", asked);
}

/* ---- a product --------------------------------------------------------------------------------------- */

enum { CANDIDATES = 8, ALIGNMENT_MOST = 256 };
static const size_t WORKSPACE_MOST = (size_t)32 << 20;

static cudaDataType_t type_of(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? CUDA_R_16F : dtype == WEFT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* What cuBLASLt makes of it is what weft would. With alpha = 0 it may still read A and B. */
static bool makes(const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE && (p->dtype == WEFT_F16 || p->dtype == WEFT_BF16) &&
           (p->d_dtype == p->dtype || p->d_dtype == WEFT_F32) && p->l == 1 && p->m > 0 && p->n > 0 &&
           p->k > 0 && p->m <= INT32_MAX && p->n <= INT32_MAX && p->k <= INT32_MAX && p->alpha != 0 &&
           (p->act == WEFT_ACT_NONE || p->act == WEFT_ACT_RELU);
}

static weft_cuda_place place_of(const weft_plan_part *part, const weft_cuda_place *places,
                                weft_operand_role role)
{
    for (uint32_t i = 0; i < part->operand_count; i++)
        if (part->operands[i].place == WEFT_PLACE_USER && part->operands[i].role == role)
            return places[i * (uint32_t)part->world + (uint32_t)part->rank];
    return (weft_cuda_place){0};
}

/* Lines that do not begin on 16 bytes are slow there; weft copies them first. */
static bool on_vectors(const weft_cuda_place *place)
{
    return (uintptr_t)place->base % 16 == 0 && place->ld % 8 == 0;
}

static uint32_t alignment_of(const weft_cuda_place *place, size_t element)
{
    uintptr_t bits = (uintptr_t)place->base | (uintptr_t)((size_t)place->ld * element) | ALIGNMENT_MOST;

    return (uint32_t)(bits & -bits);
}

/* cuBLASLt counts by columns: the row-major product is B transposed times A transposed. */
static bool describe(const weft_problem *p, const weft_cuda_place at[], weft_cublaslt_product *made)
{
    const weft_cublaslt *lt = made->lt;
    cublasOperation_t left = p->transb ? CUBLAS_OP_T : CUBLAS_OP_N,
                      right = p->transa ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = p->act == WEFT_ACT_RELU
                                      ? (p->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU)
                                      : (p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    const weft_cuda_place *a = &at[WEFT_ROLE_A], *b = &at[WEFT_ROLE_B], *d = &at[WEFT_ROLE_D],
                          *c = p->beta != 0 ? &at[WEFT_ROLE_C] : d;
    const void *bias = at[WEFT_ROLE_BIAS].base;
    cudaDataType_t in = type_of(p->dtype), out = type_of(p->d_dtype);
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;

    made->left_at = b->base;
    made->right_at = a->base;
    made->c_at = c->base;
    made->d_at = d->base;
    made->alpha = p->alpha;
    made->beta = p->beta;
    return !lt->desc_create(&made->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof(left)) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof(right)) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
           (!p->bias || !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias))) &&
           !lt->layout_create(&made->left, in, p->transb ? k : n, p->transb ? n : k, b->ld) &&
           !lt->layout_create(&made->right, in, p->transa ? m : k, p->transa ? k : m, a->ld) &&
           !lt->layout_create(&made->c, out, n, m, c->ld) && !lt->layout_create(&made->d, out, n, m, d->ld);
}

/* Sums stay in float32 and are added in a fixed order. */
static bool adds_in_order(const weft_cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    size_t written;

    return !lt->config(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written) &&
           (scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

static bool pick_algorithm(const weft_problem *p, const weft_cuda_place at[], weft_cublaslt_product *made)
{
    const weft_cublaslt *lt = made->lt;
    size_t in = 2, out = p->d_dtype == WEFT_F32 ? 4 : 2, most = WORKSPACE_MOST;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, left = alignment_of(&at[WEFT_ROLE_B], in),
             right = alignment_of(&at[WEFT_ROLE_A], in), d = alignment_of(&at[WEFT_ROLE_D], out),
             c = p->beta != 0 ? alignment_of(&at[WEFT_ROLE_C], out) : d;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
    bool good =
        !lt->preference_create(&preference) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most)) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                            sizeof(schemes)) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &left, sizeof(left)) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &right, sizeof(right)) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c)) &&
        !lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof(d)) &&
        !lt->heuristic(made->handle, made->desc, made->left, made->right, made->c, made->d, preference,
                       CANDIDATES, found, &count);

    if (preference)
        lt->preference_destroy(preference);
    for (int i = 0; good && i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && adds_in_order(lt, &found[i].algo)) {
            made->algorithm = found[i].algo;
            made->workspace_bytes = found[i].workspaceSize;
            return true;
        }
    return false;
}

weft_status weft_cublaslt_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                       const weft_cuda_place *places, weft_cublaslt_product *product,
                                       weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    const weft_problem *p = &part->problem;
    weft_cublaslt_product made = {.lt = part->world == 1 && makes(p) ? weft_cublaslt_source() : NULL};
    weft_cuda_place at[WEFT_ROLE_COUNT] = {{0}};
    weft_status status = WEFT_OK;

    *product = (weft_cublaslt_product){0};
    if (!made.lt)
        return WEFT_OK;
    for (int role = WEFT_ROLE_A; role <= WEFT_ROLE_D; role++)
        at[role] = place_of(part, places, (weft_operand_role)role);
    if (!on_vectors(&at[WEFT_ROLE_A]) || !on_vectors(&at[WEFT_ROLE_B]))
        return WEFT_OK;
    if (made.lt->create(&made.handle) || !describe(p, at, &made) || !pick_algorithm(p, at, &made)) {
        weft_cublaslt_product_free(device, &made);
        return WEFT_OK;
    }
    if (made.workspace_bytes)
        status =
            weft_cuda_check(cu, cu->cuMemAllocAsync(&made.workspace, made.workspace_bytes, device->uploads),
                            "cuMemAllocAsync", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(device->uploads), "cuStreamSynchronize", error);
    if (status != WEFT_OK) {
        weft_cublaslt_product_free(device, &made);
        return status;
    }
    *product = made;
    return WEFT_OK;
}

void weft_cublaslt_product_free(weft_cuda_device *device, weft_cublaslt_product *product)
{
    cublasLtMatrixLayout_t layouts[] = {product->left, product->right, product->c, product->d};

    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i])
            product->lt->layout_destroy(layouts[i]);
    if (product->desc)
        product->lt->desc_destroy(product->desc);
    if (product->handle)
        product->lt->destroy(product->handle);
    if (product->workspace)
        device->cu->cuMemFreeAsync(product->workspace, device->uploads);
    *product = (weft_cublaslt_product){0};
}

weft_status weft_cublaslt_product_launch(const weft_cublaslt_product *p, CUstream stream,
                                         weft_error_text *error)
{
    cublasStatus_t status =
        p->lt->matmul(p->handle, p->desc, &p->alpha, p->left_at, p->left, p->right_at, p->right, &p->beta,
                      p->c_at, p->c, p->d_at, p->d, &p->algorithm, (void *)(uintptr_t)p->workspace,
                      p->workspace_bytes, (cudaStream_t)stream);

    return status == CUBLAS_STATUS_SUCCESS
               ? WEFT_OK
               : weft_error_set(error, WEFT_ERR_SYSTEM, "cublasLtMatmul failed with status %d", (int)status);
}
