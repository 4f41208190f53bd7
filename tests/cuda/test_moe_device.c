/* Mixture of experts of weft.h on the real GPU: ranks as threads and as processes that share it. */
#include "device_parts.h"
#include "moe_ffn_cases.h"
#include "moe_wrong_cases.h"
#include "run/cuda/driver.h"
#include "support/procs.h"
#include "support/ranks.h"

static int many = 1000;

/* The driver, with the GPU's context in this thread; context_drop gives that back. */
static const weft_cuda_driver *context_take(void)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    CUcontext context;

    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    return cu;
}

static void context_drop(const weft_cuda_driver *cu)
{
    cu->cuDevicePrimaryCtxRelease(0);
}

static void moe_body(weft_group *group, void *argument)
{
    int rounds = *(int *)argument;
    moe_rank r;

    if (moe_begin(group, &r)) {
        const weft_cuda_driver *cu = context_take();

        moe_shapes(&r);
        moe_ffn(&r, true, cu);
        context_drop(cu);
        moe_back_to_back(&r, rounds, WEFT_MOE_EXACT);
        moe_back_to_back(&r, rounds, WEFT_MOE_REDUCED);
        moe_two_lanes(&r, rounds);
        if (weft_size(group) > 1)
            moe_errors(&r);
    }
    moe_end(&r);
}

static void threads_of(int world)
{
    ranks_run(world, moe_body, &many);
}

static void small_of(int world)
{
    int few = 20;

    ranks_run(world, moe_body, &few);
}

/* Without products: their kernels are not for every tool. */
static void rounds_rank(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin(group, &r)) {
        moe_shapes(&r);
        moe_back_to_back(&r, 20, WEFT_MOE_EXACT);
        moe_back_to_back(&r, 20, WEFT_MOE_REDUCED);
        moe_two_lanes(&r, 20);
    }
    moe_end(&r);
}

static void rounds_of(int world)
{
    ranks_run(world, rounds_rank, NULL);
}

static void processes_of(int world)
{
    procs_run_ranks(world, moe_body, &many);
}

static void graph_rank(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin(group, &r)) {
        const weft_cuda_driver *cu = context_take();

        moe_graph(&r, cu, 300);
        context_drop(cu);
    }
    moe_end(&r);
}

static void graph_of(int world)
{
    ranks_run(world, graph_rank, NULL);
}

static void missing_of(int world)
{
    bool combines = false;

    ranks_run(world, moe_missing_rank, &combines);
    combines = true;
    ranks_run(world, moe_missing_rank, &combines);
}

static void killed_of(int world)
{
    procs all = procs_start(world, moe_killed_rank, NULL);

    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {
        {"threads", threads_of, 1},     {"threads", threads_of, 2},    {"threads", threads_of, 3},
        {"threads", threads_of, 4},     {"threads", threads_of, 5},    {"threads", threads_of, 6},
        {"threads", threads_of, 7},     {"threads", threads_of, 8},    {"graph", graph_of, 1},
        {"graph", graph_of, 2},         {"graph", graph_of, 4},        {"processes", processes_of, 2},
        {"processes", processes_of, 4}, {"missing", missing_of, 3},    {"killed", killed_of, 3},
        {"small", small_of, 1},         {"small rounds", rounds_of, 1}};

    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_moe_device");
}
