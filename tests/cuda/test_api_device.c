/*
 * Products of weft.h on the real GPU: ranks as threads and as processes that share it.
 */
#include "api_cases.h"
#include "core/dtype.h"
#include "device_parts.h"
#include "new_sizes_cases.h"
#include "run/cuda/driver.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <time.h>

static int many = 1000;

static void threads_of(int world)
{
    api_run run = {.runs = 2, .shapes = 2};

    ranks_run(world, api_rank, &run);
}

/* Operands that peers cannot reach. */
static void elsewhere_of(int world)
{
    api_run run = {.runs = 3, .shapes = 2, .elsewhere = true};

    ranks_run(world, api_rank, &run);
}

static void scaled_of(int world)
{
    api_run run = {.runs = 2};

    ranks_run(world, api_scaled_rank, &run);
}

/* For tools that slow everything down. */
static void small_of(int world)
{
    api_run run = {.runs = 1, .shapes = 1};

    ranks_run(world, api_rank, &run);
}

static void processes_of(int world)
{
    api_run run = {.runs = 2, .shapes = 2};

    procs_run_ranks(world, api_rank, &run);
}

/* Many runs back to back, without a barrier on the host. */
static void many_rank(weft_group *group, void *argument)
{
    api_run run = {0};
    weft_group *cpu = NULL;

    (void)argument;
    if (api_groups(group, false, &cpu))
        for (int kind = 0; kind < API_KINDS; kind++) {
            tp_case t = api_case(&run, kind, 512, 384, 320);

            api_try(group, cpu, group, &t, many);
        }
    weft_group_free(cpu);
}

static void many_of(int world)
{
    ranks_run(world, many_rank, NULL);
}

static weft_problem product(void)
{
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.m = p.n = p.k = 512;
    p.dtype = p.d_dtype = WEFT_BF16;
    return p;
}

enum { MATRIX_BYTES = 512 * 512 * 2 };

/* A plan with operands, for the parts below. */
static weft_plan *planned(weft_group *group, weft_operands *operands)
{
    weft_problem p = product();
    weft_plan *plan = NULL;
    char *block = NULL;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 3 * MATRIX_BYTES, 0, (void **)&block), WEFT_OK);
    *operands = (weft_operands){
        .size = sizeof(*operands), .a = block, .b = block + MATRIX_BYTES, .d = block + 2 * MATRIX_BYTES};
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (check_failures)
        fprintf(stderr, "%s\n", weft_error(group));
    return plan;
}

/* One that has run. */
static weft_plan *ready(weft_group *group, weft_operands *operands)
{
    weft_plan *plan = planned(group, operands);

    CHECK_INT(weft_run(plan, operands), WEFT_OK);
    if (check_failures)
        fprintf(stderr, "%s\n", weft_error(group));
    return plan;
}

static void alone(weft_group *group, void *argument)
{
    api_run run = {.runs = 2, .shapes = 1};

    (void)argument;
    api_rank(group, &run);
}

static void missing_rank(weft_group *group, void *argument)
{
    weft_operands operands;
    weft_plan *plan = ready(group, &operands);
    double begun = now();

    (void)argument;
    weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.5, 20);
    if (weft_rank(group) == 1)
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    else
        CHECK_INT(weft_run(plan, &operands), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "for rank 1 to enter run 2");
    CHECK(now() - begun < 5);
    weft_plan_destroy(plan);
}

static void missing_of(int world)
{
    ranks_run(world, missing_rank, NULL);
    ranks_run(2, alone, NULL); /* the GPU still works, in this very process */
}

