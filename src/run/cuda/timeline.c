/* Records runs. See timeline.h. */
#include "run/cuda/timeline.h"

#include <stdlib.h>

static size_t words_of(const weft_plan_part *part)
{
    return 2 * ((size_t)part->task_count + 1);
}

static size_t add(weft_event *events, size_t count, weft_event_kind kind, const weft_plan_part *part,
                  uint32_t lane, uint32_t task, uint64_t start, uint64_t end)
{
    events[count] = (weft_event){.start_ns = (int64_t)start,
                                 .end_ns = (int64_t)end,
                                 .rank = part->rank,
                                 .lane = (uint16_t)lane,
                                 .kind = (uint8_t)kind,
                                 .task = task};
    return count + 1;
}

/* A GEMM on the rank's own operands starts without waiting: its waits guard where the result goes. */
static bool starts_at_once(const weft_plan_part *part, const weft_task *task)
{
    return task->kind == WEFT_TASK_GEMM && weft_product_a(part, task)->cols != 0 &&
           weft_region_is_given(part, weft_product_a(part, task)) &&
           weft_region_is_given(part, weft_product_b(part, task));
}

size_t weft_cuda_timeline_events(const weft_plan_part *part, const uint64_t *words, weft_event *events)
{
    static const weft_event_kind kinds[] = {[WEFT_TASK_ENTER] = WEFT_EVENT_ENTER,
                                            [WEFT_TASK_COPY] = WEFT_EVENT_COPY,
                                            [WEFT_TASK_GEMM] = WEFT_EVENT_COMPUTE,
                                            [WEFT_TASK_REDUCE] = WEFT_EVENT_REDUCE,
                                            [WEFT_TASK_EXIT] = WEFT_EVENT_EXIT};
    const uint64_t began = words[2 * (size_t)part->task_count],
                   ended = words[2 * (size_t)part->task_count + 1];
    size_t count = 0;

    for (uint32_t l = 0; l < part->lane_count; l++) {
        uint64_t before = began;

        for (uint32_t i = 0; i < part->lanes[l].task_count; i++) {
            uint32_t at = part->lanes[l].task0 + i;
            const weft_task *task = &part->tasks[at];
            uint64_t ready = words[2 * (size_t)at], done = words[2 * (size_t)at + 1];

            if (task->kind == WEFT_TASK_EXIT && ended > before) {
                count = add(events, count, WEFT_EVENT_EXIT, part, l, at, before, ended);
            } else if (done > before) {
                if (ready > before && ready < done && !starts_at_once(part, task)) {
                    count = add(events, count, WEFT_EVENT_WAIT, part, l, at, before, ready);
                    before = ready;
                }
                count = add(events, count, kinds[task->kind], part, l, at, before, done);
                before = done;
            }
        }
    }
    return count;
}

/* Gives every running rank a buffer and runs once. */
static weft_status record(weft_cuda_world *w, CUdeviceptr *buffers, weft_error_text *error)
{
    const weft_cuda_driver *cu = w->device->cu;
    weft_status status;

    for (int r = 0; r < w->running; r++) {
        size_t bytes = words_of(&w->parts[r]) * sizeof(uint64_t);

        WEFT_CUDA_TRY(cuMemAllocAsync(&buffers[r], bytes, w->device->uploads));
        WEFT_CUDA_TRY(cuMemsetD8Async(buffers[r], 0, bytes, w->device->uploads));
        WEFT_CUDA_TRY(cuStreamSynchronize(w->device->uploads));
        w->executors[r].args.trace = (uint64_t *)(uintptr_t)buffers[r];
        w->executors[r].args.trace_tasks = w->parts[r].task_count;
    }
    status = weft_cuda_world_launch(w, error);
    return status == WEFT_OK ? weft_cuda_world_finish(w, error) : status;
}

static weft_status gather(weft_cuda_world *w, const CUdeviceptr *buffers, weft_event *events, size_t *count,
                          weft_error_text *error)
{
    const weft_cuda_driver *cu = w->device->cu;

    for (int r = 0; r < w->running; r++) {
        size_t bytes = words_of(&w->parts[r]) * sizeof(uint64_t);
        uint64_t *words = malloc(bytes);
        CUresult result = words ? cu->cuMemcpyDtoHAsync(words, buffers[r], bytes, w->device->uploads)
                                : CUDA_ERROR_OUT_OF_MEMORY;

        if (result == CUDA_SUCCESS)
            result = cu->cuStreamSynchronize(w->device->uploads);
        if (result == CUDA_SUCCESS)
            *count += weft_cuda_timeline_events(&w->parts[r], words, events + *count);
        free(words);
        if (result != CUDA_SUCCESS)
            return weft_cuda_check(cu, result, "cuMemcpyDtoHAsync", error);
    }
    return WEFT_OK;
}

weft_status weft_cuda_timeline(weft_cuda_world *w, weft_event **events, size_t *count, weft_error_text *error)
{
    CUdeviceptr buffers[WEFT_CUDA_WORLD_MAX] = {0};
    size_t room = 1;
    weft_status status;

    *count = 0;
    *events = NULL;
    if (w->executors[0].library.lt)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "cuBLASLt makes this product, and what it does when is not recorded; another "
                              "schedule than unfused is weft's own");
    if (w->executors[0].splitk.kernel)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "a kernel for products by themselves makes this one, and what it does when is not "
            "recorded; with library = 2 of the tuning a walker makes it");
    for (int r = 0; r < w->running; r++)
        room += words_of(&w->parts[r]);
    *events = malloc(room * sizeof(**events));
    if (!*events)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the events of %d ranks", w->running);
    status = record(w, buffers, error);
    if (status == WEFT_OK)
        status = gather(w, buffers, *events, count, error);
    for (int r = 0; r < w->running; r++) {
        w->executors[r].args.trace = NULL;
        if (buffers[r])
            w->device->cu->cuMemFreeAsync(buffers[r], w->device->uploads);
    }
    if (status != WEFT_OK) {
        free(*events);
        *events = NULL;
    }
    return status;
}
