/* Mixture of experts of weft.h on groups of fake GPUs: results, streams, errors, and a rank that is lost. */
#include "fake_gpu.h"
#include "moe_arriving_cases.h"
#include "moe_round_cases.h"
#include "support/procs.h"
#include "support/ranks.h"

static const weft_cuda_driver *driver;

static void shapes(weft_group *group, void *argument)
{
    moe_rank r;

    if (moe_begin(group, &r)) {
        moe_shapes(&r);
        moe_ffn(&r, !argument, driver); /* NULL: on Hopper */
        moe_back_to_back(&r, 60, WEFT_MOE_EXACT);
        moe_back_to_back(&r, 60, WEFT_MOE_REDUCED);
        moe_two_lanes(&r, 24);
    }
    moe_end(&r);
}

static void shapes_process(int rank, void *argument)
{
    weft_group *group;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    shapes(group, argument);
    weft_finalize(group);
}

static void arriving(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin_on(group, weft_rank(group), &r))
        moe_arriving(&r, driver);
    moe_end(&r);
}

static void arriving_uneven(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin_on(group, weft_rank(group), &r))
        moe_arriving_uneven(&r);
    moe_end(&r);
}

/* Ranks that come late one after another, each within its time, do not end the product that waits for all. */
static void arriving_patience(void)
{
    weft_cuda_moe_state state = {0};
    weft_cuda_control control = {0};
    weft_cuda_moe lane = {.world = 8, .deadline_ns = 1000, .state = &state, .control = &control};

    CHECK(weft_cuda_moe_arriving(&lane).deadline_ns > 9 * lane.deadline_ns);
    lane.deadline_ns = UINT64_MAX / 4;
    CHECK(weft_cuda_moe_arriving(&lane).deadline_ns >= lane.deadline_ns);
}

static void arriving_missing(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin_on(group, weft_rank(group), &r))
        moe_arriving_missing(&r);
}

static void errors(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin(group, &r))
        moe_errors(&r);
    moe_end(&r);
}

int main(void)
{
    bool no = false, yes = true;

    driver = fake_gpu(1, true, 1).cu;
    fake_gpu_install(1, 16, true);
    procs all = procs_start(3, moe_killed_rank, NULL);
    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
    procs both = procs_start(2, shapes_process, NULL);
    procs_join(&both);
    for (int ranks = 1; ranks <= 8; ranks += ranks == 1 ? 2 : 5)
        ranks_run(ranks, shapes, NULL);
    CHECK_INT(fake_gpu_take_counts().moves, 0);
    fake_gpu_install(3, 16, true);
    ranks_run(3, arriving, NULL);
    CHECK(fake_gpu_take_counts().moves > 0);
    ranks_run(3, arriving_missing, NULL);
    arriving_patience();
    fake_gpu_take_counts();
    fake_gpu_uneven(2);
    ranks_run(3, arriving_uneven, NULL);
    CHECK(fake_gpu_take_counts().moves > 0);
    fake_gpu_install(3, 4, false);
    ranks_run(3, shapes, &no);
    fake_gpu_install(1, 16, true);
    ranks_run(2, errors, NULL);
    ranks_run(3, errors, NULL);
    ranks_run(3, moe_missing_rank, &no);
    ranks_run(3, moe_missing_rank, &yes);
    return check_report("test_cuda_moe");
}
