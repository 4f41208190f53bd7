#include "fake_gpu.h"

#include "core/dtype.h"
#include "run/cuda/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES_MAX = 64, STREAMS_MAX = 64 };

typedef struct fake_map { /* stands in for a CUtensorMap */
    char *base;
    uint64_t inner, outer, pitch;
    uint32_t box_inner, box_outer;
} fake_map;

typedef struct fake_lane {
    uint32_t loaded, done; /* tasks the loader and the consumer have finished */
    float *product;        /* of task `loaded - 1`, when it is a GEMM */
} fake_lane;

typedef struct fake_launch {
    weft_cuda_args args;
    uint32_t lane_count;
    bool hopper;
    CUstream stream;
    fake_lane *lanes;
    bool started, entered, exited, active;
} fake_launch;

static struct {
    fake_launch launches[LAUNCHES_MAX * 64];
    int count, streams;
    uint64_t random;
    bool hopper;
    fake_gpu_counts counts;
} gpu;

static uint64_t draw(uint64_t below)
{
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random % below;
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

static bool reached(const fake_launch *launch, uint32_t wait0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const weft_cuda_wait *w = &launch->args.waits[wait0 + i];
        if ((int64_t)(*w->signal - (launch->args.control->run * w->total + w->count)) < 0)
            return false;
    }
    return true;
}

static void post(const fake_launch *launch, uint32_t post0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ++*launch->args.posts[post0 + i];
}

static double get(const weft_cuda_view *v, int64_t row, int64_t col)
{
    return weft_element_get((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs));
}

static void set(const weft_cuda_view *v, int64_t row, int64_t col, double value)
{
    weft_element_set((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs), value);
}

/* The copy engine stops the kernel unless the innermost coordinate falls on 16 bytes. */
static bool may_start(const weft_cuda_view *v, int row, int col)
{
    return (v->cs == 1 ? col : row) * (int)weft_dtype_size((weft_dtype)v->dtype) % 16 == 0;
}

/* Along x it knows only whole 16 bytes. */
static double through_map(const fake_map *map, weft_dtype dtype, uint64_t x, uint64_t y)
{
    uint64_t granule = 16 / weft_dtype_size(dtype);
    return x < map->inner / granule * granule && y < map->outer
               ? weft_element_get(dtype, map->base + y * map->pitch, x)
               : 0;
}

/* The product as the loader sees A and B now. */
static float *multiply(const fake_launch *launch, const weft_cuda_task *t)
{
    const weft_cuda_view *a = &launch->args.views[t->view0 + t->destinations], *b = a + 1;
    const fake_map *maps = launch->args.maps;
    float *product = calloc((size_t)t->rows * (size_t)t->cols + 1, sizeof(*product));
    float *line = malloc((size_t)t->cols * sizeof(*line) + 4);
    gpu.counts.gemms++;
    if (launch->hopper && (!may_start(a, t->a_m, t->a_k) || !may_start(b, t->b_k, t->b_n)))
        product[0] = NAN;
    for (int k = 0; k < t->k; k++) {
        for (int j = 0; j < t->cols; j++) {
            uint64_t n = (uint64_t)(t->b_n + j), kb = (uint64_t)(t->b_k + k);
            line[j] =
                (float)(!launch->hopper ? get(b, k, j)
                        : b->cs == 1    ? through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                      (weft_dtype)b->dtype, n, kb)
                                        : through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                      (weft_dtype)b->dtype, kb, n));
        }
        for (int i = 0; i < t->rows; i++) {
            uint64_t m = (uint64_t)(t->a_m + i), ka = (uint64_t)(t->a_k + k);
            const fake_map *map = (const fake_map *)((const char *)maps + 128 * t->a_map);
            float x = (float)(!launch->hopper ? get(a, i, k)
                              : a->cs == 1    ? through_map(map, (weft_dtype)a->dtype, ka, m)
                                              : through_map(map, (weft_dtype)a->dtype, m, ka));
            for (int j = 0; j < t->cols; j++)
                product[(int64_t)i * t->cols + j] += x * line[j];
        }
    }
    free(line);
    return product;
}

static double finish(const fake_launch *launch, const weft_cuda_task *t, const weft_cuda_view *v, double x,
                     int i, int j)
{
    if (!(t->flags & WEFT_CUDA_EPILOGUE))
        return x;
    x *= launch->args.alpha;
    if (t->c >= 0)
        x += launch->args.beta * get(&v[t->c], i, j);
    if (t->bias >= 0)
        x += get(&v[t->bias], 0, j);
    return launch->args.act == WEFT_ACT_RELU && x < 0 ? 0 : x;
}

