/* See cublaslt.h. */
#include "run/cuda/cublaslt.h"

#include "choose/cuda/makes.h"
#include "core/dtype.h"
#include "core/round.h"
#include "core/env.h"
#include "run/cuda/asked.h"
#include "run/cuda/cublaslt_cost.h"

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
        snprintf(text, bytes,
                 "cuBLASLt %zu.%zu.%zu makes the products of unfused plans, and under auto where it wins",
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
static const double CLEARLY = 0.97; /* of the first one's time, by the model */

static cudaDataType_t type_of(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F16:
        return CUDA_R_16F;
    case WEFT_BF16:
        return CUDA_R_16BF;
    case WEFT_FP8_E4M3:
        return CUDA_R_8F_E4M3;
    default:
        return CUDA_R_32F;
    }
}

static uint32_t alignment_of(const weft_cuda_matrix *x)
{
    uintptr_t bits =
        (uintptr_t)x->at | (uintptr_t)x->ld * (uintptr_t)weft_dtype_size(x->dtype) | ALIGNMENT_MOST;

    return (uint32_t)(bits & -bits);
}

/* cuBLASLt counts by columns: the row-major product is B transposed times A transposed. */
static bool describe(const weft_cuda_asked *q, weft_cublaslt_product *made)
{
    const weft_cublaslt *lt = made->lt;
    cublasOperation_t left = q->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      right = q->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = q->act == WEFT_ACT_RELU
                                      ? (q->bias.at ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU)
                                      : (q->bias.at ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    const weft_cuda_matrix *c = q->c.at ? &q->c : &q->d;
    const void *bias = q->bias.at;
    int8_t fast = (int8_t)q->fast;
    cudaDataType_t in = type_of(q->a.dtype), out = type_of(q->d.dtype);

    made->left_at = q->b.at;
    made->right_at = q->a.at;
    made->c_at = c->at;
    made->d_at = q->d.at;
    made->alpha = q->alpha;
    made->beta = q->beta;
    return !lt->desc_create(&made->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof(left)) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof(right)) &&
           !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
           (!bias || !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias))) &&
           (!fast || !lt->desc_set(made->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast))) &&
           !lt->layout_create(&made->left, in, (uint64_t)(q->b.transposed ? q->k : q->n),
                              (uint64_t)(q->b.transposed ? q->n : q->k), q->b.ld) &&
           !lt->layout_create(&made->right, in, (uint64_t)(q->a.transposed ? q->m : q->k),
                              (uint64_t)(q->a.transposed ? q->k : q->m), q->a.ld) &&
           !lt->layout_create(&made->c, out, (uint64_t)q->n, (uint64_t)q->m, c->ld) &&
           !lt->layout_create(&made->d, out, (uint64_t)q->n, (uint64_t)q->m, q->d.ld);
}

