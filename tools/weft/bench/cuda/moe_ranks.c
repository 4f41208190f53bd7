/* See moe_ranks.h. */
#include "bench/cuda/moe_ranks.h"

#include "bench/cuda/failed.h"
#include "bench/cuda/link.h"
#include "bench/cuda/moe.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "moe/moe.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static const uint64_t DEADLINE_NS = 5000000000u;

int moe_ranks_open(gpu_experts *b)
{
    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->fork, CU_EVENT_DISABLE_TIMING));
    TRY(cuStreamCreate(&b->side, CU_STREAM_NON_BLOCKING));
    return failed(&b->error,
                  cuda_moe_copy_rate(b->device.cu, b->device.uploads, &b->copy_bytes_per_us, &b->error));
}

/* ---- a layer ------------------------------------------------------------------------------------------- */

static weft_device_moe_shape shape_of(const gpu_experts *b, int rank)
{
    int most = 0;

    for (int r = 0; r < b->world; r++)
        most = b->ranks[r].experts_here > most ? b->ranks[r].experts_here : most;
    return (weft_device_moe_shape){
        .experts = b->shape.experts,
        .topk = b->shape.topk,
        .terms_per_token = !b->reduced || b->shape.topk < b->world ? b->shape.topk : b->world,
        .lanes = 1,
        .capacity = b->shape.tokens,
        .hidden = b->shape.hidden,
        .row_bytes = b->row_bytes,
        .wire_bytes = b->wire_bytes,
        .scales_at = b->wire == WEFT_MOE_WIRE_FP8 ? weft_moe_scales_at(b->shape.hidden) : 0,
        .dtype = b->dtype,
        .reduced = b->reduced,
        .owner = b->owner,
        .local_index = b->local,
        .experts_here = b->ranks[rank].experts_here,
        .experts_most = most};
}

