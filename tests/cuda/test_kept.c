/* Plans that a group of fake GPUs keeps for its calls, and those it no longer keeps. */
#include "fake_gpu.h"
#include "run/cuda/group.h"
#include "support/check.h"
#include "support/ranks.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { KEPT = 64, COUNT = 40009, BLOCK = 1 << 20 };

static char *begin(weft_group *group)
{
    void *memory = NULL;

    CHECK_INT(weft_group_use_gpu(group, weft_rank(group)), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK, 0, &memory), WEFT_OK);
    return memory;
}

static weft_status add(weft_group *group, char *memory, int64_t count)
{
    return weft_all_reduce(group, memory, memory + BLOCK / 2, count, WEFT_I32, WEFT_SUM);
}

/* Rank 1 comes when the others' call has been given up. Then so many others come that its plan goes before
 * anybody waits: who does is told. */
static void given_up_rank(weft_group *group, void *argument)
{
    _Atomic int *given_up = argument;
    char *memory = begin(group);
    const weft_cuda_group *g = weft_cuda_of(group);

    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < 2 * KEPT; i++) /* there is memory for all that come */
        CHECK_INT(add(group, memory, 1000 + i), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.2, 20), WEFT_OK);
    while (weft_rank(group) == 1 && !atomic_load(given_up))
        ;
    CHECK_INT(add(group, memory, 100), WEFT_OK);
    CHECK_INT(g->device->cu->cuStreamSynchronize(g->stream), CUDA_SUCCESS);
    atomic_store(given_up, 1);
    CHECK_INT(weft_set_deadlines(group, 20, 20), WEFT_OK);
    for (int i = 1, status = WEFT_OK; i <= KEPT && status == WEFT_OK; i++)
        status = add(group, memory, 100 + i);
    CHECK_INT(weft_group_wait(group), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "to enter run 1, and it did not come");
}

/* Who no longer keeps a plan whose run waits for a peer waits as long as the run does: the peer has its time
 * to come, not only that of a task. */
static void late_rank(weft_group *group, void *argument)
{
    char *memory = begin(group);

    (void)argument;
    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < 2 * KEPT; i++)
        CHECK_INT(add(group, memory, 1000 + i), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, 20, 0.2), WEFT_OK);
    if (weft_rank(group) == 1)
        nanosleep(&(struct timespec){1, 0}, NULL);
    for (int i = 0; i < 2 * KEPT; i++)
        CHECK_INT(add(group, memory, 100 + i), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, 20, 20), WEFT_OK);
}

static void fail(weft_group *group)
{
    weft_problem p;
    weft_plan *plan;

    weft_problem_init(&p, WEFT_OP_ALL_REDUCE);
    p.count = 1 + weft_rank(group);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_MISMATCH);
}