/* Sums stay in float32 and are added in a fixed order. */
static bool adds_in_order(const weft_cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    size_t written;

    return !lt->config(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written) &&
           (scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/* The first of a list that adds up in order, unless another one is clearly faster by the model; -1: none. */
static int fastest_of(const weft_cublaslt *lt, const weft_cuda_asked *q, int sms,
                      const cublasLtMatmulHeuristicResult_t *found, int count)
{
    double least = 0;
    int best = -1;

    for (int i = 0; i < count; i++) {
        double ns;

        if (found[i].state != CUBLAS_STATUS_SUCCESS || !adds_in_order(lt, &found[i].algo))
            continue;
        ns =
            weft_dtype_is_fp8(q->a.dtype) ? 0 : weft_cublaslt_cost(lt, &found[i].algo, q->m, q->n, q->k, sms);
        if (best < 0) {
            best = i;
            least = CLEARLY * ns;
        } else if (ns > 0 && ns < least) {
            best = i;
            least = ns;
        }
    }
    return best;
}

static bool pick_algorithm(const weft_cuda_asked *q, int sms, weft_cublaslt_product *made)
{
    const weft_cublaslt *lt = made->lt;
    size_t most = WORKSPACE_MOST;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, left = alignment_of(&q->b),
             right = alignment_of(&q->a), d = alignment_of(&q->d), c = q->c.at ? alignment_of(&q->c) : d;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0, best;
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
    best = good ? fastest_of(lt, q, sms, found, count) : -1;
    if (best < 0)
        return false;
    made->algorithm = found[best].algo;
    made->workspace_bytes = found[best].workspaceSize;
    return true;
}

static weft_status try_once(weft_cuda_device *device, const weft_cublaslt_product *made, size_t d_bytes,
                            weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cublaslt_product aside = *made;
    CUdeviceptr room = 0;
    weft_status status;

    d_bytes = weft_round_up_bytes(d_bytes, 1024);
    /* not the group's workspace, which a run may be using */
    WEFT_CUDA_TRY(cuMemAllocAsync(&room, d_bytes + made->workspace_bytes, device->uploads));
    aside.d_at = (void *)(uintptr_t)room;
    aside.workspace = room + d_bytes;
    if (aside.beta == 0)
        aside.c_at = aside.d_at;
    status = weft_cublaslt_product_launch(&aside, device->uploads, error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(device->uploads), "cuStreamSynchronize", error);
    cu->cuMemFreeAsync(room, device->uploads);
    return status;
}

/* The group's, which is as large as any, where the product is one of several ranks; else one of its own. */
static weft_status take_workspace(weft_cuda_device *device, weft_cuda_workspace *shared,
                                  weft_cublaslt_product *made, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUdeviceptr at = 0;

    if (!made->workspace_bytes)
        return WEFT_OK;
    if (!shared) {
        WEFT_CUDA_TRY(cuMemAllocAsync(&made->workspace, made->workspace_bytes, device->uploads));
        return WEFT_OK;
    }
    if (!shared->at) {
        WEFT_CUDA_TRY(cuMemAllocAsync(&at, WORKSPACE_MOST, device->uploads));
        *shared = (weft_cuda_workspace){at, WORKSPACE_MOST};
    }
    made->workspace = shared->at;
    made->borrowed = true;
    return WEFT_OK;
}

/* Its workspace. Of several ranks it also runs once, to no avail: the driver loads kernels when they are
 * first launched, and may then wait for every kernel of the context, also for a peer's that waits for this
 * rank. */
static weft_status make_ready(weft_cuda_device *device, const weft_cuda_asked *q, bool several,
                              weft_cuda_workspace *shared, weft_cublaslt_product *made,
                              weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_status status = take_workspace(device, several ? shared : NULL, made, error);

    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    return several ? try_once(device, made, (uint64_t)(q->m * q->d.ld) * weft_dtype_size(q->d.dtype), error)
                   : WEFT_OK;
}

/* A bias must begin on 16 bytes, and be added before anything is rounded: to C or D whose lines do not begin
 * so it was seen to be added to what has 16 bits already. */
static bool takes_bias(const weft_cuda_asked *q)
{
    return !q->bias.at || ((uintptr_t)q->bias.at % 16 == 0 && weft_cuda_matrix_on_vectors(&q->d) &&
                           (!q->c.at || weft_cuda_matrix_on_vectors(&q->c)));
}

weft_status weft_cublaslt_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                       const weft_cuda_place *places, const weft_task *task,
                                       weft_cuda_workspace *shared, weft_cublaslt_product *product,
                                       weft_error_text *error)
{
    bool alone = part->world == 1;
    weft_cublaslt_product made = {
        .lt = weft_cublaslt_makes(&part->problem, part->world) ? weft_cublaslt_source() : NULL};
    weft_status status;
    weft_cuda_asked q;

    *product = (weft_cublaslt_product){0};
    if (!made.lt)
        return WEFT_OK;
    q = weft_cuda_asked_of(part, places, task);
    if (alone &&
        (!weft_cuda_matrix_on_vectors(&q.a) || !weft_cuda_matrix_on_vectors(&q.b) || !takes_bias(&q)))
        return WEFT_OK;
    if (made.lt->create(&made.handle) || !describe(&q, &made) ||
        !pick_algorithm(&q, device->sm_count, &made)) {
        weft_cublaslt_product_free(device, &made);
        return WEFT_OK;
    }
    status = make_ready(device, &q, !alone, shared, &made, error);
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
    if (product->workspace && !product->borrowed)
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
