/* Putting a group on GPUs, and its symmetric memory there. See group.h. */
#include "run/cuda/group.h"

#include "core/round.h"
#include "group/pass.h"
#include "run/cuda/prove.h"
#include "run/cuda/watch.h"
#include "symm/symm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 32 << 20, /* memory is added in pieces of at least this */
    DEVICES_MAX = 64,
};

/* ---- GPUs of this process, opened once ------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    weft_cuda_device devices[DEVICES_MAX];
    int references[DEVICES_MAX];
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

weft_status weft_cuda_device_take(int index, int rank, weft_cuda_device **device, weft_error_text *error)
{
    int count = 0;
    weft_status status = weft_cuda_gpus.count(&count, error);

    if (status != WEFT_OK)
        return status;
    if (index == -1 && count > 0)
        index = rank % count;
    if (count > DEVICES_MAX)
        count = DEVICES_MAX;
    if (index < 0 || index >= count)
        return weft_error_set(error, count ? WEFT_ERR_ARGUMENT : WEFT_ERR_UNSUPPORTED,
                              "weft_group_use_gpu: there is no GPU %d; this machine has %d", index, count);
    pthread_mutex_lock(&opened.lock);
    if (opened.references[index] == 0)
        status = weft_cuda_gpus.open(index, &opened.devices[index], error);
    if (status == WEFT_OK) {
        opened.references[index]++;
        *device = &opened.devices[index];
    }
    pthread_mutex_unlock(&opened.lock);
    return status;
}

void weft_cuda_device_give(weft_cuda_device *device)
{
    int index = (int)(device - opened.devices);

    pthread_mutex_lock(&opened.lock);
    if (--opened.references[index] == 0)
        weft_cuda_device_close(device);
    pthread_mutex_unlock(&opened.lock);
}

int weft_cuda_sharers(const weft_cuda_group *g)
{
    int sharers;

    pthread_mutex_lock(&opened.lock);
    sharers = opened.references[g->device - opened.devices];
    pthread_mutex_unlock(&opened.lock);
    return sharers;
}

static _Thread_local struct {
    int depth;
    CUstreamCaptureMode mode; /* the caller's */
} inside;

void weft_cuda_push(const weft_cuda_group *g)
{
    g->device->cu->cuCtxPushCurrent(g->device->context);
    if (inside.depth++ == 0) {
        inside.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        g->device->cu->cuThreadExchangeStreamCaptureMode(&inside.mode);
    }
}

void weft_cuda_pop(const weft_cuda_group *g)
{
    CUcontext left;

    if (--inside.depth == 0)
        g->device->cu->cuThreadExchangeStreamCaptureMode(&inside.mode);
    g->device->cu->cuCtxPopCurrent(&left);
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* Maps every peer's piece; `fds` are closed. */
static weft_status import_all(weft_cuda_group *g, int me, size_t bytes, int *fds, weft_error_text *error)
{
    weft_status status = WEFT_OK;

    for (int rank = 0; rank < g->heap.world; rank++) {
        if (rank != me && status == WEFT_OK)
            status = weft_cuda_heap_import(&g->heap, rank, g->committed, bytes, fds[rank], error);
        close(fds[rank]);
    }
    return status;
}

/* Memory of this rank's own for all to map. */
static weft_status create(weft_group *group, size_t bytes, int *fd)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = weft_cuda_heap_create(&g->heap, group->rank, g->committed, bytes,
                                               group->size > 1 ? fd : NULL, &group->error);
    weft_error_text why = group->error;

    return status == WEFT_OK ? WEFT_OK
                             : weft_error_set(&group->error, status,
                                              "rank %d could not add %zu bytes of GPU memory: %.400s",
                                              group->rank, bytes, why.text);
}

/* Collective: adds memory to every slot, until `needed` bytes of it have some. Where a rank cannot, nobody
 * does. */
static weft_status extend(weft_group *group, size_t needed)
{
    weft_cuda_group *g = weft_cuda_of(group);
    size_t bytes = needed - g->committed, left = g->heap.stride - g->committed;
    int fd = -1, fds[WEFT_RANKS_MAX], before = g->heap.piece_count;
    weft_status status;

    bytes = weft_max_bytes(bytes, PIECE_BYTES);
    bytes = weft_round_up_bytes(bytes, g->heap.grain);
    bytes = weft_min_bytes(bytes, left);
    status = weft_cuda_agree(group, WEFT_SYNC_ALLOC, create(group, bytes, &fd));
    if (status == WEFT_OK && group->size > 1) {
        status = weft_group_pass(group, WEFT_SYNC_ALLOC, fd, fds);
        if (status == WEFT_OK)
            status = weft_cuda_agree(group, WEFT_SYNC_ALLOC,
                                     import_all(g, group->rank, bytes, fds, &group->error));
    }
    if (fd >= 0)
        close(fd);
    if (status == WEFT_OK)
        g->committed += bytes;
    else
        weft_cuda_heap_shrink(&g->heap, before);
    return status;
}

