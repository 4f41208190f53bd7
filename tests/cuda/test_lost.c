/* What the ranks of a group of GPUs are told, with fake ones: when ranks do not run the same, when one is
 * late or dies, when the driver fails. */
#include "api_cases.h"
#include "fake_gpu.h"
#include "run/cuda/plan.h"
#include "small_product.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <signal.h>
#include <time.h>

/* Two sets of operands that all ranks know; then the ranks mix them, and what a peer would read is not there.
 */
static void mixed_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 2 * BLOCK_BYTES, 0, &block), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_operands sets[] = {operands_in(block), operands_in((char *)block + BLOCK_BYTES)};
    for (int i = 0; i < 6; i++)
        CHECK_INT(weft_run_on(plan, &sets[i % 2], WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_run(plan, &sets[weft_rank(group) == 1]), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "only in the same call on all ranks");
    CHECK_INT(weft_run(plan, &sets[0]), WEFT_ERR_MISMATCH);
    weft_plan_destroy(plan);
}

typedef enum mixture { MIXED_REACH, MIXED_NEW, MIXED_PLANS } mixture;

/* Ranks begin what peers do not, whose kernels do not meet: rank 1 alone has operands beyond the peers'
 * reach, or new ones, or runs another plan. All are told so, and not by a deadline. */
static void begun_rank(weft_group *group, void *argument)
{
    mixture how = *(const mixture *)argument;
    weft_problem p = product(64, 64, 32), other;
    weft_plan *plan = NULL, *second = NULL;
    weft_group *apart = NULL;
    bool odd = weft_rank(group) == 1;
    weft_operands near, far, fresh;
    void *block = NULL, *beyond = NULL;

    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &apart), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(apart, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 2 * BLOCK_BYTES, 0, &block), WEFT_OK);
    CHECK_INT(weft_alloc(apart, BLOCK_BYTES, 0, &beyond), WEFT_OK);
    p.op = WEFT_OP_GEMM_AR; /* staged in chunks whatever its size */
    p.schedule = WEFT_SCHEDULE_TWO_SHOT;
    other = p;
    other.act = WEFT_ACT_RELU;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &other, &second), WEFT_OK);
    near = operands_in(block);
    fresh = operands_in((char *)block + BLOCK_BYTES);
    far = operands_in(beyond);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(weft_run(plan, &near), WEFT_OK);
        CHECK_INT(weft_run(plan, &far), WEFT_OK);
        CHECK_INT(weft_run(second, &near), WEFT_OK);
    }
    if (how == MIXED_PLANS)
        CHECK_INT(weft_run(odd ? second : plan, &near), WEFT_ERR_MISMATCH);
    else
        CHECK_INT(weft_run(plan, !odd ? &near : how == MIXED_NEW ? &fresh : &far), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "only in the same call on all ranks");
    weft_plan_destroy(plan);
    weft_plan_destroy(second);
    weft_group_free(apart);
}

static void test_begun(void)
{
    for (mixture how = MIXED_REACH; how <= MIXED_PLANS; how++)
        ranks_run(2 + how % 2, begun_rank, &how);
}

static void broken_rank(weft_group *group, void *argument)
{
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_ERR_SYSTEM);
    CHECK_HAS(weft_error(group), argument);
    CHECK_HAS(weft_error(group), "failed: fake (CUDA_ERROR_UNKNOWN)");
}

/* A product, and where its operands lie. */
typedef struct ready {
    weft_plan *plan;
    weft_operands operands;
} ready;

static ready make_ready(weft_group *group, const weft_problem *p)
{
    ready r = {0};
    void *block = NULL;

    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    r.operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, p, &r.plan), WEFT_OK);
    return r;
}

/* Rank 1 does not run. The others say so in time, and the group tells everybody from then on. */
static void miss_a_run(weft_group *group)
{
    weft_problem p = product(64, 64, 32);
    ready r = make_ready(group, &p);

    CHECK_INT(weft_run(r.plan, &r.operands), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    if (weft_rank(group) == 1)
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT); /* the others are in the run */
    else
        CHECK_INT(weft_run(r.plan, &r.operands), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "for rank 1 to enter run 2");
    CHECK_INT(weft_run(r.plan, &r.operands), WEFT_ERR_TIMEOUT);
    weft_plan_destroy(r.plan);
}

