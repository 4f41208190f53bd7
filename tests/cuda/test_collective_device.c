/* Collectives of weft.h on the real GPU: ranks as threads and as processes that share it. */
#include "collective_cases.h"
#include "device_parts.h"
#include "run/cuda/driver.h"
#include "support/procs.h"
#include "support/ranks.h"

static int many = 200;

typedef struct coll_run {
    int counts, rounds;
} coll_run;

static void coll_body(weft_group *group, void *argument)
{
    static const int64_t counts[] = {1, 61, 4099, 0, 8, 40000, 300007};
    const coll_run *run = argument;
    coll_rank r;

    if (coll_begin(group, &r)) {
        coll_all(&r, counts, weft_size(group) > 2 && run->counts > 6 ? 6 : run->counts);
        coll_stream(&r, run->rounds, 20000);
    }
    coll_end(&r);
}

static void threads_of(int world)
{
    coll_run run = {7, many};

    ranks_run(world, coll_body, &run);
}

static void small_of(int world)
{
    coll_run run = {3, 20};

    ranks_run(world, coll_body, &run);
}

static void process_rank(int rank, void *argument)
{
    weft_group *group;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    coll_body(group, argument);
    weft_finalize(group);
}

static void processes_of(int world)
{
    coll_run run = {6, many};

    procs_run(world, process_rank, &run);
}

/* Captured on the caller's own stream and replayed, packets and tasks; the numbers of runs live on the
 * device. */
static void graph_rank(weft_group *group, void *argument)
{
    enum { REPLAYS = 50, FEW = 1000, MANY = 600000 };
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;
    coll_rank r;
    int32_t *want, *got;

    (void)argument;
    if (!coll_begin(group, &r)) {
        coll_end(&r);
        return;
    }
    want = (int32_t *)r.want;
    got = (int32_t *)r.got;
    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    for (int64_t i = 0; i < MANY; i++)
        want[i] = (int32_t)(i % 97) + weft_rank(group);
    CHECK_INT(weft_memcpy(group, r.memory[0], want, MANY * 4), WEFT_OK);
    /* max of everything, then sums over ranks of the lower half into the upper: what is added stays the same
     */
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], MANY, WEFT_I32, WEFT_MAX), WEFT_OK);
        CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0] + 4 * MANY, FEW, WEFT_I32, WEFT_SUM),
                  WEFT_OK);
        CHECK_INT(weft_all_gather(group, r.memory[0] + 4 * MANY, r.memory[0] + 8 * MANY, FEW, WEFT_I32),
                  WEFT_OK);
    }
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < REPLAYS; i++)
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_memcpy(group, got, r.memory[0], 8 * MANY + 4 * FEW * (size_t)weft_size(group)), WEFT_OK);
    int64_t wrong = 0;
    for (int64_t i = 0; i < MANY; i++)
        wrong += got[i] != (int32_t)(i % 97) + weft_size(group) - 1;
    for (int64_t i = 0; i < FEW * weft_size(group); i++)
        wrong += got[2 * MANY + i] != ((int32_t)(i % FEW % 97) + weft_size(group) - 1) * weft_size(group);
    CHECK_INT(wrong, 0);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    coll_end(&r);
    cu->cuStreamDestroy(stream);
    cu->cuDevicePrimaryCtxRelease(0);
}

static void graph_of(int world)
{
    ranks_run(world, graph_rank, NULL);
}

static void killed_rank(int rank, void *argument)
{
    int64_t count = *(int64_t *)argument;
    weft_group *group;
    void *memory;

    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)count * 4, 0, &memory), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 1)
        raise(SIGKILL);
    weft_set_deadlines(group, 10, 10);
    double begun = now();
    CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    printf("  rank %d knew after %.3f s: %s\n", rank, now() - begun, weft_error(group));
    weft_group_free(group);
}

static void killed_of(int world)
{
    int64_t counts[] = {64, 1 << 20};

    for (int i = 0; i < 2; i++) {
        procs all = procs_start(world, killed_rank, &counts[i]);

        CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
        procs_join(&all);
    }
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {
        {"threads", threads_of, 1},     {"threads", threads_of, 2}, {"threads", threads_of, 3},
        {"threads", threads_of, 4},     {"threads", threads_of, 5}, {"threads", threads_of, 6},
        {"threads", threads_of, 7},     {"threads", threads_of, 8}, {"graph", graph_of, 1},
        {"graph", graph_of, 2},         {"graph", graph_of, 4},     {"processes", processes_of, 2},
        {"processes", processes_of, 4}, {"killed", killed_of, 3},   {"small", small_of, 1}};

    many = (int)check_repeat(200, 1000);
    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_collective_device");
}
