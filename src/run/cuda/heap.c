/* Symmetric memory on GPUs through the driver's virtual memory calls. See heap.h. */
#include "run/cuda/heap.h"

#include "core/round.h"

#include <stdlib.h>

static CUmemAllocationProp properties(const weft_cuda_device *device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = device->vmm_fd
                                                             ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                             : CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device}};
}

weft_status weft_cuda_heap_grain(const weft_cuda_device *device, size_t *grain, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUmemAllocationProp prop = properties(device);
    WEFT_CUDA_TRY(cuMemGetAllocationGranularity(grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    return WEFT_OK;
}

weft_status weft_cuda_heap_reserve(weft_cuda_device *device, int world, size_t bytes, size_t grain,
                                   weft_cuda_heap *heap, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_heap made = {.device = device, .world = world, .grain = grain};
    made.stride = weft_round_up_bytes(bytes, grain);
    WEFT_CUDA_TRY(cuMemAddressReserve(&made.base, made.stride * (size_t)world, grain, 0, 0));
    *heap = made;
    return WEFT_OK;
}

static weft_cuda_piece piece_of(const weft_cuda_heap *heap, int rank, size_t offset, size_t bytes)
{
    return (weft_cuda_piece){heap->base + (size_t)rank * heap->stride + offset,
                             weft_round_up_bytes(bytes, heap->grain)};
}

weft_status weft_cuda_heap_map(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes,
                               CUmemGenericAllocationHandle memory, weft_error_text *error)
{
    weft_cuda_piece piece = piece_of(heap, rank, offset, bytes);
    const weft_cuda_driver *cu = heap->device->cu;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = heap->device->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    weft_cuda_piece *grown = realloc(heap->pieces, (size_t)(heap->piece_count + 1) * sizeof(*heap->pieces));
    CUresult result;
    if (!grown) {
        cu->cuMemRelease(memory);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the list of mapped GPU memory");
    }
    heap->pieces = grown;
    result = cu->cuMemMap(piece.at, piece.bytes, 0, memory, 0);
    cu->cuMemRelease(memory);
    if (result != CUDA_SUCCESS)
        return weft_cuda_check(cu, result, "cuMemMap", error);
    result = cu->cuMemSetAccess(piece.at, piece.bytes, &access, 1);
    if (result != CUDA_SUCCESS) {
        cu->cuMemUnmap(piece.at, piece.bytes);
        return weft_cuda_check(cu, result, "cuMemSetAccess", error);
    }
    heap->pieces[heap->piece_count++] = piece;
    return WEFT_OK;
}

weft_status weft_cuda_heap_create(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes, int *fd,
                                  weft_error_text *error)
{
    const weft_cuda_driver *cu = heap->device->cu;
    CUmemAllocationProp prop = properties(heap->device);
    CUmemGenericAllocationHandle memory;
    weft_cuda_piece piece = piece_of(heap, rank, offset, bytes);
    WEFT_CUDA_TRY(cuMemCreate(&memory, piece.bytes, &prop, 0));
    if (fd) {
        CUresult result =
            cu->cuMemExportToShareableHandle(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result != CUDA_SUCCESS) {
            cu->cuMemRelease(memory);
            return weft_cuda_check(cu, result, "cuMemExportToShareableHandle", error);
        }
    }
    weft_status status = weft_cuda_heap_map(heap, rank, offset, bytes, memory, error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuMemsetD8Async(piece.at, 0, piece.bytes, heap->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(heap->device->uploads));
    return WEFT_OK;
}

weft_status weft_cuda_heap_import(weft_cuda_heap *heap, int rank, size_t offset, size_t bytes, int fd,
                                  weft_error_text *error)
{
    const weft_cuda_driver *cu = heap->device->cu;
    CUmemGenericAllocationHandle memory;
    WEFT_CUDA_TRY(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return weft_cuda_heap_map(heap, rank, offset, bytes, memory, error);
}

void weft_cuda_heap_shrink(weft_cuda_heap *heap, int pieces)
{
    for (; heap->piece_count > pieces; heap->piece_count--) {
        const weft_cuda_piece *last = &heap->pieces[heap->piece_count - 1];

        heap->device->cu->cuMemUnmap(last->at, last->bytes);
    }
}

void weft_cuda_heap_free(weft_cuda_heap *heap)
{
    if (!heap->base)
        return;
    weft_cuda_heap_shrink(heap, 0);
    heap->device->cu->cuMemAddressFree(heap->base, heap->stride * (size_t)heap->world);
    free(heap->pieces);
    *heap = (weft_cuda_heap){0};
}
