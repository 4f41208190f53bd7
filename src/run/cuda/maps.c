/* An arena of tensor maps for each GPU. See maps.h. */
#include "run/cuda/maps.h"

#include <pthread.h>

enum { GPUS_MAX = 64, ARENA_MAPS = 1 << 16 };

typedef struct arena {
    CUdeviceptr base;
    unsigned long long id; /* of the allocation, which goes away with the last user of a context; 0 = none */
    uint32_t used;
} arena;

static struct {
    pthread_mutex_t lock;
    arena arenas[GPUS_MAX];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The allocation that has the address; 0 = none. */
static unsigned long long id_of(const weft_cuda_driver *cu, CUdeviceptr at)
{
    unsigned long long id = 0;
    return at && cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) == CUDA_SUCCESS ? id : 0;
}

/* With the lock held: whether there is room for `count` maps, making the arena where there is none. */
static bool open_arena(weft_cuda_device *device, uint32_t count)
{
    const weft_cuda_driver *cu = device->cu;
    if (device->device < 0 || device->device >= GPUS_MAX || count > ARENA_MAPS)
        return false;
    arena *mine = &all.arenas[device->device];
    if (!mine->base || id_of(cu, mine->base) != mine->id) {
        arena made = {0};
        /* no kernel of this process waits for another one yet, so this one may wait for kernels */
        if (cu->cuMemAlloc(&made.base, ARENA_MAPS * sizeof(CUtensorMap)) != CUDA_SUCCESS)
            made.base = 0;
        made.id = id_of(cu, made.base);
        *mine = made;
    }
    return mine->id && count <= ARENA_MAPS - mine->used;
}

CUdeviceptr weft_cuda_maps_place(weft_cuda_device *device, const CUtensorMap *maps, uint32_t count)
{
    const weft_cuda_driver *cu = device->cu;
    CUdeviceptr at = 0;
    pthread_mutex_lock(&all.lock);
    if (open_arena(device, count)) {
        arena *mine = &all.arenas[device->device];
        at = mine->base + mine->used * sizeof(CUtensorMap);
        mine->used += count;
    }
    pthread_mutex_unlock(&all.lock);
    if (at &&
        (cu->cuMemcpyHtoDAsync(at, maps, count * sizeof(CUtensorMap), device->uploads) != CUDA_SUCCESS ||
         cu->cuStreamSynchronize(device->uploads) != CUDA_SUCCESS))
        at = 0;
    return at;
}
