/*
 * `weft bench moe --backend cuda`: rounds of dispatch and combine on one GPU, in this process. Either all
 * ranks run, each on its share of the SMs (virtual ranks: not the times of a fabric), as any rung of the
 * ladder; or, with --link, one rank runs fused with the whole GPU and its peers are their memory: what they
 * send has been there since the rounds that all ranks made, and their posts come when the link would have
 * delivered it. Experts are identity, and not timed.
 *
 * The kernels note when phases begin and end; graphs of many rounds are replayed, and a time is a graph's
 * mean. Before that come a round on small integers, with experts that can be told apart, whose results must
 * be exact, so that all rungs give the same; and one on what is measured, compared with sums in double.
 */
#include "bench/cuda/moe.h"

#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/emulated.h"
#include "bench/cuda/link.h"
#include "bench/cuda/failed.h"
#include "bench/cuda/graph.h"
#include "bench/cuda/ladder.h"
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "run/cuda/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 8, ROUNDS = CUDA_MOE_ROUNDS, GRAPHS = CUDA_MOE_GRAPHS };

static const uint64_t DEADLINE_NS = 5000000000u;

/* One rank: its lane, and its buffers on the GPU. */
typedef struct gpu_rank {
    weft_cuda_moe lane; /* fused; below it: steps */
    ladder_args steps;
    CUstream stream;
    weft_contest_data data; /* on the host */
    CUdeviceptr x, expert, weight, packed, y, own;
    int experts_here;
    gpu_graph rounds;
} gpu_rank;

typedef struct gpu_experts {
    const bench_link *link; /* NULL: all ranks run */
    weft_cuda_device device;
    emulated emulated; /* where there is a link */
    report report;
    weft_error_text error;
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_moe_wire wire;
    bool reduced;
    ladder_rung rung;
    ladder ladder;
    weft_cuda_moe_room room;
    int world;
    int32_t *owner, *local;
    int64_t row_bytes, wire_bytes;
    CUdeviceptr symmetric, tables, local_table, link_runs;
    size_t stride;
    gpu_rank ranks[RANKS_MOST];
    CUstream side; /* of the link */
    CUevent begin, end, fork;
    double copy_bytes_per_us;
    int graphs; /* replays that count */
} gpu_experts;

