/* Mixture of experts of weft.h on groups of fake GPUs: results, streams, errors, and a rank that is lost. */
#include "fake_gpu.h"
#include "moe_arriving_cases.h"
#include "moe_wrong_cases.h"
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
        moe_graph(&r, driver, 24);
    }
    moe_end(&r);
}

static void thousand(weft_group *group, void *argument)
{
    moe_rank r;

    (void)argument;
    if (moe_begin(group, &r))
        moe_back_to_back(&r, 1000, WEFT_MOE_EXACT);
    moe_end(&r);
}

/* That call of the driver fails from here on, on all ranks; NULL: none does. */
static void breaks(weft_group *group, const char *call)
{
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 0)
        fake_gpu_break(call, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

static void unwaited_rounds(moe_rank *r, const char *call)
{
    enum { ROUNDS = 2 * MOE_KINDS };
    moe_case c = {11, 3, 24, 6, 0, WEFT_F32, WEFT_MOE_REDUCED, true, 0, 8, ROUNDS, 61, 0};
    moe_queue q;

    moe_queue_make(r, &c, &q);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    breaks(r->gpu, call);
    for (int i = 0; i < ROUNDS; i++)
        CHECK_INT(moe_queue_round(&q, &q.input[i], q.y[i]), WEFT_OK);
    breaks(r->gpu, NULL);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    for (int i = 0; i < ROUNDS; i++)
        moe_queue_check(r, &q, i, q.y[i], q.input[i].tokens, true);
    moe_queue_free(&q);
}

static void unwaited_forward(moe_rank *r, const moe_case *shape, const char *call)
{
    size_t bytes = (size_t)(shape->tokens * moe_row_bytes(shape));
    char *want = calloc(1, bytes), *y;
    moe_ffn_pair p;
    moe_tokens t;

    moe_ffn_open(r, shape, true, &p);
    p.c.kind = MOE_FULL;
    t = moe_ffn_tokens(&p.c, weft_rank(r->gpu), 0);
    weft_moe_input there = moe_input_up(r, &p.c, &t), here = there;
    y = moe_take(r, bytes);
    here.x = t.x;
    here.expert = t.expert;
    here.weight = t.weight;
    CHECK_INT(weft_moe_forward(p.cpu, 0, &here, &p.expert, want), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
    breaks(r->gpu, call);
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_moe_forward(p.gpu, 0, &there, &p.there, y), WEFT_OK);
    breaks(r->gpu, NULL);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    moe_same(r, y, want, bytes, "results of rounds that were not waited for");
    moe_ffn_close(&p, true);
    moe_tokens_free(&t);
    free(want);
}

/* On a stream the host waits for nothing, asks for no memory and reads nothing back, whatever is in a round:
 * calls are put there while none of that works. `argument` is the driver's call. */
static void unwaited(weft_group *group, void *argument)
{
    moe_case few = moe_arriving_shapes[0];
    moe_rank r;

    few.tokens = 9;
    if (moe_begin_on(group, weft_rank(group), &r)) {
        unwaited_rounds(&r, argument);
        unwaited_forward(&r, &few, argument);
        unwaited_forward(&r, &moe_arriving_shapes[1], argument);
    }
    moe_end(&r);
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
    for (int ranks = 2; ranks <= 4; ranks += 2)
        procs_run_ranks(ranks, shapes, NULL);
    for (int ranks = 1; ranks <= 8; ranks += check_repeat(ranks == 1 ? 2 : 5, 1))
        ranks_run(ranks, shapes, NULL);
    ranks_run(2, thousand, NULL);
    CHECK_INT(fake_gpu_take_counts().moves, 0);
    fake_gpu_install(3, 16, true);
    ranks_run(3, arriving, NULL);
    CHECK(fake_gpu_take_counts().moves > 0);
    static const char *const waits[] = {"cuStreamSynchronize", "cuStreamQuery", "cuMemcpyDtoHAsync",
                                        "cuMemAllocAsync"};
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++)
        ranks_run(3, unwaited, (void *)(uintptr_t)waits[i]);
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
