/* See grouped.h. */
#include "run/cuda/grouped.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/group.h"

#include <stdio.h>

enum { WORD = 2 /* bytes of an element that is multiplied */, VECTOR = 16, LINE = 128 /* of a box */ };

/* Whether B is of a type of its own: fp8. */
static bool is_stored(const weft_grouped_args *a)
{
    return a->b_dtype != a->dtype;
}

static bool is_gated(weft_act act)
{
    return act >= WEFT_ACT_RELU_GATED;
}

/* What the kernel can take; A and B are not looked at where they are not read. */
static weft_status check(const weft_cuda_device *device, const weft_grouped_args *a, bool reads,
                         weft_error_text *error)
{
    int64_t cols = a->n * (is_gated(a->act) ? 2 : 1), most = INT32_MAX - WEFT_CUDA_GROUPED_ROWS,
            b_size = (int64_t)weft_dtype_size(a->b_dtype);

    if (!device->hopper)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "weft_grouped_gemm: on GPUs it needs one of the Hopper architecture, and this is "
            "%s",
            device->name);
    if ((a->dtype != WEFT_F16 && a->dtype != WEFT_BF16) || a->a_dtype != a->dtype ||
        (is_stored(a) && !(weft_dtype_is_fp8(a->b_dtype) && a->transb)) ||
        (a->d_dtype != a->dtype && a->d_dtype != WEFT_F32))
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "weft_grouped_gemm: on GPUs A and B are both float16 or both bfloat16, or B is fp8 and "
            "stored n x k (transb), and D is of A's type or float32, not %s, %s%s and %s for products of %s",
            weft_dtype_name(a->a_dtype), weft_dtype_name(a->b_dtype), a->transb ? " n x k" : "",
            weft_dtype_name(a->d_dtype), weft_dtype_name(a->dtype));
    if (a->packed_b)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "weft_grouped_gemm: packed_b is for the CPU; on GPUs give b");
    if (a->experts > WEFT_CUDA_GROUPED_EXPERTS || a->rows > most || cols > most || a->k > most)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "weft_grouped_gemm: on GPUs there are at most %d experts and 2^31 - 257 rows, "
                              "columns and k, not %d, %lld, %lld and %lld",
                              WEFT_CUDA_GROUPED_EXPERTS, a->experts, (long long)a->rows, (long long)cols,
                              (long long)a->k);
    if (reads && ((uintptr_t)a->a % VECTOR || (uintptr_t)a->b % VECTOR || a->lda * WORD % VECTOR ||
                  a->ldb * b_size % VECTOR || a->stride_b * b_size % VECTOR))
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "weft_grouped_gemm: on GPUs A and B begin on 16-byte boundaries, and so do "
            "their rows and the experts' matrices: lda, ldb and stride_b are %lld, %lld and "
            "%lld elements",
            (long long)a->lda, (long long)a->ldb, (long long)a->stride_b);
    return WEFT_OK;
}