static void store(const fake_launch *launch, const weft_cuda_task *t, const weft_cuda_view *v, double x,
                  int i, int j)
{
    for (int n = 0; n < t->destinations; n++) {
        if (launch->hopper && t->flags & WEFT_CUDA_BULK) {
            const fake_map *map = (const fake_map *)((const char *)launch->args.maps + 128 * v[n].map);
            uint64_t col = (uint64_t)(v[n].col + j), row = (uint64_t)(v[n].row + i);
            weft_dtype dtype = t->flags & WEFT_CUDA_WIDE_D ? WEFT_F32 : (weft_dtype)v[n].dtype;
            if (!may_start(&v[n], v[n].row, v[n].col))
                x = NAN;
            if (col < map->inner && row < map->outer)
                weft_element_set(dtype, map->base + row * map->pitch, col, x);
        } else if (i < t->rows && j < t->cols) {
            set(&v[n], i, j, x);
        }
    }
}

static void consume(const fake_launch *launch, const weft_cuda_task *t, const float *product)
{
    const weft_cuda_view *v = &launch->args.views[t->view0];
    bool bulk = launch->hopper && t->kind == WEFT_CUDA_GEMM && t->flags & WEFT_CUDA_BULK;
    /* the walker stores whole tiles and relies on the maps to cut them off */
    int rows = bulk ? WEFT_CUDA_TILE_M : t->rows, cols = bulk ? WEFT_CUDA_TILE_N : t->cols;
    gpu.counts.maps += bulk;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            bool inside = i < t->rows && j < t->cols;
            double x = NAN;
            if (t->kind == WEFT_CUDA_COPY) {
                x = get(&v[1], i, j);
            } else if (t->kind == WEFT_CUDA_GEMM && inside) {
                x = product ? product[(int64_t)i * t->cols + j] : 0;
                if (t->acc >= 0)
                    x += get(&v[t->acc], i, j);
                x = finish(launch, t, v, x, i, j);
            } else if (t->kind == WEFT_CUDA_REDUCE) {
                x = 0;
                for (int s = 0; s < t->sources; s++)
                    x += get(&v[t->destinations + s], i, j);
                x = finish(launch, t, v, x, i, j);
            }
            store(launch, t, v, x, i, j);
        }
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

static bool load_ahead(fake_launch *launch, fake_lane *lane, const weft_cuda_lane *list)
{
    if (lane->loaded == list->task_count || lane->loaded > lane->done)
        return false;
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->loaded];
    bool gemm = t->kind == WEFT_CUDA_GEMM && t->k > 0;
    if (gemm && !(t->flags & WEFT_CUDA_LATE && launch->hopper) && !reached(launch, t->wait0, t->wait_count))
        return false;
    lane->product = gemm ? multiply(launch, t) : NULL;
    lane->loaded++;
    return true;
}

static bool step_lane(fake_launch *launch, uint32_t index)
{
    fake_lane *lane = &launch->lanes[index];
    const weft_cuda_lane *list = &launch->args.lanes[index];
    if (draw(2) && load_ahead(launch, lane, list))
        return true;
    if (lane->done == lane->loaded)
        return load_ahead(launch, lane, list);
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->done];
    if (!reached(launch, t->wait0, t->wait_count))
        return false;
    gpu.counts.bulk += list->bulk && launch->hopper;
    float *product = lane->product;
    lane->product = NULL;
    consume(launch, t, product);
    free(product);
    post(launch, t->post0, t->post_count);
    lane->done++;
    return true;
}

