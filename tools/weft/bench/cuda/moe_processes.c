/*
 * `weft bench moe --backend cuda --processes`: rounds of dispatch and combine through weft.h, with a process
 * for each rank, on the machine's GPUs in turn. Ranks that share a GPU share its memory, which bounds them.
 * Experts are identity, and not timed. A graph of many rounds is replayed: its time is that of all ranks
 * together, and the kernels' own clocks say what the halves of its last round took.
 */
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/graph.h"
#include "bench/cuda/moe.h"
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "core/round.h"

#include <math.h>
#include <stdlib.h>

static const double SECONDS_PER_LAYER = 1.5;

typedef struct gpu_layer {
    bench_context *context;
    weft_group *group; /* on GPUs */
    weft_cuda_device device;
    weft_error_text error;
    CUstream stream;
    double copy_bytes_per_us;
    int gpus;
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_moe_wire wire;
    bool reduced;
    weft_moe *moe;
    weft_contest_data data; /* on the host */
    weft_moe_input input;
    void *packed, *y;
    size_t x_bytes, pair_bytes, packed_bytes; /* the same on every rank; pairs of 4 bytes */
    gpu_graph rounds;
} gpu_layer;

static int fail(const gpu_layer *l, const char *what)
{
    fprintf(stderr, "weft bench: rank %d: %s: %s\n", l->context->rank, what, weft_error(l->group));
    return 1;
}

/* ---- a layer ------------------------------------------------------------------------------------------- */

static int upload(gpu_layer *l, const void **to, const void *from, size_t bytes)
{
    void *there;

    if (weft_alloc(l->group, bytes, 0, &there) != WEFT_OK)
        return fail(l, "allocating");
    *to = there;
    return weft_memcpy(l->group, there, from, bytes) == WEFT_OK ? 0 : fail(l, "copying tokens");
}

static int open_layer(gpu_layer *l)
{
    int64_t row_bytes = l->shape.hidden * (int64_t)weft_dtype_size(l->dtype);
    int64_t pairs = l->shape.tokens * l->shape.topk;
    weft_moe_config config;

    l->x_bytes = (size_t)(l->shape.tokens * row_bytes);
    l->pair_bytes = (size_t)pairs * 4;
    l->packed_bytes = (size_t)(l->context->size * pairs * row_bytes);
    l->data = (weft_contest_data){
        .expert = malloc(l->pair_bytes), .weight = malloc(l->pair_bytes), .x = malloc(l->x_bytes)};
    if (!l->data.expert || !l->data.weight || !l->data.x)
        return bench_say(l->context, "no memory for tokens");
    weft_contest_fill(&l->shape, l->dtype, 20, l->context->rank, l->shape.tokens, 0, &l->data);
    weft_moe_config_init(&config);
    config.experts = l->shape.experts;
    config.topk = l->shape.topk;
    config.hidden = l->shape.hidden;
    config.tokens = l->shape.tokens;
    config.dtype = l->dtype;
    config.mode = l->reduced ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT;
    config.wire = l->wire;
    if (weft_moe_create(l->group, &config, &l->moe) != WEFT_OK)
        return fail(l, "making a layer");
    l->input = (weft_moe_input){.size = sizeof l->input, .tokens = l->data.tokens};
    return upload(l, &l->input.x, l->data.x, l->x_bytes) ||
           upload(l, (const void **)&l->input.expert, l->data.expert, l->pair_bytes) ||
           upload(l, (const void **)&l->input.weight, l->data.weight, l->pair_bytes) ||
           (weft_alloc(l->group, l->packed_bytes, 0, &l->packed) != WEFT_OK ||
                    weft_alloc(l->group, l->x_bytes, 0, &l->y) != WEFT_OK
                ? fail(l, "allocating")
                : 0);
}