static weft_status encode(const weft_cuda_driver *cu, weft_dtype dtype, unsigned dimensions, const void *base,
                          const cuuint64_t *extents, const cuuint64_t *pitch, const cuuint32_t *box,
                          CUtensorMap *map, weft_error_text *error)
{
    static const cuuint32_t steps[3] = {1, 1, 1};

    WEFT_CUDA_TRY(cuTensorMapEncodeTiled(
        map,
        dtype == WEFT_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
        : dtype == WEFT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                             : CU_TENSOR_MAP_DATA_TYPE_UINT8, /* fp8 */
        dimensions, (void *)(uintptr_t)base, extents, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return WEFT_OK;
}

/* A in boxes of few and of many rows; B with the expert as a third dimension, so that an edge of a matrix is
 * one, and not the beginning of the next. */
static weft_status encode_maps(const weft_cuda_driver *cu, const weft_cuda_grouped *g,
                               weft_cuda_grouped_launch *l, weft_error_text *error)
{
    cuuint64_t k = (cuuint64_t)g->k, cols = (cuuint64_t)g->cols, experts = (cuuint64_t)g->experts;
    weft_dtype dtype = (weft_dtype)g->dtype, b_dtype = (weft_dtype)g->b_dtype;
    cuuint64_t b_size = weft_dtype_size(b_dtype),
               b[3] = {g->transb ? k : cols, g->transb ? cols : k, experts},
               b_pitch[2] = {(cuuint64_t)g->ldb * b_size, (cuuint64_t)g->stride_b * b_size};
    cuuint64_t a[2] = {k, (cuuint64_t)g->rows}, a_pitch[1] = {(cuuint64_t)g->lda * WORD};
    cuuint32_t b_box[3] = {(cuuint32_t)(LINE / b_size), g->transb ? WEFT_CUDA_GROUPED_COLS / 2 : LINE / WORD,
                           1};
    cuuint32_t few[2] = {LINE / WORD, WEFT_CUDA_GROUPED_FEW}, many[2] = {LINE / WORD, WEFT_CUDA_GROUPED_MANY};
    weft_status status = encode(cu, b_dtype, 3, g->b, b, b_pitch, b_box, &l->b_map, error);

    if (status == WEFT_OK)
        status = encode(cu, dtype, 2, g->a, a, a_pitch, few, &l->few_map, error);
    if (status == WEFT_OK)
        status = encode(cu, dtype, 2, g->a, a, a_pitch, many, &l->many_map, error);
    return status;
}

/* No more clusters than there can be tiles: an expert's rows are divided into tiles of at least half of the
 * most, but for the last of it. */
static int clusters_for(const weft_cuda_grouped *g, int most)
{
    int64_t columns = weft_divide_up(g->cols, WEFT_CUDA_GROUPED_COLS);
    int64_t rows = g->b_dtype == g->dtype ? WEFT_CUDA_GROUPED_ROWS : WEFT_CUDA_GROUPED_ROWS_STORED;
    int64_t tiles = columns * (g->experts + g->rows / rows);

    return (int)weft_min(tiles, most);
}

weft_status weft_cuda_grouped_prepare(const weft_cuda_device *device, const weft_grouped_args *args,
                                      const weft_cuda_arriving_rows *arriving, uint32_t *counter,
                                      int clusters, weft_cuda_grouped_launch *launch, weft_error_text *error)
{
    bool gated = is_gated(args->act), reads = args->alpha != 0 && args->k > 0;
    weft_status status = check(device, args, reads, error);
    weft_cuda_grouped g = {
        .rows = args->rows,
        .cols = args->n * (gated ? 2 : 1),
        .lda = args->lda,
        .ldb = args->ldb,
        .stride_b = args->stride_b,
        .ldd = args->ldd,
        .offset = args->offset,
        .start = args->start,
        .a = args->a,
        .b = args->b,
        .d = args->d,
        .bias = args->bias,
        .row_scale = args->row_scale,
        .col_scale = args->col_scale,
        .counter = counter,
        .experts = args->experts,
        .k = reads ? (int32_t)args->k : 0,
        .transb = args->transb != 0,
        .dtype = (int32_t)args->dtype,
        .b_dtype = (int32_t)args->b_dtype,
        .d_dtype = (int32_t)args->d_dtype,
        .act = (int32_t)(gated ? args->act - WEFT_ACT_RELU_GATED + WEFT_ACT_RELU : args->act),
        .gated = gated,
        .alpha = args->alpha,
    };

    if (arriving)
        g.arriving = *arriving;

    *launch = (weft_cuda_grouped_launch){.grouped = g};
    if (status != WEFT_OK || g.experts == 0 || g.rows == 0 || g.cols == 0)
        return status;
    g.bare = !args->bias && !args->row_scale && (!args->col_scale || is_stored(args)) &&
             args->d_dtype == args->dtype && (gated || (args->alpha == 1 && args->act == WEFT_ACT_NONE));
    g.aligned =
        (uintptr_t)args->d % VECTOR == 0 && args->ldd * (int64_t)weft_dtype_size(args->d_dtype) % VECTOR == 0;
    launch->grouped = g;
    launch->clusters = clusters_for(&g, clusters);
    launch->kernel = is_stored(args)
                         ? device->grouped_stored[args->dtype == WEFT_F16][args->b_dtype == WEFT_FP8_E5M2]
                         : device->grouped[args->dtype == WEFT_F16][g.transb];
    return reads ? encode_maps(device->cu, &g, launch, error) : WEFT_OK;
}

weft_status weft_cuda_grouped_start(const weft_cuda_device *device, const weft_cuda_grouped_launch *launch,
                                    bool early, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_grouped_launch l = *launch;
    void *parameters[] = {&l.grouped, &l.b_map, &l.few_map, &l.many_map};
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = weft_cuda_config((unsigned)(WEFT_CUDA_PAIR * l.clusters), WEFT_CUDA_THREADS,
                                             WEFT_CUDA_GROUPED_SHARED, stream);

    config.attrs = &attribute;
    config.numAttrs = early;
    if (!l.kernel)
        return WEFT_OK;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, l.kernel, parameters, NULL));
    return WEFT_OK;
}