/* A rank gives up: the other's kernel ends, though its host waits for the stream alone. */
static void given_up_rank(weft_group *group, void *argument)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    weft_operands operands;
    weft_plan *plan = ready(group, &operands);
    CUcontext context;
    CUstream stream;
    double begun = now();

    (void)argument;
    if (weft_rank(group) == 1) {
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    } else {
        CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
        CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
        CHECK_INT(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
        CHECK(now() - begun < 5);
        CHECK_INT(weft_run_wait(plan, stream), WEFT_ERR_ABORTED);
        cu->cuStreamDestroy(stream);
        cu->cuDevicePrimaryCtxRelease(0);
    }
    weft_plan_destroy(plan);
}

static void given_up_of(int world)
{
    ranks_run(world, given_up_rank, NULL);
    ranks_run(2, alone, NULL);
}

/* The first runs on a GPU that was just opened: see weft_cuda_rehearse. */
static void first_run(weft_group *group, void *argument)
{
    weft_operands operands;
    weft_plan *plan = planned(group, &operands);

    (void)argument;
    weft_set_deadlines(group, 5, 5);
    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    weft_plan_destroy(plan);
}

static void opened_of(int world)
{
    for (int i = 0; i < many / 50 && !check_failures; i++)
        ranks_run(2 + i % (world - 1), first_run, NULL);
}

/* Operands that all ranks know, but not together: an error instead of a product of the wrong matrices. */
static void mixed_rank(weft_group *group, void *argument)
{
    weft_operands sets[2];
    weft_plan *plan = ready(group, &sets[0]);
    char *block = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, MATRIX_BYTES, 0, (void **)&block), WEFT_OK);
    sets[1] = sets[0];
    sets[1].a = block;
    CHECK_INT(weft_run(plan, &sets[1]), WEFT_OK);
    CHECK_INT(weft_barrier(group),
              WEFT_OK); /* a rank still in that call would be told of the next one's end */
    CHECK_INT(weft_run(plan, &sets[weft_rank(group) == 1]), WEFT_ERR_MISMATCH);
    weft_plan_destroy(plan);
}

static void mixed_of(int world)
{
    ranks_run(world, mixed_rank, NULL);
    ranks_run(2, alone, NULL);
}

/* Rank 1 is killed while its kernel waits for the others (`amid`), or between runs. */
static void killed_rank(int rank, void *argument)
{
    bool amid = *(int *)argument;
    weft_group *group;
    weft_operands operands;

    CHECK_INT(weft_init(&group), WEFT_OK);
    weft_plan *plan = ready(group, &operands);
    if (rank == 1) {
        if (amid)
            CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        raise(SIGKILL);
    }
    if (amid)
        nanosleep(&(struct timespec){0, 200000000}, NULL);
    weft_set_deadlines(group, 10, 10);
    double begun = now();
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    CHECK(now() - begun < 10);
    printf("  rank %d knew after %.3f s: %s\n", rank, now() - begun, weft_error(group));
    weft_plan_destroy(plan);
    weft_group_free(group);
    /* a client of MPS may have too few queues for kernels of one process that wait for each other */
    ranks_run(getenv("CUDA_MPS_PIPE_DIRECTORY") ? 1 : 2, alone, NULL);
}

static void killed_of(int world)
{
    int amid = world < 0;
    procs all = procs_start(amid ? -world : world, killed_rank, &amid);

    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
}

enum { CHAIN_ROWS = 8192, CHAIN_COLS = 512, CHAIN_BYTES = CHAIN_ROWS * CHAIN_COLS * 2 };

/* Runs that each read what the one before them wrote: to and fro between two matrices, by a product that
 * moves every column one on. A run that began to read too early would move something twice too little. */