bool weft_cuda_contains(const weft_group *group, const void *pointer, size_t bytes)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    const char *slot = weft_cuda_heap_slot(&g->heap, group->rank);
    size_t offset = (size_t)((const char *)pointer - slot);

    return (const char *)pointer >= slot && offset < g->committed && bytes <= g->committed - offset;
}

void *weft_cuda_peer(const weft_group *group, const void *pointer, int rank)
{
    const weft_cuda_group *g = weft_cuda_of(group);

    if (!weft_cuda_contains(group, pointer, 1))
        return NULL;
    return (char *)(uintptr_t)pointer + (ptrdiff_t)(rank - group->rank) * (ptrdiff_t)g->heap.stride;
}

static weft_status clear(weft_cuda_group *g, char *memory, size_t bytes, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, bytes, g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

weft_status weft_cuda_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    weft_cuda_group *g = weft_cuda_of(group);
    uint64_t rounded = bytes > g->heap.stride ? bytes : weft_round_up_bytes(bytes, 256);
    weft_symm_ask ask = {
        .bytes = bytes,
        .alignment = alignment,
        .left = UINT64_MAX,
        .zones = 1,
        .in = {{WEFT_ZONE_LENT, rounded ? rounded : 256, alignment < 256 ? 256 : alignment}},
    };
    weft_status status = weft_symm_find_room(group, &ask);

    if (status != WEFT_OK)
        return status;
    if (!ask.taken)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for symmetric objects",
                                 group->rank);
    weft_cuda_push(g);
    if (ask.offset + ask.zone_bytes > g->committed)
        status = extend(group, ask.offset + ask.zone_bytes);
    if (status == WEFT_OK)
        status = weft_cuda_agree(
            group, WEFT_SYNC_ALLOC,
            clear(g, weft_cuda_heap_slot(&g->heap, group->rank) + ask.offset, ask.zone_bytes, &group->error));
    weft_cuda_pop(g);
    if (status != WEFT_OK) {
        weft_symm_give(group, WEFT_ZONE_LENT, ask.offset);
        return status;
    }
    *pointer = weft_cuda_heap_slot(&g->heap, group->rank) + ask.offset;
    return WEFT_OK;
}

void weft_cuda_give(weft_group *group, void *pointer)
{
    weft_cuda_group *g = weft_cuda_of(group);

    weft_symm_give(group, WEFT_ZONE_LENT,
                   (uint64_t)((char *)pointer - weft_cuda_heap_slot(&g->heap, group->rank)));
}

weft_status weft_cuda_release(weft_group *group, void *pointer)
{
    weft_cuda_group *g = weft_cuda_of(group);
    uint64_t offset = (uint64_t)((char *)pointer - weft_cuda_heap_slot(&g->heap, group->rank));

    if (!pointer || group->world->foreign)
        return WEFT_OK;
    if (!weft_symm_held(group, WEFT_ZONE_LENT, offset))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_free: %p is not the beginning of an object of this group, or was freed",
                              pointer);
    if (weft_symm_let_go(group, WEFT_ZONE_LENT, offset))
        weft_symm_settle(group, WEFT_ZONE_LENT, offset);
    return WEFT_OK;
}

