/* All cases on the GPU; an argument names the groups to run. Without a GPU there is nothing to test here: the
 * test says so and passes. */
#include "cases.h"

/* Two runs captured into a graph and replayed: epochs advance on the device, so every replay is two runs. */
static void graph_of(int world)
{
    const weft_cuda_driver *cu = device.cu;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 512, 512, 256);
    weft_error_text error = {0};
    CUgraph graphs[2];
    CUgraphExec runs[2];
    weft_cuda_world w;
    double got, want;

    weft_status status = weft_cuda_world_make(&device, &p, world, &plain, &w, &error);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        return;
    CHECK_INT(matrix_fill(&w, 7), 0);
    for (int r = 0; r < world; r++) {
        CHECK_INT(cu->cuStreamBeginCapture(w.streams[r], CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        for (int i = 0; i < 2; i++)
            CHECK_INT(weft_cuda_executor_launch(&w.executors[r], w.streams[r], &error), WEFT_OK);
        CHECK_INT(cu->cuStreamEndCapture(w.streams[r], &graphs[r]), CUDA_SUCCESS);
        CHECK_INT(cu->cuGraphInstantiate(&runs[r], graphs[r], 0), CUDA_SUCCESS);
    }
    for (int i = 0; i < 20; i++)
        for (int r = 0; r < world; r++)
            CHECK_INT(cu->cuGraphLaunch(runs[r], w.streams[r]), CUDA_SUCCESS);
    CHECK_INT(weft_cuda_world_finish(&w, &error), WEFT_OK);
    CHECK_INT(matrix_wrong(&w, &p, expected_of(&p), &got, &want), 0);
    for (int r = 0; r < world; r++) {
        cu->cuGraphExecDestroy(runs[r]);
        cu->cuGraphDestroy(graphs[r]);
    }
    weft_cuda_world_free(&w);
}

static void test_graph(void)
{
    graph_of(1);
    graph_of(2);
}

/* A few small cases, for tools that slow everything down. */
static void test_small(void)
{
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 300, 264, 136);
    try("small", &p, 2, &plain, 2);
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    p.k = 131;
    try("small, any strides", &p, 2, &plain, 1);
    p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 300, 264, 136);
    try("small", &p, 2, &plain, 2);
    p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 300, 264, 136);
    try("small", &p, 3, &plain, 2);
    for (int walker = WEFT_CUDA_ONE_256; walker < WEFT_CUDA_WALKERS; walker++) {
        p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 60, 264, 520);
        p.tuning.crew = weft_cuda_walkers[walker].ctas;
        p.tuning.tile_m = weft_cuda_walkers[walker].tile_m;
        p.tuning.tile_n = weft_cuda_walkers[walker].tile_n;
        p.tuning.chunk_k = 128;
        p.tuning.workers = 5;
        try("small, divided along k", &p, 1, &plain, 2);
    }
}

int main(int argc, char **argv)
{
    weft_error_text error = {0};
    weft_cuda_driver_widen();
    weft_status status = weft_cuda_device_open(0, &device, &error);
    const char *only = argc > 1 ? argv[1] : "";
    if (status == WEFT_ERR_UNSUPPORTED) {
        printf("no GPU to test on: %s\n", error.text);
        return 0;
    }
    many_runs = (int)check_repeat(200, 1000);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        return check_report(error.text);
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {{"gemm", test_gemm_alone},
                  {"splitk", test_products_by_themselves},
                  {"strides", test_any_strides},
                  {"ops", test_operations},
                  {"widths", test_ring_widths},
                  {"walkers", test_every_walker},
                  {"fp8", test_fp8},
                  {"chosen", test_chosen},
                  {"collectives", test_collectives},
                  {"missing", test_missing_rank},
                  {"graph", test_graph},
                  {"small", test_small}};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (!*only || strstr(only, groups[i].name))
            groups[i].run();
    weft_cuda_device_close(&device);
    return check_report("test_cuda_device");
}
