#include "bench/cuda/loop.h"

#include "bench/cuda/emulated.h"
#include "bench/cuda/failed.h"
#include "core/dtype.h"
#include "core/round.h"

#include <stdlib.h>

enum { ANSWER_SECONDS = 8 };

weft_status loop_gpu_open(loop_gpu *gpu)
{
    weft_status status;

    weft_cuda_driver_widen();
    status = weft_cuda_gpus.open(0, &gpu->device, &gpu->error);
    if (status == WEFT_OK)
        gpu->device.cu->cuCtxSetCurrent(gpu->device.context);
    return status;
}

int loop_gpu_begin(loop_gpu *b)
{
    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
    TRY(cuStreamCreate(&b->side, CU_STREAM_NON_BLOCKING));
    return 0;
}

int loop_put(loop_gpu *b, void *to, const void *from, size_t bytes)
{
    TRY(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to, from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

int loop_take(loop_gpu *b, void *to, const void *from, size_t bytes)
{
    TRY(cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    return 0;
}

weft_cuda_basis loop_basis(const loop_gpu *gpu, int world)
{
    return (weft_cuda_basis){.world = world,
                             .crews = gpu->device.crews,
                             .hopper = gpu->device.hopper,
                             .library = weft_cublaslt_source() != NULL,
                             .whole = true,
                             .adds = true};
}

int loop_make_parts(loop_gpu *b, loop *l, const weft_problem *problem, int world)
{
    weft_cuda_basis basis = loop_basis(b, world);
    weft_problem asked, resolved;

    if (failed(&b->error, weft_problem_resolve(problem, world, &asked, &b->error)))
        return 1;
    resolved = weft_cuda_choose(&basis, &asked);
    for (int r = 0; r < world; r++)
        if (failed(&b->error, weft_plan_make(&resolved, world, r, &l->parts[r], &b->error)))
            return 1;
    return 0;
}

int loop_make_memory(loop_gpu *b, loop *l, const size_t *operand_bytes, size_t extra_bytes, uint32_t signals,
                     char **extra)
{
    const weft_plan_part *part = &l->parts[0];
    size_t world = (size_t)part->world, bytes = weft_round_up_bytes(extra_bytes, 1024), signal_bytes, grain;

    l->places = calloc(part->operand_count * world, sizeof(*l->places));
    if (!l->places)
        return failed(&b->error,
                      weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for %zu ranks", world));
    for (uint32_t o = 0; o < part->operand_count; o++)
        bytes += weft_round_up_bytes(operand_bytes[o], 1024);
    signal_bytes =
        (part->signal_count + signals + WEFT_CUDA_PRIVATE_SIGNALS) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    if (failed(&b->error, weft_cuda_heap_grain(&b->device, &grain, &b->error)) ||
        failed(&b->error, weft_cuda_heap_reserve(&b->device, part->world, bytes + signal_bytes + 4096, grain,
                                                 &l->heap, &b->error)))
        return 1;
    for (int r = 0; r < part->world; r++) {
        char *at = weft_cuda_heap_slot(&l->heap, r);

        if (failed(&b->error, weft_cuda_heap_create(&l->heap, r, 0, l->heap.stride, NULL, &b->error)))
            return 1;
        for (uint32_t o = 0; o < part->operand_count; o++) {
            l->places[o * world + (size_t)r] =
                (weft_cuda_place){.base = operand_bytes[o] ? at : NULL,
                                  .ld = weft_operand_cols(&part->operands[o], part->world, 0)};
            at += weft_round_up_bytes(operand_bytes[o], 1024);
        }
        if (extra_bytes)
            extra[r] = at;
        at += weft_round_up_bytes(extra_bytes, 1024);
        l->signals[r] = (uint64_t *)(void *)at;
        l->controls[r] = (weft_cuda_control *)(void *)(at + signal_bytes);
    }
    return 0;
}

int loop_load_peers(loop_gpu *b, loop *l, const void *const *tables, const size_t *bytes, int count,
                    void **at)
{
    size_t counters = (l->peers_grid + 2) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS, total = counters;
    char *base;

    for (int i = 0; i < count; i++)
        total += weft_round_up_bytes(bytes[i] + 16, 128);
    TRY(cuMemAlloc(&l->tables, total));
    TRY(cuMemsetD8Async(l->tables, 0, total, b->device.uploads));
    base = (char *)(uintptr_t)l->tables;
    l->peers.world = l->parts[0].world;
    l->peers.latency_ns = (int64_t)b->latency_ns;
    l->peers.deadline_ns = (uint64_t)ANSWER_SECONDS * 1000000000u;
    l->peers.answered = (uint64_t *)(void *)base;
    l->peers.free_ns = l->peers.answered + (size_t)l->peers_grid * WEFT_CUDA_LINE_WORDS;
    l->peers.up = (uint32_t *)(l->peers.free_ns + WEFT_CUDA_LINE_WORDS);
    base += counters;
    for (int i = 0; i < count; i++) {
        at[i] = base;
        if (bytes[i] && loop_put(b, base, tables[i], bytes[i]))
            return 1;
        base += weft_round_up_bytes(bytes[i] + 16, 128);
    }
    return 0;
}

int loop_fill_lines(loop_gpu *gpu, const weft_cuda_packets *p, weft_dtype dtype, int peer, bool results,
                    loop_value value, const void *context, char *inbox)
{
    enum { WORDS = WEFT_CUDA_LINE_BYTES / sizeof(uint64_t), HALF = WEFT_CUDA_LINE_THREADS };
    const weft_cuda_packet_peer *slice = &p->peer[results ? peer : 0];
    int64_t size = (int64_t)weft_dtype_size(dtype),
            first = slice->bytes ? (slice->send - p->peer[0].send) / size : 0,
            words = weft_divide_up(slice->bytes, weft_cuda_line_payload(true)) * (WORDS - 1);
    uint64_t *payload = calloc((size_t)words + 1, sizeof(*payload)), *row = (uint64_t *)(void *)inbox;

    if (!payload)
        return failed(&gpu->error, weft_error_set(&gpu->error, WEFT_ERR_MEMORY, "no memory for lines"));
    for (int64_t i = 0; i < slice->bytes / size; i++)
        weft_element_set(dtype, payload, (size_t)i, value(context, peer, results, first + i));
    /* A thread has word `at` and word `at` + HALF of a line, side by side. */
    for (int64_t i = 0; i < words; i++) {
        int64_t at = i % (WORDS - 1);

        row[i / (WORDS - 1) * WORDS + at % HALF * 2 + at / HALF] = payload[i];
    }
    free(payload);
    return 0;
}

int loop_start_peers(loop_gpu *b, loop *l, const weft_cuda_executor *executor, uint32_t runs)
{
    bool packets = executor->kind == WEFT_CUDA_PACKETS,
         lines = executor->kind == WEFT_CUDA_EXCHANGE || (packets && executor->packets.lines);
    CUlaunchConfig config =
        weft_cuda_config(l->peers_grid, WEFT_CUDA_LINK_THREADS * (lines ? 2 : 1), 0, b->side);
    weft_cuda_link peers = l->peers;
    void *parameters[] = {&peers};
    uint32_t up = 0;

    if (!l->peers_grid)
        return 0;
    peers.runs = runs;
    if (failed(&b->error, emulated_load(&b->device, &b->emulated, &b->error)) ||
        loop_put(b, peers.up, &up, sizeof(up)))
        return 1;
    TRY(cuLaunchKernelEx(&config,
                         b->emulated.peers[lines     ? EMULATED_LINES
                                           : packets ? EMULATED_PACKETS
                                                     : EMULATED_SIGNALS],
                         parameters, NULL));
    while (up < l->peers_grid) {
        TRY(cuMemcpyDtoHAsync(&up, (CUdeviceptr)(uintptr_t)peers.up, sizeof(up), b->device.uploads));
        TRY(cuStreamSynchronize(b->device.uploads));
    }
    return 0;
}

int loop_end(loop_gpu *b, const weft_cuda_executor *executor)
{
    weft_status status = weft_cuda_executor_outcome(executor, b->stream, NULL, &b->error);

    TRY(cuStreamSynchronize(b->side));
    return failed(&b->error, status);
}

int loop_capture(loop_gpu *b, loop *l, const weft_cuda_executor *executors, int count, int runs)
{
    const weft_cuda_driver *cu = b->device.cu;
    weft_status status = weft_cuda_check(cu, gpu_graph_begin(cu, b->stream), "capturing runs", &b->error);
    CUresult ended;

    if (failed(&b->error, status))
        return 1;
    for (int i = 0; i < runs && status == WEFT_OK; i++)
        status = weft_cuda_executor_launch(&executors[(runs - 1 - i) % count], b->stream, &b->error);
    ended = gpu_graph_end(cu, b->stream, &l->runs);
    return failed(&b->error, status) ||
           failed(&b->error, weft_cuda_check(cu, ended, "a graph of runs", &b->error));
}

int loop_replay(loop_gpu *b, loop *l)
{
    TRY(cuGraphLaunch(l->runs.replay, b->stream));
    return 0;
}

int loop_measure(loop_gpu *b, loop *l, const weft_cuda_executor *executor, int runs, int graphs,
                 double *samples)
{
    for (int n = -2; n < graphs; n++) {
        float ms = 0;

        if (loop_start_peers(b, l, executor, (uint32_t)runs))
            return 1;
        TRY(cuEventRecord(b->begin, b->stream));
        if (loop_replay(b, l))
            return 1;
        TRY(cuEventRecord(b->end, b->stream));
        if (loop_end(b, executor))
            return 1;
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (n >= 0)
            samples[n] = (double)ms * 1e3 / runs;
    }
    return 0;
}

void loop_free(const loop_gpu *gpu, loop *l)
{
    gpu_graph_drop(gpu->device.cu, &l->runs);
    if (l->tables)
        gpu->device.cu->cuMemFree(l->tables);
    if (l->heap.base)
        weft_cuda_heap_free(&l->heap);
    for (int r = 0; r < LOOP_RANKS_MOST; r++)
        weft_plan_part_free(&l->parts[r]);
    free(l->places);
}