static weft_status copy_now(const weft_cuda_group *g, void *to, const void *from, size_t bytes,
                            weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(
        cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

weft_status weft_cuda_copy_on(const weft_cuda_group *g, void *to, const void *from, size_t bytes,
                              weft_error_text *error)
{
    weft_status status;

    weft_cuda_push(g);
    status = bytes ? copy_now(g, to, from, bytes, error) : WEFT_OK;
    weft_cuda_pop(g);
    return status;
}

weft_status weft_cuda_copy(weft_group *group, void *to, const void *from, size_t bytes)
{
    return weft_cuda_copy_on(weft_cuda_of(group), to, from, bytes, &group->error);
}

/* ---- attaching ------------------------------------------------------------------------------------ */

typedef struct greeting {
    int32_t status, crews, adds, library, multicast;
    uint64_t process; /* the same for ranks of one process, and for no others */
    CUuuid uuid;
    uint64_t bytes, grain;
    char text[WEFT_ERROR_TEXT_BYTES];
} greeting;

/* Whether this GPU can add in the memory of every other one that it sees; not where it sees none. */
static weft_status see_atomics(const weft_cuda_group *g, int32_t *adds, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    int count = 0;

    WEFT_CUDA_TRY(cuDeviceGetCount(&count));
    *adds = count > 1;
    for (int i = 0; i < count; i++) {
        CUdevice other;
        int native = 0;

        WEFT_CUDA_TRY(cuDeviceGet(&other, i));
        if (other == g->device->device)
            continue;
        WEFT_CUDA_TRY(cuDeviceGetP2PAttribute(&native, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                              g->device->device, other));
        *adds &= native != 0;
    }
    return WEFT_OK;
}

static weft_status describe(weft_cuda_group *g, greeting *mine, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    size_t bytes, grain;
    weft_status status = weft_cuda_heap_grain(g->device, &grain, error);

    if (status != WEFT_OK)
        return status;
    if (!g->device->vmm_fd)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "%s cannot share memory by file descriptor, which groups on GPUs need",
                              g->device->name);
    WEFT_CUDA_TRY(cuDeviceGetUuid(&mine->uuid, g->device->device));
    WEFT_CUDA_TRY(cuDeviceTotalMem(&bytes, g->device->device));
    WEFT_CUDA_TRY(cuMemAllocHost(&g->pinned, WEFT_CUDA_PINNED_BYTES));
    status = weft_cuda_stream_renew(g, error);
    if (status != WEFT_OK)
        return status;
    memset(g->pinned, 0, WEFT_CUDA_PINNED_BYTES);
    g->stop = (uint32_t *)((char *)g->pinned + WEFT_CUDA_PINNED_BYTES / 2);
    g->met = g->stop + 32;
    mine->process = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)&opened;
    mine->bytes = bytes;
    mine->grain = grain;
    mine->crews = g->device->crews;
    mine->library = weft_cublaslt_source() != NULL;
    mine->multicast = g->device->multicast;
    return see_atomics(g, &mine->adds, error);
}

/* Everybody's GPU: how much of the own one is this rank's, and what memory all can agree on. */
static weft_status meet(weft_group *group, const greeting *mine, size_t *bytes, size_t *grain)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = weft_group_exchange(group, WEFT_SYNC_GPU, mine, sizeof(*mine));
    bool together = true, adds = true;

    *bytes = *grain = 0;
    g->library = g->whole = g->switched = true;
    g->crews = INT32_MAX;
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++) {
        const greeting *theirs = weft_group_board(group, rank);
        int sharers = 0;

        if (theirs->status != WEFT_OK)
            return weft_error_set(&group->error, (weft_status)theirs->status, "rank %d: %.480s", rank,
                                  theirs->text);
        for (int other = 0; other < group->size; other++)
            sharers += memcmp(&((const greeting *)weft_group_board(group, other))->uuid, &theirs->uuid,
                              sizeof(theirs->uuid)) == 0;
        for (int other = 0; other < rank; other++) {
            const greeting *before = weft_group_board(group, other);

            g->crowds |= before->process == theirs->process &&
                         memcmp(&before->uuid, &theirs->uuid, sizeof(theirs->uuid)) == 0;
        }
        together &= sharers == group->size;
        g->whole &= sharers == 1;
        g->crowded |= rank != group->rank && theirs->process == mine->process &&
                      memcmp(&theirs->uuid, &mine->uuid, sizeof(mine->uuid)) == 0;
        adds &= theirs->adds != 0;
        g->library &= theirs->library != 0;
        g->switched &= theirs->multicast != 0;
        g->crews = theirs->crews / sharers < g->crews ? theirs->crews / sharers : g->crews;
        *bytes = theirs->bytes > *bytes ? theirs->bytes : *bytes;
        *grain = theirs->grain > *grain ? theirs->grain : *grain;
        if (theirs->crews / sharers < 1)
            return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                                  "%d ranks on one GPU: its SMs hold no more than %d at once", sharers,
                                  theirs->crews);
    }
    g->adds = together || adds;
    g->switched &= g->whole && group->size > 1;
    return status;
}

/* Whether this GPU cannot address the memory of another one that a rank is on, of those that this process
 * sees. Of others only the proof of memory can tell. */