static void close_layer(gpu_layer *l)
{
    gpu_graph_drop(l->device.cu, &l->rounds);
    weft_moe_free(l->moe);
    weft_free(l->group, l->y);
    weft_free(l->group, l->packed);
    weft_free(l->group, (void *)(uintptr_t)l->input.weight);
    weft_free(l->group, (void *)(uintptr_t)l->input.expert);
    weft_free(l->group, (void *)(uintptr_t)l->input.x);
    free(l->data.expert);
    free(l->data.weight);
    free(l->data.x);
    l->moe = NULL;
    l->y = l->packed = NULL;
    l->input = (weft_moe_input){0};
    l->data = (weft_contest_data){0};
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

static int round_of(gpu_layer *l, bool gathers)
{
    if (weft_moe_dispatch(l->moe, 0, &l->input, NULL) != WEFT_OK)
        return fail(l, "dispatch");
    if (gathers && weft_moe_gather(l->moe, 0, NULL, l->packed) != WEFT_OK)
        return fail(l, "gather");
    return weft_moe_combine(l->moe, 0, l->packed, NULL, l->y) == WEFT_OK ? 0 : fail(l, "combine");
}

/* The first round leaves in `packed` what every later one returns. */
static int capture(gpu_layer *l)
{
    const weft_cuda_driver *cu = l->device.cu;
    bool captured;

    if (round_of(l, true) || weft_group_wait(l->group) != WEFT_OK)
        return fail(l, "a round");
    captured = gpu_graph_begin(cu, l->stream) == CUDA_SUCCESS;
    for (int i = 0; i < CUDA_MOE_ROUNDS && captured; i++)
        captured = round_of(l, false) == 0;
    captured = gpu_graph_end(cu, l->stream, &l->rounds) == CUDA_SUCCESS && captured;
    return captured ? 0 : fail(l, "capturing a graph");
}

static int replay(void *argument, int iteration)
{
    gpu_layer *l = argument;

    (void)iteration;
    if (l->device.cu->cuGraphLaunch(l->rounds.replay, l->stream) != CUDA_SUCCESS)
        return fail(l, "launching a graph");
    return weft_group_wait(l->group) == WEFT_OK ? 0 : fail(l, "a graph");
}

/* How long the halves take, and what they move through memory, as means over ranks. */
static int halves(gpu_layer *l, report_stats times[2], double bytes[2])
{
    double samples[2][CUDA_MOE_GRAPHS], mine[4], all[BENCH_SHARE_MOST * WEFT_RANKS_MAX];
    double row = (double)l->shape.hidden * (double)weft_dtype_size(l->dtype),
           wire = (double)cuda_moe_wire_bytes(&l->shape, l->dtype, l->wire);

    for (int n = 0; n < CUDA_MOE_GRAPHS; n++) {
        weft_moe_stats stats = {.size = sizeof stats};

        if (weft_barrier(l->group) != WEFT_OK || replay(l, n) ||
            weft_moe_get_stats(l->moe, 0, &stats) != WEFT_OK)
            return fail(l, "the clocks of a round");
        mine[0] = stats.dispatch_us;
        mine[1] = stats.combine_us;
        mine[2] = (double)stats.tokens * row + (double)stats.rows_received * wire;
        /* results are read here, come back, are read again, and y is written */
        mine[3] = (double)(stats.entries + 2 * (l->reduced ? stats.rows_sent : stats.tokens * l->shape.topk) +
                           stats.tokens) *
                  row;
        if (bench_share(l->context, mine, 4, all))
            return 1;
        samples[0][n] = samples[1][n] = bytes[0] = bytes[1] = 0;
        for (int i = 0; i < 4 * l->context->size; i++)
            *(i % 4 < 2 ? &samples[i % 4][n] : &bytes[i % 4 - 2]) += all[i] / l->context->size;
    }
    times[0] = report_summarise(samples[0], CUDA_MOE_GRAPHS);
    times[1] = report_summarise(samples[1], CUDA_MOE_GRAPHS);
    return 0;
}

static int check(gpu_layer *l, bool *ok)
{
    char *y = malloc(l->x_bytes);
    int status = !y || weft_memcpy(l->group, y, l->y, l->x_bytes) != WEFT_OK;

    *ok = !status && cuda_moe_right(&l->shape, l->dtype, l->wire, &l->data, y);
    *ok = bench_max(l->context, *ok ? 0 : 1) == 0;
    free(y);
    return status ? fail(l, "copying results") : 0;
}

static int measure_layer(gpu_layer *l)
{
    bench_contender total = {.name = "replay", .argument = l, .run = replay};
    int on_one = (int)weft_divide_up(l->context->size, l->gpus);
    report *r = &l->context->report;
    report_stats times[2];
    double bytes[2], bound[2];
    bool ok = false;
    int status = open_layer(l) || capture(l) ||
                 bench_measure(l->context, &total, 1, CUDA_MOE_ROUNDS, SECONDS_PER_LAYER, "moe") ||
                 halves(l, times, bytes) || check(l, &ok);

    if (!status) {
        for (int i = 0; i < 2; i++)
            bound[i] = l->gpus < l->context->size ? on_one * bytes[i] / l->copy_bytes_per_us : NAN;
        cuda_moe_describe(r, &l->shape, l->dtype, l->wire, "fused", l->reduced, l->context->size,
                          "a process for each rank");
        cuda_moe_print(r, times[0], times[1], total.stats, bound, ok);
    }
    close_layer(l);
    return status;
}

/* ---- the operation ------------------------------------------------------------------------------------- */

static int open_gpu(gpu_layer *l)
{
    bench_context *context = l->context;
    double rate = 0, rates[BENCH_SHARE_MOST * WEFT_RANKS_MAX];

    if (weft_group_split(context->group, 0, context->rank, &l->group) != WEFT_OK)
        return bench_fail(context, "splitting");
    if (weft_group_use_gpu(l->group, -1) != WEFT_OK)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", weft_error(l->group));
    if (weft_cuda_gpus.open(context->rank % l->gpus, &l->device, &l->error) != WEFT_OK)
        return bench_say(context, "%s", l->error.text);
    l->device.cu->cuCtxSetCurrent(l->device.context);
    if (l->device.cu->cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        weft_group_set_stream(l->group, 1, l->stream) != WEFT_OK)
        return bench_say(context, "no stream on the GPU");
    if (context->rank == 0 &&
        cuda_moe_copy_rate(l->device.cu, l->device.uploads, &rate, &l->error) != WEFT_OK)
        return bench_say(context, "%s", l->error.text);
    if (bench_share(context, &rate, 1, rates))
        return 1;
    l->copy_bytes_per_us = rates[0];
    return 0;
}

int bench_cuda_moe_ranks(bench_context *context)
{
    gpu_layer l = {.context = context};
    bench_moe_choice choice;
    int status = bench_moe_choose(context->options, &choice);

    if (status)
        return status;
    if (choice.ladder)
        return context->rank
                   ? 2
                   : options_error("bench",
                                   "--impl %s: rungs below fused are measured with all ranks in one process: "
                                   "leave --processes out",
                                   choice.impl);
    if (choice.inter)
        return context->rank
                   ? 2
                   : options_error("bench",
                                   "--inter measures the experts of one rank: leave --processes out");
    if (weft_cuda_gpus.count(&l.gpus, &l.error) != WEFT_OK || l.gpus < 1)
        return context->rank ? 2 : options_error("bench", "--backend cuda: %s", l.error.text);
    l.gpus = l.gpus < context->size ? l.gpus : context->size;
    l.dtype = choice.dtype;
    l.wire = choice.wire;
    context->report.columns = cuda_moe_columns;
    status = open_gpu(&l);
    report_note(&context->report, "moe of %s%s, %d processes on %d GPU%s, in graphs",
                weft_dtype_name(l.dtype), l.wire == WEFT_MOE_WIRE_FP8 ? ", tokens travel as fp8" : "",
                context->size, l.gpus, l.gpus == 1 ? "" : "s");
    cuda_moe_legend(&context->report, l.copy_bytes_per_us);
    if (context->size > l.gpus && !bench_cuda_has_mps())
        report_note(&context->report, "ranks share a GPU: MPS does not run here, so they take turns, and "
                                      "times say little about kernels");
    for (int i = 0; i < choice.shapes && !status; i++)
        for (int reduced = 0; reduced < 2 && !status; reduced++) {
            l.shape = choice.shape[i];
            l.reduced = reduced;
            if (reduced ? choice.reduced : choice.exact)
                status = measure_layer(&l);
        }
    if (l.group)
        weft_group_set_stream(l.group, 0, NULL);
    weft_group_free(l.group);
    if (l.stream)
        l.device.cu->cuStreamDestroy(l.stream);
    if (l.device.cu)
        weft_cuda_device_close(&l.device);
    return status;
}
