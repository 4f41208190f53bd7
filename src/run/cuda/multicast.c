/* Multicast objects over symmetric memory. See multicast.h. */
#include "run/cuda/multicast.h"

#include "group/pass.h"
#include "run/cuda/group.h"

#include <fcntl.h>
#include <unistd.h>

bool weft_cuda_multicast_reduces(weft_dtype dtype, weft_reduction reduction)
{
    switch (dtype) {
    case WEFT_F32:
    case WEFT_F64:
        return reduction == WEFT_SUM;
    case WEFT_F16:
    case WEFT_BF16:
    case WEFT_I32:
    case WEFT_I64:
        return reduction == WEFT_SUM || reduction == WEFT_MIN || reduction == WEFT_MAX;
    default:
        return false;
    }
}

static CUmulticastObjectProp properties(const weft_group *group, size_t bytes)
{
    return (CUmulticastObjectProp){.numDevices = (unsigned)group->size,
                                   .size = bytes,
                                   .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

/* The object of the next `bytes`, made and exported by rank 0; the others have nothing to hand around. */
static weft_status create(weft_group *group, size_t bytes, CUmemGenericAllocationHandle *object, int *fd)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &group->error;
    CUmulticastObjectProp prop = properties(group, bytes);
    size_t grain = 0;

    *fd = -1;
    WEFT_CUDA_TRY(cuMulticastGetGranularity(&grain, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    if (bytes % grain || g->multicast.covered % grain)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "symmetric memory comes in pieces of %zu bytes here, and multicast in %zu",
                              g->heap.grain, grain);
    if (!g->multicast.range.base) {
        weft_status status =
            weft_cuda_heap_reserve(g->device, 1, g->heap.stride, grain, &g->multicast.range, error);

        if (status != WEFT_OK)
            return status;
    }
    if (group->rank > 0) {
        *fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return *fd >= 0
                   ? WEFT_OK
                   : weft_error_set(error, WEFT_ERR_SYSTEM, "rank %d cannot open /dev/null", group->rank);
    }
    WEFT_CUDA_TRY(cuMulticastCreate(object, &prop));
    WEFT_CUDA_TRY(cuMemExportToShareableHandle(fd, *object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return WEFT_OK;
}

/* The object of every rank, to which this rank's GPU belongs now. */
static weft_status join(weft_group *group, const int *fds, CUmemGenericAllocationHandle *object)
{
    const weft_cuda_device *device = weft_cuda_of(group)->device;
    const weft_cuda_driver *cu = device->cu;
    weft_error_text *error = &group->error;

    if (group->rank > 0)
        WEFT_CUDA_TRY(cuMemImportFromShareableHandle(object, (void *)(uintptr_t)fds[0],
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    WEFT_CUDA_TRY(cuMulticastAddDevice(*object, device->device));
    return WEFT_OK;
}

/* Puts this rank's memory behind it, and gives it addresses: when all GPUs have joined. The object is given
 * back. */
static weft_status bind(weft_group *group, size_t bytes, CUmemGenericAllocationHandle object)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    CUdeviceptr slot = (CUdeviceptr)(uintptr_t)weft_cuda_heap_slot(&g->heap, group->rank),
                first = slot + g->multicast.covered;
    weft_status status = WEFT_OK;

    for (int i = 0; i < g->heap.piece_count && status == WEFT_OK; i++) {
        weft_cuda_piece piece = g->heap.pieces[i];

        if (piece.at >= first && piece.at < first + bytes)
            status = weft_cuda_check(
                cu, cu->cuMulticastBindAddr(object, piece.at - first, piece.at, piece.bytes, 0),
                "cuMulticastBindAddr", &group->error);
    }
    if (status == WEFT_OK)
        return weft_cuda_heap_map(&g->multicast.range, 0, g->multicast.covered, bytes, object, &group->error);
    cu->cuMemRelease(object);
    return status;
}

weft_status weft_cuda_multicast_cover(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    size_t bytes = g->committed - g->multicast.covered;
    CUmemGenericAllocationHandle object = 0;
    int fd, fds[WEFT_RANKS_MAX];
    weft_status mine, status;

    if (bytes == 0)
        return WEFT_OK;
    status = weft_cuda_agree(group, WEFT_SYNC_ALLOC, create(group, bytes, &object, &fd));
    if (status == WEFT_OK)
        status = weft_group_pass(group, WEFT_SYNC_ALLOC, fd, fds);
    if (status == WEFT_OK) {
        mine = join(group, fds, &object);
        for (int rank = 0; rank < group->size; rank++)
            close(fds[rank]);
        status = weft_cuda_agree(group, WEFT_SYNC_ALLOC, mine);
    }
    if (status == WEFT_OK) {
        status = weft_cuda_agree(group, WEFT_SYNC_ALLOC, bind(group, bytes, object));
        object = 0;
    }
    if (object)
        g->device->cu->cuMemRelease(object);
    if (status == WEFT_OK)
        g->multicast.covered += bytes;
    if (fd >= 0)
        close(fd);
    return status;
}
