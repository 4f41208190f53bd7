/*
 * The GPUs of this machine, by weft's own calls: products of every type as `auto` makes them, a copy through
 * memory, the smallest run launched by itself and from a graph, and between GPUs an all_gather and the
 * smallest all_reduce. Operands are random numbers: on zeros a GPU draws less power and runs faster.
 */
#include "calibrate/calibrate.h"

#include "bench/cuda/graph.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/driver.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { SAMPLES = 9, SMALL = 64, SMALL_RUNS = 100 };

static int fail(weft_group *group, const char *what)
{
    fprintf(stderr, "weft calibrate: %s: %s\n", what, weft_error(group));
    return 1;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double samples[SAMPLES])
{
    qsort(samples, SAMPLES, sizeof(*samples), by_size);
    return samples[SAMPLES / 2];
}

/* ---- one GPU --------------------------------------------------------------------------------------------
 */

typedef struct product {
    weft_group *group;
    weft_plan *plan;
    weft_operands operands;
} product;

static int fill(weft_group *group, void *memory, weft_dtype dtype, int64_t count)
{
    int64_t piece = count < 1 << 20 ? count : 1 << 20;
    size_t element = weft_dtype_size(dtype);
    void *host = malloc((size_t)piece * element);
    uint64_t random = 1;
    int status = host ? 0 : 1;

    for (int64_t i = 0; i < piece && !status; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        weft_element_set(dtype, host, (size_t)i, (double)(random >> 40) * 0x1p-23 - 1);
    }
    for (int64_t at = 0; at < count && !status; at += piece)
        status = weft_memcpy(group, (char *)memory + (size_t)at * element, host,
                             (size_t)(count - at < piece ? count - at : piece) * element) != WEFT_OK;
    free(host);
    return status ? fail(group, "filling operands") : 0;
}

static void product_close(product *p)
{
    weft_plan_destroy(p->plan);
    weft_free(p->group, (void *)(uintptr_t)p->operands.a);
    weft_free(p->group, (void *)(uintptr_t)p->operands.b);
    weft_free(p->group, p->operands.d);
}

static int product_open(product *p, weft_group *group, weft_dtype dtype, int64_t extent)
{
    size_t bytes = (size_t)(extent * extent) * weft_dtype_size(dtype);
    weft_problem problem;
    void *a = NULL, *b = NULL, *d = NULL;

    *p = (product){.group = group};
    weft_problem_init(&problem, WEFT_OP_GEMM_AS);
    problem.dtype = dtype;
    problem.d_dtype = weft_dtype_is_fp8(dtype) ? WEFT_BF16 : dtype;
    problem.m = problem.n = problem.k = extent;
    problem.transb = weft_dtype_is_fp8(dtype); /* as libraries want it */
    if (weft_alloc(group, bytes, 0, &a) != WEFT_OK || weft_alloc(group, bytes, 0, &b) != WEFT_OK ||
        weft_alloc(group, (size_t)(extent * extent) * weft_dtype_size(problem.d_dtype), 0, &d) != WEFT_OK)
        return fail(group, "allocating operands");
    p->operands = (weft_operands){.size = sizeof(p->operands), .a = a, .b = b, .d = d};
    if (weft_plan_create(group, &problem, &p->plan) != WEFT_OK)
        return fail(group, weft_dtype_name(dtype));
    return fill(group, a, dtype, extent * extent) || fill(group, b, dtype, extent * extent);
}

/* Microseconds of a run, over `count` of them on the group's stream. */
static int time_runs(const product *p, int count, double *us)
{
    double samples[SAMPLES];

    for (int sample = -2; sample < SAMPLES; sample++) {
        int64_t begun = weft_clock_ns();

        for (int i = 0; i < count; i++)
            if (weft_run_on(p->plan, &p->operands, WEFT_STREAM_OWN) != WEFT_OK)
                return fail(p->group, "a product");
        if (weft_run_wait(p->plan, WEFT_STREAM_OWN) != WEFT_OK)
            return fail(p->group, "a product");
        if (sample >= 0)
            samples[sample] = (double)(weft_clock_ns() - begun) * 1e-3 / count;
    }
    *us = median(samples);
    return 0;
}

