/* Symmetric memory on a GPU through the driver's virtual memory calls. See heap.h. */
#include "run/cuda/heap.h"

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        weft_status status_ = weft_cuda_check(cu, cu->call, #call, error);                                   \
        if (status_ != WEFT_OK)                                                                              \
            return status_;                                                                                  \
    } while (0)

static CUmemAllocationProp properties(const weft_cuda_device *device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = device->vmm_fd
                                                             ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                             : CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device}};
}

weft_status weft_cuda_heap_reserve(weft_cuda_device *device, int world, size_t bytes, weft_cuda_heap *heap,
                                   weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUmemAllocationProp prop = properties(device);
    weft_cuda_heap made = {.device = device, .world = world};
    size_t grain = 0;
    TRY(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    made.stride = (bytes + grain - 1) / grain * grain;
    TRY(cuMemAddressReserve(&made.base, made.stride * (size_t)world, grain, 0, 0));
    *heap = made;
    return WEFT_OK;
}

/* Maps `memory` into a slot; the mapping keeps it alive, so the handle is given back either way. */
static weft_status map_slot(weft_cuda_heap *heap, int rank, CUmemGenericAllocationHandle memory,
                            weft_error_text *error)
{
    const weft_cuda_driver *cu = heap->device->cu;
    CUdeviceptr slot = heap->base + (size_t)rank * heap->stride;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = heap->device->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cu->cuMemMap(slot, heap->stride, 0, memory, 0);
    cu->cuMemRelease(memory);
    if (result != CUDA_SUCCESS)
        return weft_cuda_check(cu, result, "cuMemMap", error);
    result = cu->cuMemSetAccess(slot, heap->stride, &access, 1);
    if (result != CUDA_SUCCESS) {
        cu->cuMemUnmap(slot, heap->stride);
        return weft_cuda_check(cu, result, "cuMemSetAccess", error);
    }
    heap->mapped |= 1 << rank;
    return WEFT_OK;
}

weft_status weft_cuda_heap_create(weft_cuda_heap *heap, int rank, int *fd, weft_error_text *error)
{
    const weft_cuda_driver *cu = heap->device->cu;
    CUmemAllocationProp prop = properties(heap->device);
    CUmemGenericAllocationHandle memory;
    TRY(cuMemCreate(&memory, heap->stride, &prop, 0));
    if (fd) {
        CUresult result =
            cu->cuMemExportToShareableHandle(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result != CUDA_SUCCESS) {
            cu->cuMemRelease(memory);
            return weft_cuda_check(cu, result, "cuMemExportToShareableHandle", error);
        }
    }
    weft_status status = map_slot(heap, rank, memory, error);
    if (status != WEFT_OK)
        return status;
    TRY(cuMemsetD8Async(heap->base + (size_t)rank * heap->stride, 0, heap->stride, NULL));
    TRY(cuStreamSynchronize(NULL));
    return WEFT_OK;
}

weft_status weft_cuda_heap_import(weft_cuda_heap *heap, int rank, int fd, weft_error_text *error)
{
    const weft_cuda_driver *cu = heap->device->cu;
    CUmemGenericAllocationHandle memory;
    TRY(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return map_slot(heap, rank, memory, error);
}

void weft_cuda_heap_free(weft_cuda_heap *heap)
{
    if (!heap->base)
        return;
    for (int r = 0; r < heap->world; r++)
        if (heap->mapped & 1 << r)
            heap->device->cu->cuMemUnmap(heap->base + (size_t)r * heap->stride, heap->stride);
    heap->device->cu->cuMemAddressFree(heap->base, heap->stride * (size_t)heap->world);
    *heap = (weft_cuda_heap){0};
}
