/* Ranks on GPUs agree on an outcome, wait for a stream, keep events. See group.h. */
#include "core/clock.h"
#include "run/cuda/group.h"

#include <string.h>
#include <time.h>

enum {
    DRAIN_SPIN_NS = 200000,
    DRAIN_SLEEP_NS = 20000,
};

typedef struct verdict {
    int32_t status;
    size_t count;
    char text[WEFT_ERROR_TEXT_BYTES];
} verdict;

weft_status weft_cuda_agree(weft_group *group, weft_sync_kind kind, weft_status mine)
{
    size_t nothing = 0;

    return weft_cuda_agree_most(group, kind, mine, &nothing);
}

weft_status weft_cuda_agree_most(weft_group *group, weft_sync_kind kind, weft_status mine, size_t *most)
{
    verdict own = {.status = (int32_t)mine, .count = *most};
    weft_status status;

    if (mine != WEFT_OK)
        memcpy(own.text, group->error.text, sizeof(own.text));
    status = weft_group_exchange(group, kind, &own, sizeof(own));
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++) {
        const verdict *theirs = weft_group_board(group, rank);

        *most = theirs->count > *most ? theirs->count : *most;
        if (theirs->status != WEFT_OK)
            status = weft_error_set(&group->error, (weft_status)theirs->status, "%.511s", theirs->text);
    }
    return status;
}

weft_status weft_cuda_drain(const weft_cuda_group *g, CUstream stream, int64_t limit_ns,
                            weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    int64_t begun = weft_clock_ns();

    for (;;) {
        CUresult result = cu->cuStreamQuery(stream);
        int64_t waited = weft_clock_ns() - begun;

        if (result != CUDA_ERROR_NOT_READY)
            return weft_cuda_check(cu, result, "cuStreamQuery", error);
        if (waited > limit_ns)
            return weft_error_set(error, WEFT_ERR_TIMEOUT, "the GPU did not finish within %.3g s",
                                  (double)limit_ns * 1e-9);
        if (waited > DRAIN_SPIN_NS)
            nanosleep(&(struct timespec){0, DRAIN_SLEEP_NS}, NULL);
    }
}

weft_status weft_cuda_event_take(weft_group *group, CUevent *event)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &group->error;

    if (g->events.count > 0) {
        *event = g->events.spare[--g->events.count];
        return WEFT_OK;
    }
    WEFT_CUDA_TRY(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    return WEFT_OK;
}

void weft_cuda_event_give(weft_cuda_group *g, CUevent event)
{
    if (g->events.count < WEFT_CUDA_EVENTS)
        g->events.spare[g->events.count++] = event;
    else
        g->device->cu->cuEventDestroy(event);
}