/* Products of `extent`, as the simulator takes their time apart: whole waves of its tiles over the units. */
static int measure_products(weft_group *group, int64_t extent, weft_machine *machine)
{
    static const weft_dtype types[] = {WEFT_BF16, WEFT_F16, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    double tiles =
        (double)(weft_divide_up(extent, machine->tile_m) * weft_divide_up(extent, machine->tile_n));
    double work =
        ceil(tiles / machine->units) * 2 * (double)(machine->tile_m * machine->tile_n) * (double)extent;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        product p;
        double us = 0;
        int status = product_open(&p, group, types[i], extent) || time_runs(&p, 4, &us);

        product_close(&p);
        if (status)
            return status;
        machine->gflops[types[i]] = work / us * 1e-3;
    }
    return 0;
}

static int measure_memory(weft_group *group, size_t bytes, weft_machine *machine)
{
    double samples[SAMPLES];
    void *from = NULL, *to = NULL;
    int status = weft_alloc(group, bytes, 0, &from) != WEFT_OK || weft_alloc(group, bytes, 0, &to) != WEFT_OK;

    for (int sample = -2; sample < SAMPLES && !status; sample++) {
        int64_t begun = weft_clock_ns();

        status = weft_memcpy(group, to, from, bytes) != WEFT_OK;
        if (sample >= 0)
            samples[sample] = (double)(weft_clock_ns() - begun);
    }
    if (!status)
        machine->memory_gbs = 2 * (double)bytes / median(samples);
    weft_free(group, from);
    weft_free(group, to);
    return status ? fail(group, "copying") : 0;
}

/* Microseconds of a run, in a graph of many. */
static int time_graph(const product *p, const weft_cuda_driver *cu, double *us)
{
    CUstream stream = NULL;
    gpu_graph runs = {0};
    double samples[SAMPLES] = {0};
    bool good = cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
                weft_run_on(p->plan, &p->operands, stream) == WEFT_OK &&
                weft_run_wait(p->plan, stream) == WEFT_OK && gpu_graph_begin(cu, stream) == CUDA_SUCCESS;

    for (int i = 0; i < SMALL_RUNS && good; i++)
        good = weft_run_on(p->plan, &p->operands, stream) == WEFT_OK;
    good = good && gpu_graph_end(cu, stream, &runs) == CUDA_SUCCESS;
    for (int sample = -2; sample < SAMPLES && good; sample++) {
        int64_t begun = weft_clock_ns();

        good = cu->cuGraphLaunch(runs.replay, stream) == CUDA_SUCCESS &&
               weft_run_wait(p->plan, stream) == WEFT_OK;
        if (sample >= 0)
            samples[sample] = (double)(weft_clock_ns() - begun) * 1e-3 / SMALL_RUNS;
    }
    *us = median(samples);
    gpu_graph_drop(cu, &runs);
    if (stream)
        cu->cuStreamDestroy(stream);
    return good ? 0 : fail(p->group, "a graph of small products");
}

static int measure_launches(weft_group *group, const weft_cuda_driver *cu, weft_machine *machine)
{
    product p;
    double us = 0;
    int status = product_open(&p, group, WEFT_BF16, SMALL) || time_runs(&p, SMALL_RUNS, &us) ||
                 time_graph(&p, cu, &machine->launch_graph_us);

    product_close(&p);
    machine->launch_fused_us = machine->launch_unfused_us = us;
    return status;
}

/* ---- between GPUs ---------------------------------------------------------------------------------------
 */

typedef struct link_rank {
    weft_group *group;
    size_t bytes;
    double gather_us, reduce_us; /* rank 0's */
    int status;
} link_rank;

static int time_collective(weft_group *group, void *from, void *to, int64_t floats, bool gathers, double *us)
{
    double samples[SAMPLES];

    for (int sample = -2; sample < SAMPLES; sample++) {
        int64_t begun;
        weft_status status = weft_barrier(group);

        begun = weft_clock_ns();
        if (status == WEFT_OK)
            status = gathers ? weft_all_gather(group, from, to, floats, WEFT_F32)
                             : weft_all_reduce(group, from, to, floats, WEFT_F32, WEFT_SUM);
        if (status != WEFT_OK)
            return fail(group, "a collective between GPUs");
        if (sample >= 0)
            samples[sample] = (double)(weft_clock_ns() - begun) * 1e-3;
    }
    *us = median(samples);
    return 0;
}

