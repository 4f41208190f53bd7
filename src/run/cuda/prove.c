/* See prove.h. */
#include "run/cuda/prove.h"

#include <pthread.h>

enum {
    MEET_NS = 2000000000, /* for processes in turns on one GPU a meeting takes some milliseconds */
    MEETINGS = 5,
};

/* ---- memory --------------------------------------------------------------------------------------- */

/* Copies a word either way between a slot and pinned memory, under a deadline. */
static weft_status move_word(weft_cuda_group *g, int rank, size_t at, uint64_t *word, bool out,
                             int64_t limit_ns, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    CUdeviceptr there = (CUdeviceptr)(uintptr_t)(weft_cuda_heap_slot(&g->heap, rank) + at);

    *(uint64_t *)g->pinned = *word;
    if (out)
        WEFT_CUDA_TRY(cuMemcpyHtoDAsync(there, g->pinned, sizeof(*word), g->device->uploads));
    else
        WEFT_CUDA_TRY(cuMemcpyDtoHAsync(g->pinned, there, sizeof(*word), g->device->uploads));
    weft_status status = weft_cuda_drain(g, g->device->uploads, limit_ns, error);
    *word = *(uint64_t *)g->pinned;
    return status;
}

static uint64_t proof_of(const weft_group *group, int from, int to)
{
    return group->world->segment.header->nonce + 1 + (uint64_t)from * (uint64_t)group->size + (uint64_t)to;
}

weft_status weft_cuda_prove_memory(weft_group *group, size_t at)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_error_text *error = &group->error;
    weft_status status = WEFT_OK;
    int peer = 0;

    for (; peer < group->size && status == WEFT_OK; peer++) {
        uint64_t word = proof_of(group, group->rank, peer);

        status = move_word(g, peer, at + (size_t)group->rank * 8, &word, true, group->progress_ns, error);
    }
    if (status != WEFT_OK) {
        weft_error_text why = *error;
        weft_error_set(error, status, "rank %d cannot write the GPU memory of rank %d: %.400s", group->rank,
                       peer - 1, why.text);
    }
    status = weft_cuda_agree(group, WEFT_SYNC_GPU, status);
    for (peer = 0; peer < group->size && status == WEFT_OK; peer++) {
        uint64_t here = 0, there = 0;

        status = move_word(g, group->rank, at + (size_t)peer * 8, &here, false, group->progress_ns, error);
        if (status == WEFT_OK)
            status = move_word(g, peer, at + (size_t)peer * 8, &there, false, group->progress_ns, error);
        if (status == WEFT_OK &&
            (here != proof_of(group, peer, group->rank) || there != proof_of(group, peer, peer)))
            status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                    "the GPU memory of rank %d and of rank %d is not shared: a word written "
                                    "by one did not reach the other",
                                    group->rank, peer);
    }
    return weft_cuda_agree(group, WEFT_SYNC_GPU, status);
}

/* ---- kernels -------------------------------------------------------------------------------------- */

weft_status weft_cuda_stream_renew(weft_cuda_group *g, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CUstream fresh = NULL;
    CUresult result;

    pthread_mutex_lock(&lock);
    result = cu->cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && g->stream)
        cu->cuStreamDestroy(g->stream);
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS)
        g->stream = fresh;
    return weft_cuda_check(cu, result, "cuStreamCreate", error);
}

/* One kernel of every rank: all must run at the same time. `at` is a word of rank 0. */
static weft_status meet_once(weft_group *group, size_t at, int round)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_rehearsal rehearsal = {.arrived = (uint64_t *)(weft_cuda_heap_slot(&g->heap, 0) + at),
                                     .want = (uint64_t)(round + 1) * (uint64_t)group->size,
                                     .deadline_ns = MEET_NS,
                                     .met = g->met};
    weft_status status = weft_cuda_rehearse(g->device, g->stream, rehearsal, &group->error);

    if (status == WEFT_OK && !__atomic_load_n(g->met, __ATOMIC_ACQUIRE)) /* partner: weft_rehearse */
        status =
            weft_error_set(&group->error, WEFT_ERR_TIMEOUT,
                           "the kernels of the ranks do not run at the same time: rank %d's waited %.2g s "
                           "for the others (see CUDA_DEVICE_MAX_CONNECTIONS)",
                           group->rank, MEET_NS * 1e-9);
    return weft_cuda_agree(group, WEFT_SYNC_GPU, status);
}

weft_status weft_cuda_prove_kernels(weft_group *group, size_t at)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = WEFT_OK;

    for (int round = 0; group->size > 1 && round < MEETINGS; round++) {
        status = meet_once(group, at, round);
        if (status != WEFT_ERR_TIMEOUT || weft_group_check(group) != WEFT_OK)
            break;
        weft_cuda_stream_renew(g, &(weft_error_text){0}); /* without a new one the old one tries again */
    }
    return status;
}