static bool step_launch(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    bool moved = false, over = true;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    if (!launch->entered && reached(launch, g->enter_wait0, g->enter_waits)) {
        post(launch, g->enter_post0, g->enter_posts);
        launch->entered = moved = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        moved |= step_lane(launch, (uint32_t)draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done == g->lanes[i].task_count;
    if (over && launch->entered && reached(launch, g->exit_wait0, g->exit_waits)) {
        g->control->run++;
        free(launch->lanes);
        launch->active = false;
        moved = true;
    }
    return moved;
}

/* Runs everything that was launched, each stream in order, until nothing moves. What is then left waits for
 * somebody who never came: it ends with the record of its first open wait, like the kernels' deadline. */
static void settle(void)
{
    for (int idle = 0; idle < 200;) {
        bool moved = false, busy[STREAMS_MAX] = {false};
        for (int i = 0; i < gpu.count; i++) {
            fake_launch *launch = &gpu.launches[i];
            size_t stream = (size_t)(uintptr_t)launch->stream;
            if (!launch->active || busy[stream])
                continue;
            busy[stream] = true;
            moved |= step_launch(launch);
        }
        idle = moved ? 0 : idle + 1;
    }
    for (int i = 0; i < gpu.count; i++) {
        fake_launch *launch = &gpu.launches[i];
        weft_cuda_record *record = &launch->args.control->record;
        if (!launch->active)
            continue;
        for (uint32_t l = 0; launch->started && l < launch->lane_count; l++) {
            const weft_cuda_lane *list = &launch->args.lanes[l];
            const weft_cuda_task *t = &launch->args.tasks[list->task0 + launch->lanes[l].done];
            for (uint32_t w = 0;
                 w < t->wait_count && launch->lanes[l].done < list->task_count && !record->set; w++)
                if (!reached(launch, t->wait0 + w, 1) &&
                    launch->args.waits[t->wait0 + w].number < launch->args.ranks_enter)
                    *record = (weft_cuda_record){.set = 2, .signal = launch->args.waits[t->wait0 + w].number};
        }
        for (uint32_t l = 0; launch->started && l < launch->lane_count; l++)
            free(launch->lanes[l].product);
        if (launch->started)
            free(launch->lanes);
    }
    gpu.count = 0;
}

/* ---- driver calls ------------------------------------------------------------------------------------ */

static CUresult fake_error_string(CUresult code, const char **text)
{
    (void)code;
    *text = "fake";
    return CUDA_SUCCESS;
}

static CUresult fake_set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult fake_get_function(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    *function = (CUfunction)(uintptr_t)(strstr(name, "any") ? 1 : 2);
    return CUDA_SUCCESS;
}

static CUresult fake_set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

static CUresult fake_launch_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                   void **extra)
{
    bool hopper = function == (CUfunction)(uintptr_t)2;
    (void)extra;
    if (gpu.count == (int)(sizeof(gpu.launches) / sizeof(gpu.launches[0])))
        return CUDA_ERROR_OUT_OF_MEMORY;
    gpu.launches[gpu.count++] = (fake_launch){.args = *(weft_cuda_args *)parameters[0],
                                              .lane_count = config->gridDimX / (hopper ? 2 : 1),
                                              .hopper = hopper,
                                              .stream = config->hStream,
                                              .active = true};
    return CUDA_SUCCESS;
}

static CUresult fake_alloc(CUdeviceptr *at, size_t bytes)
{
    *at = (CUdeviceptr)(uintptr_t)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_free(CUdeviceptr at)
{
    free((void *)(uintptr_t)at);
    return CUDA_SUCCESS;
}

static CUresult fake_granularity(size_t *grain, const CUmemAllocationProp *prop,
                                 CUmemAllocationGranularity_flags flags)
{
    (void)prop, (void)flags;
    *grain = 4096;
    return CUDA_SUCCESS;
}

static CUresult fake_reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr where,
                             unsigned long long flags)
{
    (void)alignment, (void)where, (void)flags;
    return fake_alloc(at, bytes);
}

static CUresult fake_release_range(CUdeviceptr at, size_t bytes)
{
    (void)bytes;
    return fake_free(at);
}

static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

static CUresult fake_map_memory(CUdeviceptr at, size_t bytes, size_t offset,
                                CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)at, (void)bytes, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult fake_unmap(CUdeviceptr at, size_t bytes)
{
    (void)at, (void)bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)at, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    settle();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_memset(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    (void)stream;
    memset((void *)(uintptr_t)at, value, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = (CUstream)(uintptr_t)(1 + gpu.streams++ % (STREAMS_MAX - 1));
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream)
{
    (void)stream;
    settle();
    return CUDA_SUCCESS;
}

static CUresult fake_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                            const cuuint64_t *extents, const cuuint64_t *pitch, const cuuint32_t *box,
                            const cuuint32_t *steps, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill)
{
    (void)type, (void)rank, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    fake_map made = {base, extents[0], extents[1], pitch[0], box[0], box[1]};
    if ((uintptr_t)base % 16 || pitch[0] % 16 || box[0] > 256 || box[1] > 256)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(map, &made, sizeof(made));
    return CUDA_SUCCESS;
}

weft_cuda_device fake_gpu(int crews, bool hopper, uint64_t seed)
{
    static const weft_cuda_driver calls = {
        .cuGetErrorString = fake_error_string,
        .cuCtxSetCurrent = fake_set_current,
        .cuModuleGetFunction = fake_get_function,
        .cuFuncSetAttribute = fake_set_attribute,
        .cuLaunchKernelEx = fake_launch_kernel,
        .cuMemAlloc = fake_alloc,
        .cuMemFree = fake_free,
        .cuMemGetAllocationGranularity = fake_granularity,
        .cuMemAddressReserve = fake_reserve,
        .cuMemAddressFree = fake_release_range,
        .cuMemCreate = fake_create,
        .cuMemRelease = fake_release,
        .cuMemMap = fake_map_memory,
        .cuMemUnmap = fake_unmap,
        .cuMemSetAccess = fake_access,
        .cuMemcpyHtoDAsync = fake_to_device,
        .cuMemcpyDtoHAsync = fake_to_host,
        .cuMemsetD8Async = fake_memset,
        .cuStreamCreate = fake_stream_create,
        .cuStreamDestroy = fake_stream_destroy,
        .cuStreamSynchronize = fake_stream_synchronize,
        .cuTensorMapEncodeTiled = fake_encode,
    };
    gpu.random = seed * 2 + 1;
    gpu.hopper = hopper;
    return (weft_cuda_device){.cu = &calls, .name = "a fake GPU", .hopper = hopper, .crews = crews};
}

fake_gpu_counts fake_gpu_take_counts(void)
{
    fake_gpu_counts counts = gpu.counts;
    gpu.counts = (fake_gpu_counts){0};
    return counts;
}
