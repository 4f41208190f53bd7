/* A program's arrays, laid out in one allocation of the GPU's memory, its tensor maps encoded. */
#include "run/cuda/tables.h"

#include "core/round.h"
#include "run/cuda/maps.h"

#include <stdlib.h>
#include <string.h>

static weft_status encode_map(const weft_cuda_driver *cu, const weft_cuda_map *map, CUtensorMap *out,
                              weft_error_text *error)
{
    CUtensorMapDataType type = map->dtype == WEFT_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : map->dtype == WEFT_F16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                               : map->dtype == WEFT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    cuuint64_t extents[2] = {map->inner, map->outer}, pitch[1] = {map->pitch_bytes};
    cuuint32_t box[2] = {map->box_inner, map->box_outer}, steps[2] = {1, 1};
    WEFT_CUDA_TRY(cuTensorMapEncodeTiled(
        out, type, 2, map->base, extents, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return WEFT_OK;
}

/* One table after another in one allocation, each on a line of its own. */
typedef struct layout {
    size_t copies, tasks, views, waits, posts, maps, peers, beside, bytes;
} layout;

static size_t place(size_t *at, size_t count, size_t size)
{
    size_t begin = *at;
    *at = weft_round_up_bytes(begin + count * size, 128);
    return begin;
}

static layout lay_out(const weft_cuda_program *p, size_t beside, int world)
{
    layout l;
    size_t at = 0;
    l.copies = place(&at, p->copy_count, sizeof(*p->copies));
    l.tasks = place(&at, p->task_count + 1, sizeof(*p->tasks));
    l.views = place(&at, p->view_count, sizeof(*p->views));
    l.waits = place(&at, p->wait_count, sizeof(*p->waits));
    l.posts = place(&at, p->post_count, sizeof(*p->posts));
    l.maps = place(&at, p->map_count, sizeof(CUtensorMap));
    l.peers = place(&at, (size_t)world, sizeof(void *));
    l.beside = place(&at, 1, beside);
    l.bytes = at;
    return l;
}

static void put(char *image, size_t at, const void *array, size_t bytes)
{
    if (bytes)
        memcpy(image + at, array, bytes);
}

weft_status weft_cuda_tables_make(weft_cuda_device *device, const weft_cuda_program *p, int world,
                                  weft_cuda_beside beside, weft_cuda_control *const *controls,
                                  weft_cuda_args *args, weft_cuda_tables *tables, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    layout l = lay_out(p, beside.bytes, world);
    char *image = aligned_alloc(128, l.bytes), *base;
    weft_status status = WEFT_OK;
    if (!image)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", p->task_count);
    memset(image, 0, l.bytes);
    put(image, l.copies, p->copies, p->copy_count * sizeof(*p->copies));
    put(image, l.tasks, p->tasks, p->task_count * sizeof(*p->tasks));
    put(image, l.views, p->views, p->view_count * sizeof(*p->views));
    put(image, l.waits, p->waits, p->wait_count * sizeof(*p->waits));
    put(image, l.posts, p->posts, p->post_count * sizeof(*p->posts));
    put(image, l.peers, controls, (size_t)world * sizeof(*controls));
    put(image, l.beside, beside.at, beside.bytes);
    for (uint32_t i = 0; i < p->map_count && status == WEFT_OK && p->hopper; i++)
        status = encode_map(cu, &p->maps[i], (CUtensorMap *)(image + l.maps) + i, error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuMemAllocAsync(&tables->at, l.bytes, device->uploads),
                                 "cuMemAllocAsync", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuMemcpyHtoDAsync(tables->at, image, l.bytes, device->uploads),
                                 "cuMemcpyHtoDAsync", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(device->uploads), "cuStreamSynchronize", error);
    tables->bytes = l.bytes;
    base = (char *)(uintptr_t)tables->at;
    args->maps = base + l.maps;
    args->maps_reused = 1;
    if (status == WEFT_OK && p->hopper && p->map_count) {
        CUdeviceptr fresh = weft_cuda_maps_place(device, (CUtensorMap *)(image + l.maps), p->map_count);
        if (fresh) {
            args->maps = (const void *)(uintptr_t)fresh;
            args->maps_reused = 0;
        }
    }
    free(image);
    args->copies = (const weft_cuda_lane *)(base + l.copies);
    args->tasks = (const weft_cuda_task *)(base + l.tasks);
    args->views = (const weft_cuda_view *)(base + l.views);
    args->waits = (const weft_cuda_wait *)(base + l.waits);
    args->posts = (uint64_t *const *)(base + l.posts);
    args->peers = (weft_cuda_control *const *)(base + l.peers);
    args->link = beside.bytes ? (struct weft_cuda_emulation *)(void *)(base + l.beside) : NULL;
    return status;
}
