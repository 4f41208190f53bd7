/* See splitk_product.h. */
#include "run/cuda/splitk_product.h"

#include "choose/cuda/makes.h"
#include "choose/cuda/splitk_ways.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/asked.h"
#include "run/cuda/exchanged.h"

#include <string.h>

enum { VECTOR = 8, BOX = 64 /* columns of B that come at once */ };

static weft_status encode(const weft_cuda_driver *cu, const weft_cuda_matrix *x, int64_t inner, int64_t outer,
                          int box_outer, weft_cuda_splitk_map *map, weft_error_text *error)
{
    cuuint64_t extents[2] = {(cuuint64_t)inner, (cuuint64_t)outer}, pitch[1] = {(cuuint64_t)x->ld * 2};
    cuuint32_t box[2] = {WEFT_CUDA_SPLITK_STEP, (cuuint32_t)box_outer}, steps[2] = {1, 1};
    CUtensorMap made;

    WEFT_CUDA_TRY(cuTensorMapEncodeTiled(
        &made, x->dtype == WEFT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
        x->at, extents, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    memcpy(map, &made, sizeof(*map));
    return WEFT_OK;
}

/* Every 8 columns of D, C and bias lie on 16 bytes. */
static bool is_wide(const weft_cuda_asked *q)
{
    uintptr_t ends = (uintptr_t)q->d.at | (uintptr_t)q->c.at | (uintptr_t)q->bias.at;

    return ends % 16 == 0 && (q->d.ld | (q->c.at ? q->c.ld : 0)) % VECTOR == 0;
}

/* What groups write and count, and slices send. */
static weft_status give_memory(weft_cuda_device *device, int64_t tile_count, const weft_splitk_way *way,
                               weft_splitk_product *made, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    size_t tile = (size_t)(weft_splitk_tiles[way->tile].tokens * weft_splitk_tiles[way->tile].cols) *
                  sizeof(float),
           parts = (size_t)(tile_count * way->groups), sums = way->groups > 1 ? parts * tile : 0,
           sent = way->sent ? parts * (size_t)way->slices * tile : 0,
           counts = (size_t)(tile_count * way->slices) * sizeof(uint32_t);

    made->memory_bytes = sums + sent + counts;
    WEFT_CUDA_TRY(cuMemAllocAsync(&made->memory, made->memory_bytes, device->uploads));
    made->args.sums = (float *)(uintptr_t)made->memory;
    made->args.sent = (float *)(uintptr_t)(made->memory + sums);
    made->args.arrived = (uint32_t *)(uintptr_t)(made->memory + sums + sent);
    WEFT_CUDA_TRY(cuMemsetD8Async(made->memory + sums + sent, 0, counts, device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    return WEFT_OK;
}

weft_status weft_splitk_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                     const weft_cuda_place *places, const weft_task *task, int crews,
                                     const weft_splitk_way *asked, weft_splitk_product *product,
                                     weft_error_text *error)
{
    bool alone = crews >= device->crews;
    weft_splitk_product made = {.early = alone, .sends = weft_cuda_is_exchanged(part)};
    weft_cuda_asked q;
    weft_splitk_way way;
    weft_status status;
    int64_t down, across, rows;
    CUfunction(*kernels)[WEFT_CUDA_SPLITK_TILE_COUNT][2];
    int cols;

    *product = (weft_splitk_product){0};
    if (!device->hopper || !weft_splitk_makes(&part->problem, part->world))
        return WEFT_OK;
    q = weft_cuda_asked_of(part, places, task);
    if (!weft_cuda_matrix_on_vectors(&q.a) || !weft_cuda_matrix_on_vectors(&q.b))
        return WEFT_OK;
    way = asked ? *asked : weft_splitk_fastest(q.m, q.n, q.k, q.b.transposed, device->sm_count);
    way.sent = way.sent && !made.sends;
    cols = weft_splitk_tiles[way.tile].cols;
    down = way.down, across = weft_divide_up(weft_divide_up(q.n, cols), way.sharers);
    rows = weft_splitk_rows(&way, q.m);
    made.args = (weft_cuda_splitk){
        .m = (int32_t)q.m,
        .n = (int32_t)q.n,
        .steps = (int32_t)weft_divide_up(q.k, WEFT_CUDA_SPLITK_STEP),
        .m_tiles = (int32_t)down,
        .slices = way.slices,
        .groups = way.groups,
        .sharers = way.sharers,
        .rows = (int32_t)rows,
        .eights = (int32_t)weft_divide_up(rows * way.sharers, (int64_t)WEFT_CUDA_SPLITK_EIGHT * way.slices),
        .d = q.d.at,
        .c = q.c.at,
        .bias = q.bias.at,
        .d_ld = q.d.ld,
        .c_ld = q.c.ld,
        .dtype = (int32_t)q.d.dtype,
        .wide = is_wide(&q),
        .changes = q.alpha != 1 || q.c.at || q.bias.at || q.act != WEFT_ACT_NONE,
        .alpha = q.alpha,
        .beta = q.beta,
        .act = (int32_t)q.act};
    made.args.own = way.slices * way.groups == 1 && q.n % VECTOR == 0 && q.d.dtype != WEFT_F32 &&
                    (made.sends || (made.args.wide && !q.c.at));
    made.cluster = (unsigned)(way.sharers * way.slices);
    /* clusters of several ranks could keep each other from places that only one of them can take; a rank
     * alone has a faster kernel for it */
    made.fits = !alone && made.cluster == 1 &&
                down * across * way.groups <= weft_splitk_clusters_on(&way, weft_cuda_ctas(device, crews));
    made.grid = (unsigned)(down * across) * made.cluster * (unsigned)way.groups;
    made.threads = (unsigned)WEFT_CUDA_SPLITK_THREADS(cols);
    made.args.width = weft_splitk_width(way.tile, rows * way.sharers);
    made.args.stage_bytes = WEFT_CUDA_SPLITK_STAGE_BYTES(made.args.width, cols);
    made.args.stages = alone
                           ? weft_splitk_stages_beside(way.tile, made.args.width, made.grid, device->sm_count)
                           : weft_splitk_stages(way.tile, made.args.width);
    made.shared_bytes = (unsigned)WEFT_CUDA_SPLITK_SHARED_BYTES(made.args.stages * made.args.stage_bytes);
    made.weights = (weft_cuda_extent){(uintptr_t)q.b.at,
                                      (uintptr_t)q.b.at + (size_t)((q.b.transposed ? q.n : q.k) * q.b.ld) *
                                                              weft_dtype_size(q.b.dtype)};
    kernels = made.sends ? device->splitk_send : way.sent ? device->splitk_sent : device->splitk;
    made.kernel = kernels[q.a.dtype == WEFT_F16][way.tile][q.b.transposed];
    status = encode(device->cu, &q.a, q.k, q.m, (int)rows, &made.args.tokens, error);
    if (status == WEFT_OK)
        status = encode(device->cu, &q.b, q.b.transposed ? q.k : q.n, q.b.transposed ? q.n : q.k, BOX,
                        &made.args.weights, error);
    if (status == WEFT_OK && (way.groups > 1 || way.sent))
        status = give_memory(device, down * across * way.sharers, &way, &made, error);
    if (status != WEFT_OK) {
        weft_splitk_product_free(device, &made);
        return status;
    }
    *product = made;
    return WEFT_OK;
}

void weft_splitk_product_free(weft_cuda_device *device, weft_splitk_product *product)
{
    if (product->memory)
        device->cu->cuMemFreeAsync(product->memory, device->uploads);
    *product = (weft_splitk_product){0};
}

weft_status weft_splitk_product_launch(weft_cuda_device *device, const weft_splitk_product *product,
                                       const weft_cuda_exchange *exchange, bool ahead, CUstream stream,
                                       weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_splitk args = product->args;
    weft_cuda_exchange sent = *exchange;
    void *parameters[] = {&args, &sent};
    CUlaunchAttribute attributes[] = {
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {product->cluster, 1, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
         .value.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = weft_cuda_config(product->grid, product->threads, product->shared_bytes, stream);

    args.ahead = ahead && product->early && product->sends ? WEFT_CUDA_SPLITK_AHEAD : 0;
    config.attrs = attributes;
    config.numAttrs = product->early ? 2 : 1;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, product->kernel, parameters, NULL));
    return WEFT_OK;
}