static void missing_rank(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    miss_a_run(group);
    CHECK_HAS(weft_error(group), "CUDA_DEVICE_MAX_CONNECTIONS");
}

/* The same with a second group on the rank's GPU: the sentence says what may have kept the rank out. */
static void two_groups_rank(weft_group *group, void *argument)
{
    weft_group *other = NULL;

    (void)argument;
    CHECK_INT(weft_group_split(group, 0, 0, &other), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(other, -1), WEFT_OK);
    miss_a_run(group);
    CHECK_HAS(weft_error(group), "several groups on its GPU");
    weft_group_free(other);
}

/* Rank 1 takes much longer than the deadline for its run, and the others wait for its end: while its tasks
 * are done one after another nobody gives up. */
static void slow_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    ready r;

    (void)argument;
    p.tuning.tile_m = 8;
    p.tuning.library = 2;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, 20, 2), WEFT_OK);
    r = make_ready(group, &p);
    CHECK_INT(weft_run(r.plan, &r.operands), WEFT_OK);
    weft_plan_destroy(r.plan);
}

static void alone(weft_group *group, void *argument)
{
    api_run few = {.small = true, .runs = 1, .shapes = 1};

    (void)argument;
    api_rank(group, &few);
}

/* Rank 1 is killed amid runs. */
static void killed_process(int rank, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_group *group = NULL;
    ready r;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    r = make_ready(group, &p);
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_run(r.plan, &r.operands), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK); /* nobody is in a run that it would miss */
    if (rank == 1) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        raise(SIGKILL);
    }
    CHECK_INT(weft_run(r.plan, &r.operands), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_plan_destroy(r.plan);
    weft_group_free(group);
    ranks_run(2, alone, NULL); /* the GPU still works, in this very process */
}

static void test_broken(void)
{
    static const char *const calls[] = {"cuDeviceGetUuid",
                                        "cuMemAddressReserve",
                                        "cuMemCreate",
                                        "cuMemExportToShareableHandle",
                                        "cuMemImportFromShareableHandle",
                                        "cuMemMap"};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fake_gpu_break(calls[i], i % 2);
        ranks_run(2, broken_rank, (void *)(uintptr_t)calls[i]);
    }
    fake_gpu_break(NULL, 0);
}

/* A rank has no event for the epilogue behind a product: the sums' memory goes back. */
static void no_event_rank(weft_group *group, void *argument)
{
    weft_problem p = product(2048, 2048, 32);
    weft_plan *plan = NULL;
    size_t before = 0;

    (void)argument;
    p.act = WEFT_ACT_SILU_GATED;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    for (int i = 0; i < 8; i++) {
        /* Those of the product's plan come before, and are the group's to use again. */
        fake_gpu_break("cuEventCreate", i ? 0 : WEFT_CUDA_BOUND_MAX);
        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_SYSTEM);
        CHECK_HAS(weft_error(group), "cuEventCreate");
        fake_gpu_break(NULL, 0);
        if (i == 1)
            before = weft_cuda_of(group)->committed;
    }
    CHECK_INT(weft_cuda_of(group)->committed, before);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_plan_destroy(plan);
}

/* Kernels that do not run together at first get other streams; when they never do, it is an error at once. */
static void never_together(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "do not run at the same time");
}

static void test_rehearsal(void)
{
    fake_gpu_break("some meetings", 4);
    ranks_run(2, alone, NULL);
    fake_gpu_break("all meetings", 1);
    ranks_run(3, never_together, NULL);
    fake_gpu_break(NULL, 0);
}

int main(void)
{
    fake_gpu_install(1, 16, true);
    procs all = procs_start(3, killed_process, NULL);
    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
    fake_gpu_install(2, 16, true);
    ranks_run(2, two_groups_rank, NULL);
    fake_gpu_install(1, 16, true);
    ranks_run(2, mixed_rank, NULL);
    ranks_run(3, mixed_rank, NULL);
    test_begun();
    ranks_run(3, missing_rank, NULL);
    if (getenv("WEFT_SOAK")) { /* on a machine that has time for it */
        fake_gpu_slow(1, 300000000);
        ranks_run(2, slow_rank, NULL);
        fake_gpu_slow(0, 0);
    }
    test_broken();
    ranks_run(1, no_event_rank, NULL);
    test_rehearsal();
    return check_report("test_cuda_lost");
}
