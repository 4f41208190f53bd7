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
#include "bench/cuda/failed.h"
#include "bench/cuda/graph.h"
#include "bench/cuda/moe_ranks.h"
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "run/cuda/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = CUDA_MOE_ROUNDS, GRAPHS = CUDA_MOE_GRAPHS };

/* ---- rounds -------------------------------------------------------------------------------------------- */

/* A round of all ranks, phase by phase. `scales`: with experts that can be told apart. */
static int round_of_all(gpu_experts *b, bool scales)
{
    bool fused = b->rung == LADDER_FUSED;

    for (int half = 0; half < 2; half++) {
        for (int phase = 2 * half; phase < 2 * half + 2 && fused; phase++)
            for (int i = 0; i < b->world; i++)
                if (moe_ranks_put(b, &b->ranks[i], (weft_device_moe_kernel)phase, false))
                    return 1;
        for (int i = 0; i < b->world; i++) {
            gpu_rank *r = &b->ranks[i];

            if (fused ? half == 0 && moe_ranks_put(b, r, WEFT_DEVICE_MOE_GATHER, false)
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

static int capture(gpu_experts *b, int rank, const moe_traffic *bytes)
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
                moe_ranks_link(b, phase,
                               phase == WEFT_CUDA_MOE_DISPATCH_SEND ? bytes->dispatch : bytes->combine))
                return 1;
            if (moe_ranks_put(b, r, (weft_device_moe_kernel)phase, false))
                return 1;
        }
    if (b->link) {
        TRY(cuEventRecord(b->fork, b->side));
        TRY(cuStreamWaitEvent(r->stream, b->fork, 0));
    }
    return failed(&b->error, weft_cuda_check(cu, gpu_graph_end(cu, r->stream, &r->rounds),
                                             "a graph of rounds", &b->error));
}

/* What a rank's rounds have come to: nanoseconds of dispatch and of combine, and whether it gave up. */
typedef struct progress {
    double ns[2];
    bool lost;
} progress;

static int read_progress(gpu_experts *b, const gpu_rank *r, progress *p)
{
    weft_cuda_moe_state state;
    weft_cuda_control control;
    ladder_state steps;

    if (b->rung != LADDER_FUSED) {
        if (moe_ranks_read(b, &steps, r->steps.state, sizeof(steps)))
            return 1;
        *p = (progress){{(double)steps.total_ns[0], (double)steps.total_ns[1]}, steps.lost};
        return 0;
    }
    if (moe_ranks_read(b, &state, r->lane.state, sizeof(state)) ||
        moe_ranks_read(b, &control, r->lane.control, sizeof(control)))
        return 1;
    *p = (progress){{(double)state.dispatch_ns, (double)state.combine_ns}, control.abort};
    return 0;
}

/* Of the first ranks together: the mean time, and whether any gave up. */
static int read_all(gpu_experts *b, int ranks, progress *all)
{
    *all = (progress){0};
    for (int i = 0; i < ranks; i++) {
        progress p;

        if (read_progress(b, &b->ranks[i], &p))
            return 1;
        all->ns[0] += p.ns[0] / ranks;
        all->ns[1] += p.ns[1] / ranks;
        all->lost |= p.lost;
    }
    return 0;
}

/* Replays the graphs; the first launches are not counted. */
static int replay(gpu_experts *b, int running, report_stats *dispatch, report_stats *combine,
                  report_stats *total)
{
    double samples[3][GRAPHS];
    progress before, after;

    for (int n = -2; n < b->graphs; n++) {
        float ms = 0;

        if (read_all(b, running, &before))
            return 1;
        TRY(cuEventRecord(b->begin, b->ranks[0].stream));
        for (int i = 0; i < running; i++)
            TRY(cuGraphLaunch(b->ranks[i].rounds.replay, b->ranks[i].stream));
        TRY(cuEventRecord(b->end, b->ranks[0].stream));
        for (int i = 0; i < running; i++)
            TRY(cuStreamSynchronize(b->ranks[i].stream));
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (read_all(b, running, &after))
            return 1;
        if (n < 0)
            continue;
        samples[0][n] = (after.ns[0] - before.ns[0]) / ROUNDS * 1e-3;
        samples[1][n] = (after.ns[1] - before.ns[1]) / ROUNDS * 1e-3;
        samples[2][n] = (double)ms * 1e3 / ROUNDS;
    }
    *dispatch = report_summarise(samples[0], b->graphs);
    *combine = report_summarise(samples[1], b->graphs);
    *total = report_summarise(samples[2], b->graphs);
    return 0;
}

static void print_row(gpu_experts *b, const moe_traffic *bytes, report_stats dispatch, report_stats combine,
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
    moe_traffic bytes;
    progress ended;
    bool ok = true;

    b->row_bytes = b->shape.hidden * (int64_t)weft_dtype_size(b->dtype);
    b->wire_bytes = cuda_moe_wire_bytes(&b->shape, b->dtype, b->wire);
    b->owner = calloc((size_t)b->shape.experts, sizeof(int32_t));
    b->local = calloc((size_t)b->shape.experts, sizeof(int32_t));
    if (b->owner && b->local && !moe_ranks_make(b, 20, 0) && !check_whole(b, &ok) &&
        !round_of_all(b, false) && !check(b, &ok) &&
        !moe_ranks_upload(b, &b->link_runs, began, sizeof(began))) {
        status = 0;
        bytes = moe_ranks_traffic(b);
        for (int i = 0; i < running && !status; i++)
            status = capture(b, i, &bytes);
        if (!status)
            status = replay(b, running, &dispatch, &combine, &total);
        if (!status)
            status = check(b, &ok) || read_all(b, b->world, &ended);
        if (!status)
            print_row(b, &bytes, dispatch, combine, total, ok && !ended.lost);
    }
    moe_ranks_free(b);
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
    status = moe_ranks_open(b);
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
    if (choice.round && b.world <= RANKS_MOST && !bench_torch_asked())
        return bench_cuda_moe_round(options, &choice, link, page);
    if (choice.inter && !choice.round)
        return bench_cuda_experts(options, &choice, page);
    if (b.link && choice.ladder)
        return options_error("bench",
                             "--impl %s: rungs below fused are measured with all ranks: leave --link out",
                             choice.impl);
    if (bench_torch_asked())
        return options_error("bench", "--torch stands beside experts on GPUs: give --inter, and no --tokens");
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