static void *link_run(void *argument)
{
    link_rank *r = argument;
    size_t ranks = (size_t)weft_size(r->group);
    int64_t floats = (int64_t)(r->bytes / sizeof(float));
    void *from = NULL, *to = NULL;

    r->status = weft_group_use_gpu(r->group, -1) != WEFT_OK ||
                weft_alloc(r->group, r->bytes, 0, &from) != WEFT_OK ||
                weft_alloc(r->group, r->bytes * ranks, 0, &to) != WEFT_OK;
    if (r->status)
        fail(r->group, "a group of all GPUs");
    r->status = r->status || time_collective(r->group, from, to, floats, true, &r->gather_us) ||
                time_collective(r->group, from, to, 4, false, &r->reduce_us);
    weft_free(r->group, from);
    weft_free(r->group, to);
    weft_group_free(r->group);
    return NULL;
}

/* All GPUs at once: what each takes in from the others, and the two waits of a small all_reduce. */
static int measure_links(int gpus, size_t bytes, weft_machine *machine)
{
    weft_group *groups[CALIBRATE_MOST_GPUS];
    link_rank ranks[CALIBRATE_MOST_GPUS] = {0};
    pthread_t threads[CALIBRATE_MOST_GPUS];
    int started = 0, status = 0;

    if (weft_group_threads(gpus, groups) != WEFT_OK)
        return fail(NULL, "a group of all GPUs");
    for (int i = 0; i < gpus; i++)
        ranks[i] = (link_rank){.group = groups[i], .bytes = bytes};
    while (started < gpus && pthread_create(&threads[started], NULL, link_run, &ranks[started]) == 0)
        started++;
    if (started < gpus) {
        fprintf(stderr, "weft calibrate: a thread could not be started\n");
        weft_group_abort(groups[started], "a thread of weft calibrate could not be started");
        for (int i = started; i < gpus; i++)
            weft_group_free(groups[i]);
        status = 1;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        status |= ranks[i].status;
    }
    if (status)
        return 1;
    machine->link_gbs = (double)(gpus - 1) * (double)bytes / (ranks[0].gather_us * 1e3);
    machine->flag_us = fmax(ranks[0].reduce_us - machine->launch_fused_us, 0.1);
    machine->link_us = machine->flag_us;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------
 */

static const char *like(const weft_cuda_device *device)
{
    return device->major >= 10 ? "b200x8" : device->major == 9 ? "h100x8" : "a100x8";
}

int calibrate_gpus(int64_t extent, calibrate_said *say, weft_machine *machine, calibrate_gpu *gpu)
{
    weft_error_text error = {0};
    weft_cuda_device device = {0};
    weft_group *group = NULL;
    CUcontext left;
    size_t bytes = (size_t)(extent * extent) * 16;
    int gpus = 0, status;

    if (weft_cuda_gpus.count(&gpus, &error) != WEFT_OK)
        return fprintf(stderr, "weft calibrate: --backend cuda: %s\n", error.text), 2;
    if (gpus < 1)
        return fprintf(stderr, "weft calibrate: --backend cuda: this machine has no GPU\n"), 2;
    if (weft_cuda_gpus.open(0, &device, &error) != WEFT_OK)
        return fprintf(stderr, "weft calibrate: --backend cuda: %s\n", error.text), 2;
    *gpu = (calibrate_gpu){.gpus = gpus < CALIBRATE_MOST_GPUS ? gpus : CALIBRATE_MOST_GPUS,
                           .like = like(&device)};
    snprintf(gpu->name, sizeof(gpu->name), "%s", device.name);
    status = weft_machine_find(gpu->like, machine, &error) != WEFT_OK;
    machine->units = device.sm_count;
    if (!status && (weft_group_threads(1, &group) != WEFT_OK || weft_group_use_gpu(group, 0) != WEFT_OK))
        status = fail(group, "a group on the GPU");
    device.cu->cuCtxPushCurrent(device.context);
    say("multiplying");
    status = status || measure_products(group, extent, machine);
    say("copying and launching");
    status = status || measure_memory(group, bytes, machine) || measure_launches(group, device.cu, machine);
    device.cu->cuCtxPopCurrent(&left);
    weft_group_free(group);
    weft_cuda_device_close(&device);
    if (gpu->gpus > 1) {
        say("between GPUs");
        status = status || measure_links(gpu->gpus, bytes / 16, machine);
    }
    return status;
}