/* ---- calls of groups ----------------------------------------------------------------------------------- */

static weft_status check_memory(weft_group *group, const weft_grouped_args *a, bool reads)
{
    int64_t cols = a->n * (is_gated(a->act) ? 2 : 1), lines = a->transb ? cols : a->k,
            length = a->transb ? a->k : cols;
    size_t d_size = weft_dtype_size(a->d_dtype), experts = (size_t)a->experts;
    int64_t b_size = (int64_t)weft_dtype_size(a->b_dtype);
    const struct {
        const char *name;
        const void *pointer;
        int64_t bytes;
        bool needed;
    } all[] = {
        {"a", a->a, ((a->rows - 1) * a->lda + a->k) * WORD, reads},
        {"b", a->b, ((a->experts - 1) * a->stride_b + (lines - 1) * a->ldb + length) * b_size, reads},
        {"d", a->d, ((a->rows - 1) * a->ldd + a->n) * (int64_t)d_size, true},
        {"offset", a->offset, (int64_t)((experts + 1) * sizeof(*a->offset)), true},
        {"start", a->start, (int64_t)(experts * sizeof(*a->start)), false},
        {"bias", a->bias, a->experts * cols * (int64_t)d_size, false},
        {"row_scale", a->row_scale, a->rows * (int64_t)sizeof(float), false},
        {"col_scale", a->col_scale, a->experts * cols * (int64_t)sizeof(float), false},
    };
    weft_status status = WEFT_OK;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && status == WEFT_OK; i++) {
        char what[64];

        snprintf(what, sizeof(what), "weft_grouped_gemm: %s", all[i].name);
        if (all[i].needed && !all[i].pointer)
            return weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s is NULL", what);
        if (all[i].pointer && (reads || (i != 0 && i != 1)))
            status = weft_cuda_check_memory(group, what, all[i].pointer, (size_t)all[i].bytes);
    }
    return status;
}

/* The group's two words, made at the first call. */
static weft_status open_counter(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &group->error;

    if (g->tiles)
        return WEFT_OK;
    WEFT_CUDA_TRY(cuMemAllocAsync(&g->tiles, 2 * sizeof(uint32_t), g->device->uploads));
    WEFT_CUDA_TRY(cuMemsetD8Async(g->tiles, 0, 2 * sizeof(uint32_t), g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

static weft_status issue(weft_group *group, const weft_grouped_args *args,
                         const weft_cuda_arriving_rows *arriving)
{
    weft_cuda_group *g = weft_cuda_of(group);
    bool alone = g->crews >= g->device->crews;
    CUstream stream = weft_cuda_stream(g, g->issue_stream);
    weft_cuda_grouped_launch launch;
    weft_status status = open_counter(group);

    if (status == WEFT_OK)
        status = weft_cuda_grouped_prepare(g->device, args, arriving, (uint32_t *)(uintptr_t)g->tiles,
                                           g->crews, &launch, &group->error);
    if (status == WEFT_OK && launch.kernel)
        status = check_memory(group, args, launch.grouped.k > 0);
    if (status == WEFT_OK)
        status = weft_cuda_grouped_start(g->device, &launch, alone, stream, &group->error);
    if (status == WEFT_OK && !g->issue_ordered)
        status = weft_cuda_pass(group, stream);
    return status;
}

weft_status weft_cuda_grouped_run_arriving(weft_group *group, const weft_grouped_args *args,
                                           const weft_cuda_arriving_rows *arriving)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status;

    weft_cuda_push(g);
    status = issue(group, args, arriving);
    weft_cuda_pop(g);
    return status;
}

weft_status weft_cuda_grouped_run(weft_group *group, const weft_grouped_args *args)
{
    return weft_cuda_grouped_run_arriving(group, args, NULL);
}
