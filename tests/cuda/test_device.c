/* All cases on the GPU; an argument names the groups to run. Without a GPU there is nothing to test here: the
 * test says so and passes. */
#include "cases.h"

#include <time.h>

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

/* Ranks that come one by one, long after each other: whatever those that wait have of the GPU, there is room
 * for all that the next one must do before it enters, the product of an unfused plan too. */
static void late(const weft_problem *p, int world, bool library)
{
    const weft_cuda_world_options impatient = {.limits = {2, 2}};
    weft_error_text error = {0};
    weft_cuda_world w;
    weft_status status = weft_cuda_world_make(&device, p, world, &impatient, &w, &error);
    if (status == WEFT_OK) {
        CHECK_INT(matrix_fill(&w, 7), 0);
        for (int i = 0; i < 2 * world && status == WEFT_OK; i++) {
            nanosleep(&(struct timespec){.tv_nsec = 500 * 1000}, NULL);
            status = weft_cuda_executor_launch(&w.executors[i % world], w.streams[i % world], &error);
        }
        weft_status last = weft_cuda_world_finish(&w, &error);
        status = status == WEFT_OK ? last : status;
        weft_cuda_world_free(&w);
    }
    if (status != WEFT_OK)
        fprintf(stderr, "late: op %d schedule %d library %d, m %lld n %lld k %lld, %d ranks: %s\n",
                (int)p->op, (int)p->schedule, library, (long long)p->m, (long long)p->n, (long long)p->k,
                world, error.text);
    CHECK_INT(status, WEFT_OK);
}

static void test_late(void)
{
    static const int64_t shapes[][3] = {{1024, 512, 512}, {8, 4096, 1024}, {2048, 4096, 1024}};
    for (int op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            for (int world = 2; world <= WEFT_CUDA_WORLD_MAX; world += world < 4 ? 1 : 2)
                for (int library = 0; library < 4; library++) {
                    weft_problem p =
                        problem_of((weft_op)op, library ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_AUTO,
                                   shapes[s][0], shapes[s][1], shapes[s][2]);
                    p.tuning.library = library;
                    late(&p, world, library);
                }
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

/* A Hopper GPU as any other one: the walker that those have. */
static void test_any_gpu(void)
{
    weft_cuda_device own = device;

    if (!device.hopper)
        return;
    device.hopper = false;
    device.crews = device.sm_count;
    test_gemm_alone_by(2);
    test_any_strides();
    test_operations();
    test_fp8();
    test_chosen();
    device = own;
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
                  {"ways", test_every_way},
                  {"sums", test_sums_sent},
                  {"strides", test_any_strides},
                  {"ops", test_operations},
                  {"widths", test_ring_widths},
                  {"walkers", test_every_walker},
                  {"fp8", test_fp8},
                  {"chosen", test_chosen},
                  {"any", test_any_gpu},
                  {"collectives", test_collectives},
                  {"late", test_late},
                  {"missing", test_missing_rank},
                  {"graph", test_graph},
                  {"small", test_small}};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (!*only || strstr(only, groups[i].name))
            groups[i].run();
    weft_cuda_device_close(&device);
    return check_report("test_cuda_device");
}