int moe_ranks_upload(gpu_experts *b, CUdeviceptr *to, const void *from, size_t bytes)
{
    TRY(cuMemAlloc(to, bytes + 256));
    TRY(cuMemcpyHtoDAsync(*to, from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

/* The tokens of a rank, by a thread of its own: there are many. */
typedef struct filling {
    pthread_t thread;
    gpu_experts *b;
    int rank;
    uint64_t seed;
} filling;

static void *fill(void *argument)
{
    const filling *f = argument;

    weft_contest_fill(&f->b->shape, f->b->dtype, f->seed, f->rank, f->b->shape.tokens, 0,
                      &f->b->ranks[f->rank].data);
    return NULL;
}

static int fill_all(gpu_experts *b, uint64_t seed)
{
    filling all[RANKS_MOST];
    size_t pairs = (size_t)(b->shape.tokens * b->shape.topk), rows = (size_t)b->shape.tokens;
    int begun = 0;
    bool right = true;

    for (int i = 0; i < b->world && right; i++) {
        weft_contest_data *data = &b->ranks[i].data;

        *data = (weft_contest_data){.expert = malloc(pairs * sizeof(int32_t)),
                                    .weight = malloc(pairs * sizeof(float)),
                                    .x = malloc(rows * (size_t)b->row_bytes)};
        all[i] = (filling){.b = b, .rank = i, .seed = seed};
        right =
            data->expert && data->weight && data->x && !pthread_create(&all[i].thread, NULL, fill, &all[i]);
        begun += right;
    }
    for (int i = 0; i < begun; i++)
        pthread_join(all[i].thread, NULL);
    return right ? 0 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for tokens"));
}

static int make_data(gpu_experts *b, int rank)
{
    gpu_rank *r = &b->ranks[rank];
    size_t pairs = (size_t)(b->shape.tokens * b->shape.topk), rows = (size_t)b->shape.tokens;
    size_t most = (size_t)(b->world * b->shape.tokens) * (size_t)b->shape.topk;

    if (moe_ranks_upload(b, &r->x, r->data.x, rows * (size_t)b->row_bytes) ||
        moe_ranks_upload(b, &r->expert, r->data.expert, pairs * sizeof(int32_t)) ||
        moe_ranks_upload(b, &r->weight, r->data.weight, pairs * sizeof(float)))
        return 1;
    TRY(cuMemAlloc(&r->packed, most * (size_t)b->row_bytes));
    TRY(cuMemAlloc(&r->y, rows * (size_t)b->row_bytes));
    TRY(cuMemsetD8Async(r->y, 0xff, rows * (size_t)b->row_bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    r->steps.x = at(r->x);
    r->steps.expert = at(r->expert);
    r->steps.weight = at(r->weight);
    r->steps.packed = at(r->packed);
    r->steps.y = at(r->y);
    return 0;
}

/* Bytes of a rank's symmetric memory and of its own; and where things lie, once there are both. */
static void lay_out(gpu_experts *b, int rank, size_t *symmetric, size_t *own)
{
    gpu_rank *r = &b->ranks[rank];
    weft_device_moe_shape shape = shape_of(b, rank);
    char *there = r->own ? (char *)at(b->symmetric) + (size_t)rank * b->stride : NULL;
    bool fused = b->rung == LADDER_FUSED;

    r->steps = ladder_lay_out(b->rung, &shape, b->world, rank, fused ? NULL : there,
                              fused ? NULL : at(r->own), symmetric, own);
    r->steps.stride = (int64_t)b->stride;
    r->steps.deadline_ns = DEADLINE_NS;
    r->steps.owner = at(b->tables);
    if (!fused)
        return;
    weft_cuda_moe_measure(&shape, b->world, b->room, symmetric, own);
    if (!there)
        return;
    r->lane = weft_cuda_moe_lay_out(&shape, b->world, rank, b->room, there, (int64_t)b->stride, at(r->own),
                                    at(b->tables), at(b->local_table));
    r->lane.deadline_ns = DEADLINE_NS;
    r->steps.base = r->lane.offset; /* for ladder_scale */
}

static int clear(gpu_experts *b, gpu_rank *r, size_t own)
{
    if (b->rung == LADDER_FUSED)
        return failed(&b->error, weft_cuda_moe_clear(&b->device, &r->lane, at(r->own), own, b->device.uploads,
                                                     &b->error));
    TRY(cuMemsetD8Async(r->own, 0, own, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

int moe_ranks_make(gpu_experts *b, uint64_t seed, int movers)
{
    int sms = b->device.sm_count / (b->link ? 1 : b->world);
    size_t table = (size_t)b->shape.experts * sizeof(int32_t), shared = 0, own;

    b->room = weft_cuda_moe_room_of(sms, b->link || b->world == 1);
    b->room.movers = movers;
    for (int e = 0; e < b->shape.experts; e++) {
        b->owner[e] = (int32_t)weft_part_of(b->shape.experts, b->world, e);
        b->local[e] = b->ranks[b->owner[e]].experts_here++;
    }
    if (fill_all(b, seed))
        return 1;
    if (moe_ranks_upload(b, &b->tables, b->owner, table) ||
        moe_ranks_upload(b, &b->local_table, b->local, table))
        return 1;
    lay_out(b, 0, &shared, &own);
    b->stride = weft_round_up_bytes(shared, 4096);
    TRY(cuMemAlloc(&b->symmetric, (size_t)b->world * b->stride));
    TRY(cuMemsetD8Async(b->symmetric, 0, (size_t)b->world * b->stride, b->device.uploads));
    for (int i = 0; i < b->world; i++) {
        gpu_rank *r = &b->ranks[i];

        lay_out(b, i, &shared, &own);
        TRY(cuMemAlloc(&r->own, own));
        lay_out(b, i, &shared, &own);
        if (clear(b, r, own))
            return 1;
        if (b->link && i > 0)
            r->stream = b->ranks[0].stream; /* they take part in the first rounds only */
        else
            TRY(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
        if (make_data(b, i))
            return 1;
    }
    return 0;
}

void moe_ranks_free(gpu_experts *b)
{
    const weft_cuda_driver *cu = b->device.cu;

    for (int i = 0; i < b->world; i++) {
        gpu_rank *r = &b->ranks[i];
        CUdeviceptr all[] = {r->x, r->expert, r->weight, r->packed, r->y, r->own};

        for (size_t j = 0; j < sizeof(all) / sizeof(*all); j++)
            if (all[j])
                cu->cuMemFree(all[j]);
        gpu_graph_drop(cu, &r->rounds);
        if (r->stream && (i == 0 || !b->link))
            cu->cuStreamDestroy(r->stream);
        free(r->data.expert);
        free(r->data.weight);
        free(r->data.x);
        *r = (gpu_rank){0};
    }
    if (b->symmetric)
        cu->cuMemFree(b->symmetric);
    if (b->tables)
        cu->cuMemFree(b->tables);
    if (b->local_table)
        cu->cuMemFree(b->local_table);
    if (b->link_runs)
        cu->cuMemFree(b->link_runs);
    b->symmetric = b->tables = b->local_table = b->link_runs = 0;
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

int moe_ranks_put(gpu_experts *b, gpu_rank *r, weft_device_moe_kernel kernel, bool lists)
{
    bool early = b->device.hopper && (b->link || b->world == 1);
    weft_device_moe_args call = {0};

    if (kernel == WEFT_DEVICE_MOE_DISPATCH_SEND)
        call = (weft_device_moe_args){
            .x = at(r->x), .expert = at(r->expert), .weight = at(r->weight), .tokens = r->data.tokens};
    else if (kernel == WEFT_DEVICE_MOE_GATHER || kernel == WEFT_DEVICE_MOE_COMBINE_SEND)
        call = (weft_device_moe_args){.x = at(r->packed), .out = at(r->packed)};
    else if (kernel == WEFT_DEVICE_MOE_MOVE)
        call = (weft_device_moe_args){.x = at(r->x), .out = at(r->packed)};
    else if (kernel == WEFT_DEVICE_MOE_COMBINE_RECV)
        call.out = at(r->y);
    call.lists = lists;
    return failed(&b->error,
                  weft_cuda_moe_launch(&b->device, &r->lane, kernel, &call, early, r->stream, &b->error));
}

int moe_ranks_link(gpu_experts *b, int phase, double bytes)
{
    const weft_cuda_moe *lane = &b->ranks[0].lane;
    bool moves = phase == WEFT_CUDA_MOE_MOVE;
    double step_ns = moves ? bytes / b->link->bytes_per_ns / (b->world - 1) : 0;
    weft_cuda_moe_link link = {
        .signals = moves                                  ? lane->landed
                   : phase == WEFT_CUDA_MOE_DISPATCH_SEND ? lane->arrived
                                                          : lane->returned,
        .state = lane->state,
        .runs = (uint64_t *)at(b->link_runs) + (moves                                  ? 2
                                                : phase == WEFT_CUDA_MOE_DISPATCH_SEND ? 0
                                                                                       : 1),
        .world = b->world,
        .phase = phase,
        .posts = moves ? lane->movers : lane->grid[phase],
        .step_ns = (uint64_t)step_ns,
        .delay_ns = (uint64_t)(b->link->latency_ns + (moves ? step_ns : bytes / b->link->bytes_per_ns))};
    void *parameters[] = {&link};
    CUlaunchConfig config = weft_cuda_config(1, 1, 0, b->side);

    TRY(cuLaunchKernelEx(&config, b->emulated.experts, parameters, NULL));
    return 0;
}

moe_traffic moe_ranks_traffic(const gpu_experts *b)
{
    double out = 0, in = 0, entries_out = 0, entries_in = 0, rows_here = 0, entries_here = 0;
    double row = (double)b->row_bytes, wire = (double)b->wire_bytes, tokens = (double)b->ranks[0].data.tokens;

    for (int s = 0; s < b->world; s++)
        for (int64_t t = 0; t < b->ranks[s].data.tokens; t++) {
            bool seen[RANKS_MOST] = {false};

            for (int k = 0; k < b->shape.topk; k++) {
                int to = b->owner[b->ranks[s].data.expert[t * b->shape.topk + k]];
                bool first = !seen[to];

                seen[to] = true;
                rows_here += to == 0 && first;
                entries_here += to == 0;
                out += s == 0 && to != 0 && first;
                in += s != 0 && to == 0 && first;
                entries_out += s == 0 && to != 0;
                entries_in += s != 0 && to == 0;
            }
        }
    if (b->reduced)
        entries_out = out, entries_in = in;
    return (moe_traffic){
        .entries = entries_here,
        .dispatch = fmax(out, in) * wire,
        .combine = fmax(entries_out, entries_in) * row,
        .dispatch_memory = tokens * row + rows_here * wire,
        /* results are read here, come back, are read again, and y is written */
        .combine_memory =
            (entries_here + 2 * (b->reduced ? out + tokens : tokens * b->shape.topk) + tokens) * row};
}

int moe_ranks_read(gpu_experts *b, void *to, const void *from, size_t bytes)
{
    TRY(cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}