static void *at(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
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

static int upload(gpu_experts *b, CUdeviceptr *to, const void *from, size_t bytes)
{
    TRY(cuMemAlloc(to, bytes + 256));
    TRY(cuMemcpyHtoDAsync(*to, from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

static int make_data(gpu_experts *b, int rank, uint64_t seed)
{
    gpu_rank *r = &b->ranks[rank];
    size_t pairs = (size_t)(b->shape.tokens * b->shape.topk), rows = (size_t)b->shape.tokens;
    size_t most = (size_t)(b->world * b->shape.tokens) * (size_t)b->shape.topk;

    r->data = (weft_contest_data){.expert = malloc(pairs * sizeof(int32_t)),
                                  .weight = malloc(pairs * sizeof(float)),
                                  .x = malloc(rows * (size_t)b->row_bytes)};
    if (!r->data.expert || !r->data.weight || !r->data.x)
        return failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for tokens"));
    weft_contest_fill(&b->shape, b->dtype, seed, rank, b->shape.tokens, 0, &r->data);
    if (upload(b, &r->x, r->data.x, rows * (size_t)b->row_bytes) ||
        upload(b, &r->expert, r->data.expert, pairs * sizeof(int32_t)) ||
        upload(b, &r->weight, r->data.weight, pairs * sizeof(float)))
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

static int make_ranks(gpu_experts *b, uint64_t seed)
{
    int sms = b->device.sm_count / (b->link ? 1 : b->world);
    size_t table = (size_t)b->shape.experts * sizeof(int32_t), shared = 0, own;

    b->room = weft_cuda_moe_room_of(sms, b->link || b->world == 1);
    for (int e = 0; e < b->shape.experts; e++) {
        b->owner[e] = (int32_t)weft_part_of(b->shape.experts, b->world, e);
        b->local[e] = b->ranks[b->owner[e]].experts_here++;
    }
    if (upload(b, &b->tables, b->owner, table) || upload(b, &b->local_table, b->local, table))
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
        if (make_data(b, i, seed))
            return 1;
    }
    return 0;
}

static void free_ranks(gpu_experts *b)
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

static int put(gpu_experts *b, gpu_rank *r, weft_device_moe_kernel kernel)
{
    bool early = b->device.hopper && (b->link || b->world == 1);
    weft_device_moe_args call = {0};

    if (kernel == WEFT_DEVICE_MOE_DISPATCH_SEND)
        call = (weft_device_moe_args){
            .x = at(r->x), .expert = at(r->expert), .weight = at(r->weight), .tokens = r->data.tokens};
    else if (kernel == WEFT_DEVICE_MOE_GATHER || kernel == WEFT_DEVICE_MOE_COMBINE_SEND)
        call = (weft_device_moe_args){.x = at(r->packed), .out = at(r->packed)};
    else if (kernel == WEFT_DEVICE_MOE_COMBINE_RECV)
        call.out = at(r->y);
    return failed(&b->error,
                  weft_cuda_moe_launch(&b->device, &r->lane, kernel, &call, early, r->stream, &b->error));
}

/* A round of all ranks, phase by phase. `scales`: with experts that can be told apart. */
static int round_of_all(gpu_experts *b, bool scales)
{
    bool fused = b->rung == LADDER_FUSED;

    for (int half = 0; half < 2; half++) {
        for (int phase = 2 * half; phase < 2 * half + 2 && fused; phase++)
            for (int i = 0; i < b->world; i++)
                if (put(b, &b->ranks[i], (weft_device_moe_kernel)phase))
                    return 1;
        for (int i = 0; i < b->world; i++) {
            gpu_rank *r = &b->ranks[i];

            if (fused ? half == 0 && put(b, r, WEFT_DEVICE_MOE_GATHER)
                      : failed(&b->error,
                               ladder_put(&b->ladder, &r->steps, half, true, b->room, r->stream, &b->error)))
                return 1;
            if (half == 0 && scales &&
                failed(&b->error, ladder_scale(&b->ladder, &r->steps, b->room, r->stream, &b->error)))
                return 1;
        }
    }
    for (int i = 0; i < b->world; i++)
        TRY(cuStreamSynchronize(b->ranks[i].stream));
    return 0;
}

static int read_y(gpu_experts *b, int rank, void *y)
{
    TRY(cuMemcpyDtoHAsync(y, b->ranks[rank].y, (size_t)(b->shape.tokens * b->row_bytes), b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

static int check(gpu_experts *b, bool *ok)
{
    char *y = malloc((size_t)(b->shape.tokens * b->row_bytes));
    int status = 0;

    for (int i = 0; i < b->world && y && !status; i++) {
        status = read_y(b, i, y);
        *ok &= !status && cuda_moe_right(&b->shape, b->dtype, b->wire, &b->ranks[i].data, y);
    }
    *ok &= y != NULL;
    free(y);
    return status;
}

/* Small integers, whose sums over at most 16 experts are exact in every type. */
static double whole_value(int rank, int64_t element)
{
    uint64_t z = (uint64_t)element * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1342543de82ef95u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (double)((z ^ (z >> 29)) % 5) - 2;
}

static float whole_weight(int k)
{
    return k < 16 ? (float)(1 + k % 2) : 0;
}

static int put_data(gpu_experts *b, gpu_rank *r, const void *x, const float *weight)
{
    TRY(cuMemcpyHtoDAsync(r->x, x, (size_t)(b->shape.tokens * b->row_bytes), b->device.uploads));
    TRY(cuMemcpyHtoDAsync(r->weight, weight, (size_t)(b->shape.tokens * b->shape.topk) * sizeof(*weight),
                          b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

static bool whole_right(const gpu_experts *b, int rank, const void *y)
{
    const weft_contest_data *data = &b->ranks[rank].data;
    int64_t hidden = b->shape.hidden, step = 1 + data->tokens / 400;

    for (int64_t t = 0; t < data->tokens; t += step) {
        double factor = 0;

        for (int k = 0; k < b->shape.topk; k++)
            factor += whole_weight(k) * (1 + data->expert[t * b->shape.topk + k] % 3);
        for (int64_t i = t * hidden; i < (t + 1) * hidden; i++)
            if (weft_element_get(b->dtype, y, (size_t)i) != factor * whole_value(rank, i))
                return false;
    }
    return true;
}

/* A round on integers. */
static int check_whole(gpu_experts *b, bool *ok)
{
    size_t bytes = (size_t)(b->shape.tokens * b->row_bytes);
    char *x = malloc(bytes);
    float *weight = malloc((size_t)(b->shape.tokens * b->shape.topk) * sizeof(*weight));
    int status = x && weight
                     ? 0
                     : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for tokens"));

    for (int64_t i = 0; !status && i < b->shape.tokens * b->shape.topk; i++)
        weight[i] = whole_weight((int)(i % b->shape.topk));
    for (int rank = 0; rank < b->world && !status; rank++) {
        for (int64_t i = 0; i < b->shape.tokens * b->shape.hidden; i++)
            weft_element_set(b->dtype, x, (size_t)i, whole_value(rank, i));
        status = put_data(b, &b->ranks[rank], x, weight);
    }
    status = status || round_of_all(b, true);
    for (int rank = 0; rank < b->world && !status; rank++) {
        status = read_y(b, rank, x) ||
                 put_data(b, &b->ranks[rank], b->ranks[rank].data.x, b->ranks[rank].data.weight);
        *ok &= !status && whole_right(b, rank, x);
    }
    free(x);
    free(weight);
    return status;
}

/* The link's kernel beside a phase of rank 0: its peers' posts, so much later. */
static int put_link(gpu_experts *b, int phase, double bytes)
{
    const weft_cuda_moe *lane = &b->ranks[0].lane;
    weft_cuda_moe_link link = {
        .signals = phase == WEFT_CUDA_MOE_DISPATCH_SEND ? lane->arrived : lane->returned,
        .state = lane->state,
        .runs = (uint64_t *)at(b->link_runs) + (phase == WEFT_CUDA_MOE_DISPATCH_SEND ? 0 : 1),
        .world = b->world,
        .phase = phase,
        .posts = lane->grid[phase],
        .delay_ns = (uint64_t)(b->link->latency_ns + bytes / b->link->bytes_per_ns)};
    void *parameters[] = {&link};
    CUlaunchConfig config = weft_cuda_config(1, 1, 0, b->side);

    TRY(cuLaunchKernelEx(&config, b->emulated.experts, parameters, NULL));
    return 0;
}

/* What crosses rank 0's link in each half, in the direction that has more, and what its memory moves. */
typedef struct traffic {
    double dispatch, combine, dispatch_memory, combine_memory;
} traffic;

static traffic count_traffic(const gpu_experts *b)
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
    return (traffic){.dispatch = fmax(out, in) * wire,
                     .combine = fmax(entries_out, entries_in) * row,
                     .dispatch_memory = tokens * row + rows_here * wire,
                     /* results are read here, come back, are read again, and y is written */
                     .combine_memory =
                         (entries_here + 2 * (b->reduced ? out + tokens : tokens * b->shape.topk) + tokens) *
                         row};
}

static int capture(gpu_experts *b, int rank, const traffic *bytes)
{
    const weft_cuda_driver *cu = b->device.cu;
    gpu_rank *r = &b->ranks[rank];

    if (failed(&b->error, weft_cuda_check(cu, gpu_graph_begin(cu, r->stream), "capturing rounds", &b->error)))
        return 1;
    if (b->link) {
        TRY(cuEventRecord(b->fork, r->stream));
        TRY(cuStreamWaitEvent(b->side, b->fork, 0));
    }
    for (int i = 0; i < 2 * ROUNDS && b->rung != LADDER_FUSED; i++)
        if (failed(&b->error, ladder_put(&b->ladder, &r->steps, i % 2, false, b->room, r->stream, &b->error)))
            return 1;
    for (int i = 0; i < ROUNDS && b->rung == LADDER_FUSED; i++)
        for (int phase = 0; phase < WEFT_CUDA_MOE_PHASES; phase++) {
            if (b->link && phase % 2 == 0 &&
                put_link(b, phase, phase == WEFT_CUDA_MOE_DISPATCH_SEND ? bytes->dispatch : bytes->combine))
                return 1;
            if (put(b, r, (weft_device_moe_kernel)phase))
                return 1;
        }
    if (b->link) {
        TRY(cuEventRecord(b->fork, b->side));
        TRY(cuStreamWaitEvent(r->stream, b->fork, 0));
    }
    return failed(&b->error, weft_cuda_check(cu, gpu_graph_end(cu, r->stream, &r->rounds),
                                             "a graph of rounds", &b->error));
}

static int read_back(gpu_experts *b, void *to, const void *from, size_t bytes)
{
    TRY(cuMemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

/* Nanoseconds that rounds have taken so far, the mean of the ranks that run. */
static int read_totals(gpu_experts *b, int running, double totals[2])
{
    bool fused = b->rung == LADDER_FUSED;

    totals[0] = totals[1] = 0;
    for (int i = 0; i < running; i++) {
        const gpu_rank *r = &b->ranks[i];
        weft_cuda_moe_state state;
        ladder_state steps;

        if (fused ? read_back(b, &state, r->lane.state, sizeof(state))
                  : read_back(b, &steps, r->steps.state, sizeof(steps)))
            return 1;
        totals[0] += (double)(fused ? state.dispatch_ns : steps.total_ns[0]) / running;
        totals[1] += (double)(fused ? state.combine_ns : steps.total_ns[1]) / running;
    }
    return 0;
}

/* Replays the graphs; the first launches are not counted. */
static int replay(gpu_experts *b, int running, report_stats *dispatch, report_stats *combine,
                  report_stats *total)
{
    double samples[3][GRAPHS], before[2], after[2];

    for (int n = -2; n < b->graphs; n++) {
        float ms = 0;

        if (read_totals(b, running, before))
            return 1;
        TRY(cuEventRecord(b->begin, b->ranks[0].stream));
        for (int i = 0; i < running; i++)
            TRY(cuGraphLaunch(b->ranks[i].rounds.replay, b->ranks[i].stream));
        TRY(cuEventRecord(b->end, b->ranks[0].stream));
        for (int i = 0; i < running; i++)
            TRY(cuStreamSynchronize(b->ranks[i].stream));
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (read_totals(b, running, after))
            return 1;
        if (n < 0)
            continue;
        samples[0][n] = (after[0] - before[0]) / ROUNDS * 1e-3;
        samples[1][n] = (after[1] - before[1]) / ROUNDS * 1e-3;
        samples[2][n] = (double)ms * 1e3 / ROUNDS;
    }
    *dispatch = report_summarise(samples[0], b->graphs);
    *combine = report_summarise(samples[1], b->graphs);
    *total = report_summarise(samples[2], b->graphs);
    return 0;
}

/* Whether a rank gave up. */
static int check_controls(gpu_experts *b, bool *ok)
{
    bool fused = b->rung == LADDER_FUSED;

    for (int i = 0; i < b->world; i++) {
        const gpu_rank *r = &b->ranks[i];
        weft_cuda_control control;
        ladder_state steps;

        if (fused ? read_back(b, &control, r->lane.control, sizeof(control))
                  : read_back(b, &steps, r->steps.state, sizeof(steps)))
            return 1;
        *ok &= !(fused ? control.abort : steps.lost);
    }
    return 0;
}

static void print_row(gpu_experts *b, const traffic *bytes, report_stats dispatch, report_stats combine,
                      report_stats total, bool ok)
{
    double memory[2] = {bytes->dispatch_memory / b->copy_bytes_per_us,
                        bytes->combine_memory / b->copy_bytes_per_us};
    double bound[2] = {b->world * memory[0], b->world * memory[1]}; /* one memory for all ranks */

    if (b->link) {
        bound[0] =
            b->link->latency_ns * 1e-3 + fmax(bytes->dispatch / b->link->bytes_per_ns * 1e-3, memory[0]);
        bound[1] =
            b->link->latency_ns * 1e-3 + fmax(bytes->combine / b->link->bytes_per_ns * 1e-3, memory[1]);
    }
    cuda_moe_describe(&b->report, &b->shape, b->dtype, b->wire, ladder_name(b->rung), b->reduced, b->world,
                      b->link ? "link" : "virtual");
    cuda_moe_print(&b->report, dispatch, combine, total, bound, ok);
}

static int bench_shape(gpu_experts *b)
{
    int running = b->link ? 1 : b->world, status = 1;
    report_stats dispatch = {0}, combine = {0}, total = {0};
    uint64_t began[2] = {2, 2}; /* rounds of all ranks */
    traffic bytes;
    bool ok = true;

    b->row_bytes = b->shape.hidden * (int64_t)weft_dtype_size(b->dtype);
    b->wire_bytes = cuda_moe_wire_bytes(&b->shape, b->dtype, b->wire);
    b->owner = calloc((size_t)b->shape.experts, sizeof(int32_t));
    b->local = calloc((size_t)b->shape.experts, sizeof(int32_t));
    if (b->owner && b->local && !make_ranks(b, 20) && !check_whole(b, &ok) && !round_of_all(b, false) &&
        !check(b, &ok) && !upload(b, &b->link_runs, began, sizeof(began))) {
        status = 0;
        bytes = count_traffic(b);
        for (int i = 0; i < running && !status; i++)
            status = capture(b, i, &bytes);
        if (!status)
            status = replay(b, running, &dispatch, &combine, &total);
        if (!status)
            status = check(b, &ok) || check_controls(b, &ok);
        if (!status)
            print_row(b, &bytes, dispatch, combine, total, ok);
    }
    free_ranks(b);
    free(b->owner);
    free(b->local);
    return status;
}

/* Modes are for fused: the others are exact. */
static bool takes(const bench_moe_choice *choice, ladder_rung rung, bool reduced)
{
    if (strcmp(choice->impl, "all") && strcmp(choice->impl, ladder_name(rung)))
        return false;
    return rung == LADDER_FUSED ? (reduced ? choice->reduced : choice->exact) : !reduced;
}

static int measure(gpu_experts *b, const bench_moe_choice *choice)
{
    int status = failed(&b->error, ladder_open(b->device.cu, &b->ladder, &b->error));
    const char *fp8 = b->wire == WEFT_MOE_WIRE_FP8 ? ", tokens travel as fp8" : "";

    if (status)
        return status;
    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->fork, CU_EVENT_DISABLE_TIMING));
    TRY(cuStreamCreate(&b->side, CU_STREAM_NON_BLOCKING));
    status = failed(&b->error,
                    cuda_moe_copy_rate(b->device.cu, b->device.uploads, &b->copy_bytes_per_us, &b->error));
    if (b->link)
        report_note(
            &b->report,
            "moe of %s%s, one rank of %d in the loop over an emulated link of %g GB/s and %g µs on %s",
            weft_dtype_name(b->dtype), fp8, b->world, b->link->bytes_per_ns, b->link->latency_ns * 1e-3,
            b->device.name);
    else
        report_note(&b->report, "moe of %s%s, %d virtual ranks (not the times of a fabric) on %s",
                    weft_dtype_name(b->dtype), fp8, b->world, b->device.name);
    cuda_moe_legend(&b->report, b->copy_bytes_per_us);
    if (choice->ladder)
        report_note(&b->report, "rungs below fused have every result sent for itself (exact), and are plain "
                                "kernels, one after another");
    for (int i = 0; i < choice->shapes && !status; i++)
        for (int rung = LADDER_FUSED; rung >= 0; rung--)
            for (int reduced = 0; reduced < 2 && !status; reduced++) {
                b->shape = choice->shape[i];
                b->rung = (ladder_rung)rung;
                b->reduced = reduced;
                if (takes(choice, b->rung, reduced))
                    status = bench_shape(b);
            }
    return status;
}

int bench_cuda_moe(const weft_options *options, const bench_link *link, report_page *page)
{
    gpu_experts b = {.link = link->bytes_per_ns > 0 ? link : NULL, .world = (int)options->ranks};
    bench_moe_choice choice;
    int status = bench_moe_choose(options, &choice), closed;

    if (status)
        return status;
    if (choice.inter)
        return bench_cuda_experts(options, &choice, page);
    if (b.link && choice.ladder)
        return options_error("bench",
                             "--impl %s: rungs below fused are measured with all ranks: leave --link out",
                             choice.impl);
    if (bench_torch_asked())
        return options_error("bench", "--torch stands beside experts on GPUs: give --inter");
    if (b.world > RANKS_MOST)
        return options_error("bench", "--backend cuda: %d ranks on one GPU: there may be 1 to %d", b.world,
                             RANKS_MOST);
    b.dtype = choice.dtype;
    b.wire = choice.wire;
    b.graphs = options->iterations && options->iterations < GRAPHS ? (int)options->iterations : GRAPHS;
    weft_cuda_driver_widen();
    if (weft_cuda_gpus.open(0, &b.device, &b.error) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", b.error.text);
    b.device.cu->cuCtxSetCurrent(b.device.context);
    if (b.link && emulated_load(&b.device, &b.emulated, &b.error) != WEFT_OK) {
        weft_cuda_device_close(&b.device);
        return options_error("bench", "--link: %s", b.error.text);
    }
    report_open(&b.report, stdout, options->json, cuda_moe_columns);
    b.report.page = page;
    status = measure(&b, &choice);
    closed = report_close(&b.report);
    ladder_close(&b.ladder);
    emulated_free(&b.device, &b.emulated);
    weft_cuda_device_close(&b.device);
    return status ? status : closed;
}