static void chained_rank(weft_group *group, void *argument)
{
    weft_problem p = product();
    weft_plan *plans[2] = {0};
    char *block = NULL, *b = NULL;
    uint16_t *host = calloc(1, CHAIN_BYTES), *last = calloc(1, CHAIN_BYTES);
    int64_t wrong = 0;

    (void)argument;
    p.m = CHAIN_ROWS;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 2 * CHAIN_BYTES + MATRIX_BYTES, 0, (void **)&block), WEFT_OK);
    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_plan_create(group, &p, &plans[i]), WEFT_OK);
    if (check_failures)
        return;
    b = block + 2 * CHAIN_BYTES;
    for (int k = 0; k < CHAIN_COLS; k++)
        weft_element_set(WEFT_BF16, host, (size_t)(k * CHAIN_COLS + (k + 1) % CHAIN_COLS), 1);
    CHECK_INT(weft_memcpy(group, b, host, MATRIX_BYTES), WEFT_OK);
    for (int i = 0; i < CHAIN_ROWS; i++)
        for (int j = 0; j < CHAIN_COLS; j++)
            weft_element_set(WEFT_BF16, host, (size_t)(i * CHAIN_COLS + j), (i + j * j) % 251);
    CHECK_INT(weft_memcpy(group, block, host, CHAIN_BYTES), WEFT_OK);
    for (int i = 0; i < many; i++) {
        weft_operands way = {.size = sizeof(way),
                             .a = block + (size_t)(i % 2) * CHAIN_BYTES,
                             .b = b,
                             .d = block + (size_t)((i + 1) % 2) * CHAIN_BYTES};
        CHECK_INT(weft_run_on(plans[i % 2], &way, WEFT_STREAM_OWN), WEFT_OK);
    }
    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_run_wait(plans[i], WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_memcpy(group, last, block + (size_t)(many % 2) * CHAIN_BYTES, CHAIN_BYTES), WEFT_OK);
    for (int i = 0; i < CHAIN_ROWS; i++)
        for (int j = 0; j < CHAIN_COLS; j++)
            wrong += last[i * CHAIN_COLS + (j + many) % CHAIN_COLS] != host[i * CHAIN_COLS + j];
    CHECK_INT(wrong, 0);
    for (int i = 0; i < 2; i++)
        weft_plan_destroy(plans[i]);
    free(host);
    free(last);
}

static void chained_of(int world)
{
    ranks_run(world, chained_rank, NULL);
}

/* Runs captured on the caller's own stream and replayed: epochs advance on the device. */
static void graph_rank(weft_group *group, void *argument)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    weft_operands operands;
    weft_plan *plan = ready(group, &operands);
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    (void)argument;
    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    operands.lda = 512; /* the same, but a set of operands that the plan has not seen */
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 50; i++)
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
    CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, stream), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    weft_plan_destroy(plan);
    cu->cuStreamDestroy(stream);
    cu->cuDevicePrimaryCtxRelease(0);
}

static void graph_of(int world)
{
    ranks_run(world, graph_rank, NULL);
}

/* A graph of a product whose alpha is read when it runs: another value needs no other graph. */
static void values_rank(weft_group *group, void *argument)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    uint16_t *host = malloc(MATRIX_BYTES);
    weft_operands operands;
    weft_plan *plan = planned(group, &operands);
    float *alpha = NULL;
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    (void)argument;
    for (int i = 0; i < MATRIX_BYTES / 2; i++)
        weft_element_set(WEFT_BF16, host, (size_t)i, 1);
    CHECK_INT(weft_memcpy(group, (void *)(uintptr_t)operands.a, host, MATRIX_BYTES), WEFT_OK);
    CHECK_INT(weft_memcpy(group, (void *)(uintptr_t)operands.b, host, MATRIX_BYTES), WEFT_OK);
    CHECK_INT(weft_alloc(group, sizeof(*alpha), 0, (void **)&alpha), WEFT_OK);
    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    operands.alpha = alpha;
    CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_INT(weft_run_on(plan, &operands, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 1; i < 5; i++) {
        float value = (float)i;

        CHECK_INT(weft_run_wait(plan, stream), WEFT_OK);
        CHECK_INT(weft_memcpy(group, alpha, &value, sizeof(value)), WEFT_OK);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_run_wait(plan, stream), WEFT_OK);
        CHECK_INT(weft_memcpy(group, host, operands.d, MATRIX_BYTES), WEFT_OK);
        for (int at = 0; at < 512; at += 73)
            CHECK_INT(weft_element_get(WEFT_BF16, host, (size_t)at), 512 * i);
    }
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    weft_plan_destroy(plan);
    cu->cuStreamDestroy(stream);
    cu->cuDevicePrimaryCtxRelease(0);
    free(host);
}

