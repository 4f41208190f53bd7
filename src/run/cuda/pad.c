/* What kernels of programs need: device tables of peers' addresses, and signal pads. See weft.h. */
#include "run/cuda/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Addresses of symmetric memory never change, so a table is right for as long as the group is. */
typedef struct weft_cuda_table {
    struct weft_cuda_table *next;
    const void *pointer;
    CUdeviceptr at;
} weft_cuda_table;

static weft_status upload(weft_cuda_group *g, const void *image, size_t bytes, CUdeviceptr *at,
                          weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(cuMemAllocAsync(at, bytes, g->device->uploads));
    WEFT_CUDA_TRY(cuMemcpyHtoDAsync(*at, image, bytes, g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

weft_status weft_cuda_peer_table(weft_group *group, const void *pointer, void *const **table)
{
    weft_cuda_group *g = weft_cuda_of(group);
    void *image[WEFT_RANKS_MAX];
    weft_cuda_table *made = g->tables;
    weft_status status;

    if (!weft_cuda_contains(group, pointer, 1))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_peer_table: %p is not symmetric memory of this group", pointer);
    while (made && made->pointer != pointer)
        made = made->next;
    if (!made) {
        made = calloc(1, sizeof(*made));
        if (!made)
            return weft_error_set(&group->error, WEFT_ERR_MEMORY, "no memory for a table of %d addresses",
                                  group->size);
        made->pointer = pointer;
        made->next = g->tables;
        g->tables = made;
    }
    if (!made->at) {
        for (int rank = 0; rank < group->size; rank++)
            image[rank] = weft_cuda_peer(group, pointer, rank);
        weft_cuda_push(g);
        status = upload(g, image, sizeof(*image) * (size_t)group->size, &made->at, &group->error);
        weft_cuda_pop(g);
        if (status != WEFT_OK)
            return status;
    }
    *table = (void *const *)(uintptr_t)made->at;
    return WEFT_OK;
}

void weft_cuda_tables_free(weft_cuda_group *g)
{
    const weft_cuda_driver *cu = g->device->cu;

    weft_cuda_push(g);
    while (g->tables) {
        weft_cuda_table *next = g->tables->next;

        if (g->tables->at)
            cu->cuMemFreeAsync(g->tables->at, g->device->uploads);
        free(g->tables);
        g->tables = next;
    }
    weft_cuda_pop(g);
}

weft_status weft_cuda_pad_create(weft_group *group, uint32_t count, weft_signal_pad *pad)
{
    weft_cuda_group *g = weft_cuda_of(group);
    void *memory = NULL;
    weft_status status =
        weft_cuda_alloc(group, ((size_t)count + 1) * WEFT_SIGNAL_BYTES, WEFT_SIGNAL_BYTES, &memory);

    _Static_assert(sizeof(weft_signal_record) <= WEFT_SIGNAL_BYTES, "it stands behind the last signal");
    if (status != WEFT_OK)
        return status;
    *pad = (weft_signal_pad){
        .size = sizeof(*pad),
        .rank = group->rank,
        .ranks = group->size,
        .stride = (int64_t)g->heap.stride,
        .signals = memory,
        .count = count,
        .record = (weft_signal_record *)((char *)memory + (size_t)count * WEFT_SIGNAL_BYTES),
        .stop = g->stop,
        .deadline_ns = (uint64_t)group->enter_ns,
    };
    return WEFT_OK;
}

static weft_status read_record(weft_cuda_group *g, const weft_signal_pad *pad, weft_signal_record *record,
                               weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(cuMemcpyDtoHAsync(g->pinned, (CUdeviceptr)(uintptr_t)pad->record, sizeof(*record),
                                    g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    memcpy(record, g->pinned, sizeof(*record));
    return WEFT_OK;
}

weft_status weft_cuda_pad_wait(weft_group *group, const weft_signal_pad *pad, void *stream)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_signal_record record = {0};
    char why[256];
    weft_status status;

    if (!weft_cuda_contains(group, pad->record, sizeof(*pad->record)))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_signal_pad_wait: the pad is not one of this group");
    weft_cuda_push(g);
    status = weft_cuda_pass(group, weft_cuda_stream(g, stream));
    if (status == WEFT_OK)
        status = read_record(g, pad, &record, &group->error);
    weft_cuda_pop(g);
    if (status != WEFT_OK || !record.ended)
        return status;
    if (record.set != 2) /* a peer's kernel gave up first: its rank says why */
        return weft_cuda_lost(group, WEFT_ERR_PEER, "a kernel of another rank gave up a wait");
    snprintf(
        why, sizeof(why),
        "a kernel of rank %d gave up its wait for signal %u of a pad: it is %llu, and %llu was waited for",
        group->rank, record.signal, (unsigned long long)record.have, (unsigned long long)record.want);
    return weft_cuda_lost(group, WEFT_ERR_TIMEOUT, why);
}
