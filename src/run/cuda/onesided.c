/*
 * A put and a get are copies of the driver, a post and an add a kernel of one thread (onesided.cu), all on
 * the rank's own stream, which the host then waits for while it looks after the peers: so they are done when
 * they return, and come in the order of their calls. A wait looks at its signal again and again by a copy
 * past all streams, as every wait of the host under its deadline.
 *
 * A signal is the count of a pad (weft/device.cuh): kernels may post what the host waits for, and wait for
 * what it posts. A copy that is done is in the memory of its rank before the kernel of a later post begins,
 * and one that begins after a count was seen reads what came before its post.
 */
#include "run/cuda/onesided.h"

#include "run/cuda/group.h"

#include <string.h>

static weft_status copy(const weft_cuda_group *g, void *to, const void *from, size_t bytes,
                        weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, g->stream));
    return WEFT_OK;
}

static weft_status move(weft_group *group, void *to, const void *from, size_t bytes)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status;

    weft_cuda_push(g);
    status = copy(g, to, from, bytes, &group->error);
    if (status == WEFT_OK)
        status = weft_cuda_pass(group, g->stream);
    weft_cuda_pop(g);
    return status;
}

static weft_status launch(const weft_cuda_group *g, weft_cuda_add add, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    CUlaunchConfig config = weft_cuda_config(1, 1, 0, g->stream);
    void *parameters[] = {&add};

    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, g->device->add, parameters, NULL));
    return WEFT_OK;
}

static weft_status run(weft_group *group, weft_cuda_add add)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status;

    weft_cuda_push(g);
    status = launch(g, add, &group->error);
    if (status == WEFT_OK)
        status = weft_cuda_pass(group, g->stream);
    weft_cuda_pop(g);
    return status;
}

static weft_status post(weft_group *group, void *signal, uint64_t add)
{
    return run(group, (weft_cuda_add){.word = signal, .add = add});
}

static weft_status add_to(weft_group *group, int64_t *word, int64_t add, int64_t *before)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    uint64_t *was = g->pinned;
    weft_status status;

    if (group->size > 1 && !g->adds)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "weft_atomic_add: the GPUs of this group cannot add in one another's memory");
    status = run(group, (weft_cuda_add){.word = (uint64_t *)word, .add = (uint64_t)add, .before = was});
    if (status == WEFT_OK)
        *before = (int64_t)*was;
    return status;
}

typedef struct watched {
    weft_cuda_group *g;
    const void *signal;
    uint64_t value;
    weft_status status;
    weft_error_text error;
} watched;

static weft_status read_signal(const watched *w, uint64_t *have, weft_error_text *error)
{
    const weft_cuda_driver *cu = w->g->device->cu;

    WEFT_CUDA_TRY(cuMemcpyDtoHAsync(w->g->pinned, (CUdeviceptr)(uintptr_t)w->signal, sizeof(*have),
                                    w->g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(w->g->device->uploads));
    memcpy(have, w->g->pinned, sizeof(*have));
    return WEFT_OK;
}

static bool has_come(void *argument)
{
    watched *w = argument;
    uint64_t have = 0;

    w->status = read_signal(w, &have, &w->error);
    return w->status != WEFT_OK || weft_signal_passed(have, w->value);
}

static weft_status wait(weft_group *group, void *signal, uint64_t value, int from)
{
    weft_wait_note note = {
        .op = "weft_wait_signal", .peer = from, .task = -1, .epoch = value, .by_kernels = true};
    watched w = {.g = weft_cuda_of(group), .signal = signal, .value = value};
    weft_status status;

    weft_cuda_push(w.g);
    status = weft_wait_until(group, has_come, &w, &note);
    weft_cuda_pop(w.g);
    if (status == WEFT_OK && w.status != WEFT_OK) {
        group->error = w.error;
        return w.status;
    }
    return status;
}

const weft_onesided_ops weft_cuda_onesided = {
    .holds = weft_cuda_contains, .move = move, .post = post, .wait = wait, .add = add_to};