/* A call that fails on all ranks makes plans go, but not that of a graph. */
static void graph_rank(weft_group *group, void *argument)
{
    char *memory = begin(group);
    const weft_cuda_device *device = weft_cuda_of(group)->device;
    const weft_cuda_driver *cu = device->cu;
    static _Thread_local int32_t given[COUNT], got[COUNT];
    int64_t wrong = 0;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    (void)argument;
    CHECK_INT(cu->cuCtxSetCurrent(device->context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    for (int32_t i = 0; i < COUNT; i++)
        given[i] = i % 97;
    CHECK_INT(weft_memcpy(group, memory, given, sizeof(given)), WEFT_OK);
    for (int i = 0; i < 3; i++) { /* that peers are told where it lies comes before the capture */
        if (i == 2)
            CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        CHECK_INT(add(group, memory, COUNT), WEFT_OK);
    }
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        fail(group);
        for (int j = 1; j <= KEPT; j++)
            CHECK_INT(add(group, memory, COUNT + j), WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
        memset(got, 0xff, sizeof(got));
        CHECK_INT(weft_memcpy(group, memory + BLOCK / 2, got, sizeof(got)), WEFT_OK);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
        CHECK_INT(weft_memcpy(group, got, memory + BLOCK / 2, sizeof(got)), WEFT_OK);
        for (int32_t j = 0; j < COUNT; j++)
            wrong += got[j] != given[j] * weft_size(group);
        CHECK_INT(wrong, 0);
        CHECK_INT(weft_barrier(group), WEFT_OK);
    }
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    CHECK_INT(weft_group_set_stream(group, 0, NULL), WEFT_OK);
    cu->cuStreamDestroy(stream);
}

/* A call for whose plan there is memory needs none for plans of calls that may come, and those come, too. */
static void full_rank(weft_group *group, void *argument)
{
    int32_t one = 1 + weft_rank(group), sum = 0;
    char *memory = begin(group);
    void *freed = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, 16 << 20, 0, &freed), WEFT_OK);
    CHECK_INT(weft_free(group, freed), WEFT_OK);
    CHECK_INT(weft_memcpy(group, memory, &one, sizeof(one)), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    fake_gpu_break("cuMemCreate", 0);
    for (int i = 1; i < 4; i++) {
        CHECK_INT(add(group, memory, i), WEFT_OK);
        CHECK_INT(weft_memcpy(group, &sum, memory + BLOCK / 2, sizeof(sum)), WEFT_OK);
        CHECK_INT(sum, 3);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    fake_gpu_break(NULL, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int i = 4; i < 7; i++)
        CHECK_INT(add(group, memory, i), WEFT_OK);
    CHECK(weft_cuda_of(group)->unmet.arena.bytes > 0);
}

/* A rank that rejects the first call of a new size, or what nobody could call so, is told alone; its peers
 * have what it calls next. */
static void again_rank(weft_group *group, void *argument)
{
    int32_t one = 1 + weft_rank(group), sum = 0;
    char *memory = begin(group);

    (void)argument;
    CHECK_INT(weft_memcpy(group, memory, &one, sizeof(one)), WEFT_OK);
    CHECK_INT(add(group, memory, 1), WEFT_OK);
    for (int64_t count = 100; count <= COUNT; count += COUNT - 100) {
        if (weft_rank(group) == 0) {
            CHECK_INT(add(group, memory, -1), WEFT_ERR_ARGUMENT);
            CHECK_HAS(weft_error(group), "count must not be negative");
            CHECK_INT(weft_all_reduce(group, NULL, memory + BLOCK / 2, count, WEFT_I32, WEFT_SUM),
                      WEFT_ERR_ARGUMENT);
        }
        for (int i = 0; i < 2; i++) {
            CHECK_INT(add(group, memory, count), WEFT_OK);
            CHECK_INT(weft_memcpy(group, &sum, memory + BLOCK / 2, sizeof(sum)), WEFT_OK);
            CHECK_INT(sum, 3);
        }
    }
}

/* A rank that makes a plan by itself, and one that waits to make one together, are told that they differ. */
static void apart_rank(weft_group *group, void *argument)
{
    char *memory = begin(group);

    (void)argument;
    CHECK_INT(add(group, memory, 1), WEFT_OK);
    CHECK_INT(add(group, memory, 100 * weft_rank(group)), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "ran another plan of all_reduce than rank");
}

/* Ranks that asked for different sizes are told, however many calls came after. */
static void long_ago_rank(weft_group *group, void *argument)
{
    char *memory = begin(group);
    weft_status status = WEFT_OK;

    (void)argument;
    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(add(group, memory, 64), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(add(group, memory, 101 + weft_rank(group)), WEFT_OK);
    for (int i = 0; i < 1000 && status == WEFT_OK; i++)
        status = add(group, memory, 64);
    CHECK_INT(weft_group_wait(group), WEFT_ERR_MISMATCH);
}

int main(void)
{
    _Atomic int gone = 0;

    fake_gpu_install(2, 16, true);
    ranks_run(2, given_up_rank, &gone);
    ranks_run(2, late_rank, NULL);
    ranks_run(2, graph_rank, NULL);
    ranks_run(2, full_rank, NULL);
    ranks_run(2, again_rank, NULL);
    ranks_run(2, apart_rank, NULL);
    ranks_run(2, long_ago_rank, NULL);
    return check_report("test_cuda_kept");
}