static weft_status see_peers(weft_group *group, int32_t *apart)
{
    const weft_cuda_device *device = weft_cuda_of(group)->device;
    const weft_cuda_driver *cu = device->cu;
    weft_error_text *error = &group->error;
    int count = 0;

    *apart = false;
    WEFT_CUDA_TRY(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        CUdevice other;
        CUuuid uuid;
        int reaches = 0;

        WEFT_CUDA_TRY(cuDeviceGet(&other, i));
        if (other == device->device)
            continue;
        WEFT_CUDA_TRY(cuDeviceGetUuid(&uuid, other));
        WEFT_CUDA_TRY(cuDeviceCanAccessPeer(&reaches, device->device, other));
        for (int rank = 0; !reaches && rank < group->size; rank++)
            *apart |=
                memcmp(&((const greeting *)weft_group_board(group, rank))->uuid, &uuid, sizeof(uuid)) == 0;
    }
    return WEFT_OK;
}

/* The same on any rank. */
static weft_status meet_peers(weft_group *group, bool *apart)
{
    int32_t mine = false;
    weft_status status = weft_cuda_agree(group, WEFT_SYNC_GPU, see_peers(group, &mine));

    *apart = false;
    if (status == WEFT_OK)
        status = weft_group_exchange(group, WEFT_SYNC_GPU, &mine, sizeof(mine));
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++)
        *apart |= *(const int32_t *)weft_group_board(group, rank) != 0;
    return status;
}

static weft_status build(weft_group *group, int index, bool *apart)
{
    weft_cuda_group *g = weft_cuda_of(group);
    greeting mine = {0};
    size_t bytes, grain;
    void *proofs = NULL;
    weft_status status = weft_cuda_device_take(index, group->rank, &g->device, &group->error);

    if (status == WEFT_OK) {
        weft_cuda_push(g);
        status = describe(g, &mine, &group->error);
        weft_cuda_pop(g);
    }
    mine.status = (int32_t)status;
    if (status != WEFT_OK)
        memcpy(mine.text, group->error.text, sizeof(mine.text));
    status = meet(group, &mine, &bytes, &grain);
    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = meet_peers(group, apart);
    if (status != WEFT_OK || *apart) {
        weft_cuda_pop(g);
        return status;
    }
    status = weft_cuda_heap_reserve(g->device, group->size, bytes, grain, &g->heap, &group->error);
    if (status == WEFT_OK) {
        g->offsets = weft_heap_create(g->heap.stride);
        if (!g->offsets || !weft_symm_lend_zone(group, g->offsets, "on each GPU"))
            status = weft_error_set(&group->error, WEFT_ERR_MEMORY, "no memory for the heap's bookkeeping");
    }
    status = weft_cuda_agree(group, WEFT_SYNC_GPU, status);
    if (status == WEFT_OK)
        status = weft_cuda_alloc(group, (size_t)(group->size + 1) * 8, 0, &proofs);
    if (status == WEFT_OK && group->size > 1)
        weft_cuda_watch(group);
    if (status == WEFT_OK) {
        size_t at = (size_t)((char *)proofs - weft_cuda_heap_slot(&g->heap, group->rank));

        status = weft_cuda_prove_memory(group, at);
        if (status == WEFT_OK)
            status = weft_cuda_prove_kernels(group, at + (size_t)group->size * 8);
    }
    weft_cuda_pop(g);
    return status;
}

void weft_cuda_detach(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);

    if (g->device) {
        const weft_cuda_driver *cu = g->device->cu;

        weft_cuda_unwatch(group);
        weft_cuda_push(g);
        if (g->tiles)
            cu->cuMemFreeAsync(g->tiles, g->device->uploads);
        if (g->workspace.at)
            cu->cuMemFreeAsync(g->workspace.at, g->device->uploads);
        while (g->events.count > 0)
            cu->cuEventDestroy(g->events.spare[--g->events.count]);
        if (g->stream)
            cu->cuStreamDestroy(g->stream);
        if (g->pinned)
            cu->cuMemFreeHost(g->pinned);
        weft_cuda_heap_free(&g->multicast.range);
        weft_cuda_heap_free(&g->heap);
        weft_cuda_pop(g);
        weft_cuda_device_give(g->device);
    }
    if (g->offsets) {
        weft_symm_lend_zone(group, NULL, NULL);
        weft_heap_destroy(g->offsets);
    }
    free(g);
    group->device = NULL;
}

weft_status weft_cuda_attach(weft_group *group, int index, bool *apart)
{
    weft_cuda_group *g = calloc(1, sizeof(*g));
    weft_error_text why;
    weft_status status;

    if (!g)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its GPU", group->rank);
    if (!group->world->processes && group->size > 1)
        weft_cuda_driver_widen();
    group->device = g;
    g->issue_stream = WEFT_STREAM_OWN;
    g->spare_most = WEFT_CUDA_SPARE_BYTES;
    *apart = false;
    status = build(group, index, apart);
    if (status != WEFT_OK || *apart) {
        why = group->error;
        weft_cuda_detach(group);
        group->error = why;
    }
    return status;
}