static void values_of(int world)
{
    ranks_run(world, values_rank, NULL);
}

/* Sizes that change in every call: where ranks are threads and share the library they make its programs
 * together, else hosts tell each other nothing. */
static void sizes_of(int world)
{
    sizes_run threads = {
        .sizes = 150, .at_once = 10, .quiet = 150, .step = 1, .side = 128, .shown = world == 4};

    ranks_run(world, sizes_rank, &threads);
}

static void sizes_processes_of(int world)
{
    sizes_run run = {.sizes = 24, .at_once = 8, .step = 5, .side = 256, .shown = true};

    procs_run_ranks(world, sizes_rank, &run);
}

/* A graph may capture the first run of a new size. */
static void sizes_graph_rank(weft_group *group, void *argument)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    sizes_run run = {.sizes = 12, .step = 7, .side = 256};
    sizes_call calls[12];
    char *memory = NULL, *at;
    CUcontext context;
    CUstream stream;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 16 << 20, 0, (void **)&memory), WEFT_OK);
    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    at = memory;
    for (int i = 0; i < run.sizes; i++) {
        CUgraph graph;
        CUgraphExec replay;

        sizes_begin(group, &run, i, &at, &calls[i]);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
        CHECK_INT(sizes_issue(group, &calls[i]), WEFT_OK);
        CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
        CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
        for (int j = 0; j < 2; j++) {
            CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
            CHECK_INT(weft_group_wait(group), WEFT_OK);
            sizes_check(group, &calls[i]);
        }
        cu->cuGraphExecDestroy(replay);
        cu->cuGraphDestroy(graph);
        if (calls[i].kind != SIZES_GATHER)
            tp_release(calls[i].hosts);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_group_set_stream(group, 0, NULL), WEFT_OK);
    cu->cuStreamDestroy(stream);
    cu->cuDevicePrimaryCtxRelease(0);
}

static void sizes_graph_of(int world)
{
    ranks_run(world, sizes_graph_rank, NULL);
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {{"threads", threads_of, 1},
                                        {"threads", threads_of, 2},
                                        {"threads", threads_of, 3},
                                        {"threads", threads_of, 4},
                                        {"threads", threads_of, 5},
                                        {"threads", threads_of, 6},
                                        {"threads", threads_of, 7},
                                        {"threads", threads_of, 8},
                                        {"many", many_of, 4},
                                        {"chained", chained_of, 1},
                                        {"graph", graph_of, 1},
                                        {"graph", graph_of, 2},
                                        {"values", values_of, 2},
                                        {"opened", opened_of, 8},
                                        {"mixed", mixed_of, 3},
                                        {"missing", missing_of, 2},
                                        {"given up", given_up_of, 2},
                                        {"elsewhere", elsewhere_of, 3},
                                        {"processes", processes_of, 2},
                                        {"processes", processes_of, 4},
                                        {"killed idle", killed_of, 2},
                                        {"killed amid", killed_of, -3},
                                        {"scaled", scaled_of, 1},
                                        {"scaled", scaled_of, 3},
                                        {"small", small_of, 2},
                                        {"sizes", sizes_of, 1},
                                        {"sizes", sizes_of, 2},
                                        {"sizes", sizes_of, 4},
                                        {"sizes apart", sizes_processes_of, 2},
                                        {"sizes apart", sizes_processes_of, 4},
                                        {"sizes graph", sizes_graph_of, 2}};
    many = (int)check_repeat(200, 1000);
    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_api_device");
}
