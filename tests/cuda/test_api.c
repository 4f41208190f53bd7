/* weft.h on groups of GPUs, with fake GPUs: results, errors, and what happens when a rank is lost. */
#include "api_cases.h"
#include "core/clock.h"
#include "fake_cublaslt.h"
#include "fake_gpu.h"
#include "plan/plan.h"
#include "support/plan_file.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

static void run_process(int rank, void *argument)
{
    weft_group *group;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    api_rank(group, argument);
    weft_barrier(group);
    weft_finalize(group);
}

static void test_results(void)
{
    api_run all = {.small = true, .runs = 2, .shapes = 2}, few = {.small = true, .runs = 2, .shapes = 1},
            elsewhere = {.small = true, .runs = 2, .shapes = 1, .elsewhere = true};

    fake_gpu_install(1, 16, true);
    for (int world = 1; world <= 4; world++)
        ranks_run(world, api_rank, world == 3 ? &all : &few);
    procs_run(2, run_process, &few);
    ranks_run(3, api_rank, &elsewhere);
    fake_gpu_install(1, 16, false);
    ranks_run(2, api_rank, &few);
}

static weft_problem product(int64_t m, int64_t n, int64_t k)
{
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
    p.m = m, p.n = n, p.k = k;
    p.dtype = p.d_dtype = WEFT_BF16;
    return p;
}

/* Operands for a product of at most 64 x 64 x 64, in one block. */
static weft_operands operands_in(char *block)
{
    return (weft_operands){
        .size = sizeof(weft_operands), .a = block, .b = block + 16384, .d = block + 2 * 16384};
}

enum { BLOCK_BYTES = 3 * 16384 };

static void memory_rank(weft_group *group, void *argument)
{
    int me = weft_rank(group), world = weft_size(group), value = -1, on_host = 1;
    void *first, *second, *far;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(group), "on GPUs already");
    CHECK_INT(weft_alloc(group, 1000, 0, &first), WEFT_OK);
    CHECK_INT(weft_alloc(group, 100u << 20, 1 << 20, &second), WEFT_OK); /* more than one piece */
    CHECK_INT(weft_memcpy(group, &value, second, sizeof(value)), WEFT_OK);
    CHECK_INT(value, 0);
    far = (char *)second + (99 << 20);
    CHECK_INT(weft_memcpy(group, far, &me, sizeof(me)), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int rank = 0; rank < world; rank++) {
        CHECK_INT(weft_memcpy(group, &value, weft_peer(group, far, rank), sizeof(value)), WEFT_OK);
        CHECK_INT(value, rank);
    }
    CHECK(weft_peer(group, &on_host, 0) == NULL);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_alloc(group, me == 1 ? 64 : 32, 0, &far), world > 1 ? WEFT_ERR_MISMATCH : WEFT_OK);
    if (world > 1)
        CHECK_HAS(weft_error(group), "rank 1 for 64");
    CHECK_INT(weft_alloc(group, (size_t)1 << 40, 0, &far), WEFT_ERR_MEMORY);
    CHECK_INT(weft_free(group, (char *)second + 256), WEFT_ERR_ARGUMENT);
    if (world > 1) {
        CHECK_INT(weft_alloc(group, 64, 0, me == 1 ? NULL : &far),
                  me == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
        CHECK_HAS(weft_error(group), "pointer is NULL");
    }
    CHECK_INT(weft_free(group, me == 1 ? first : second), WEFT_OK); /* in any order */
    CHECK_INT(weft_free(group, me == 1 ? first : second), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_free(group, me == 1 ? second : first), WEFT_OK);
    CHECK_INT(weft_free(group, NULL), WEFT_OK);
}

/* What kernels of programs get: the fake GPU's memory is the host's, so the host plays the kernels here. */
static void own_kernels_rank(weft_group *group, void *argument)
{
    int me = weft_rank(group), world = weft_size(group), on_host;
    weft_signal_pad pad = {.size = sizeof(pad)}, other;
    void *const *table, *const *again;
    int *x;

    (void)argument;
    CHECK_INT(weft_alloc(group, 64, 0, (void **)&x), WEFT_OK);
    CHECK_INT(weft_peer_table(group, x, &table), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "the group is on the CPU");
    CHECK_INT(weft_signal_pad_create(group, 4, &pad), WEFT_ERR_UNSUPPORTED);
    CHECK_INT(weft_free(group, x), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_alloc(group, 64, 0, (void **)&x), WEFT_OK);
    CHECK_INT(weft_peer_table(group, &on_host, &table), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_peer_table(group, x + 3, &table), WEFT_OK);
    CHECK_INT(weft_peer_table(group, x + 3, &again), WEFT_OK);
    CHECK(table == again);
    for (int rank = 0; rank < world; rank++)
        CHECK(table[rank] == weft_peer(group, x + 3, rank));
    CHECK_INT(weft_signal_pad_create(group, 0, &pad), WEFT_ERR_ARGUMENT);
    other = pad;
    other.size = me == 1 ? 8 : sizeof(other);
    CHECK_INT(weft_signal_pad_create(group, 4, &other), me == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_INT(weft_signal_pad_create(group, 4, &pad), WEFT_OK);
    CHECK(pad.rank == me && pad.ranks == world && pad.count == 4 && pad.deadline_ns > 0 && *pad.stop == 0);
    for (int rank = 0; rank < world; rank++) { /* as weft/device.cuh finds a peer's */
        uint64_t *there =
            (uint64_t *)((char *)(pad.signals + 3 * (WEFT_SIGNAL_BYTES / 8)) + (rank - me) * pad.stride);

        CHECK(there == weft_peer(group, pad.signals + 3 * (WEFT_SIGNAL_BYTES / 8), rank));
        __atomic_fetch_add(there, (uint64_t)me + 1, __ATOMIC_RELEASE);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(pad.signals[3 * (WEFT_SIGNAL_BYTES / 8)], world * (world + 1) / 2);
    CHECK_INT(pad.signals[0], 0);
    CHECK_INT(weft_signal_pad_wait(group, &pad, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_signal_pad_wait(group, &(weft_signal_pad){.size = sizeof(pad)}, NULL), WEFT_ERR_ARGUMENT);
    /* A kernel of rank 1 gives up: all are told, by whom and for what. */
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (me == 1)
        *pad.record = (weft_signal_record){.ended = 1, .set = 2, .signal = 3, .have = 5, .want = 6};
    else
        pad.record->ended = 1;
    CHECK_INT(weft_signal_pad_wait(group, &pad, WEFT_STREAM_OWN), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "rank 1 gave up its wait for signal 3 of a pad: it is 5, and 6 was waited");
    CHECK_INT(weft_signal_pad_create(group, 4, &pad), WEFT_ERR_TIMEOUT);
}

/* A rank that gives up ends the kernels' waits on every rank, though nobody waits in weft. */
static void given_up_rank(weft_group *group, void *argument)
{
    weft_signal_pad pad = {.size = sizeof(pad)};
    int64_t begun;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_signal_pad_create(group, 1, &pad), WEFT_OK);
    CHECK_INT(*pad.stop, 0);
    weft_barrier(group); /* a rank may still be in it when it is over */
    begun = weft_clock_ns();
    if (weft_rank(group) == 1)
        CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    while (!__atomic_load_n(pad.stop, __ATOMIC_ACQUIRE) && weft_clock_ns() - begun < 20000000000)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK_INT(*pad.stop, 1);
    CHECK_INT(weft_signal_pad_wait(group, &pad, WEFT_STREAM_OWN), WEFT_ERR_ABORTED);
}

/* Plans that all ranks have destroyed give their memory back when the next one is made. */
static void plans_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    void *block, *probe;
    weft_plan *plan;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    weft_operands operands = operands_in(block);
    for (int i = 0; i < 60; i++) { /* 60 live ones would not fit into the fake GPU's gigabyte */
        p.m = 32 + i % 8;
        p.tuning.tile_m = p.tuning.tile_n = 8;
        p.tuning.workers = i % 2 ? 12 : 2;
        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        if (i % 2)
            CHECK_INT(weft_run(plan, &operands), WEFT_ERR_ARGUMENT); /* more lanes than fit: on all ranks */
        else
            CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        weft_plan_destroy(plan);
    }
    CHECK_INT(weft_alloc(group, 900u << 20, 0, &probe), WEFT_OK);
    CHECK_INT(weft_free(group, probe), WEFT_OK);
    /* More sets of operands than a plan keeps programs for. */
    p = product(32, 32, 16);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    for (int i = 0; i < 280; i++) {
        operands.d = (char *)block + 2 * 16384 + 16 * (i % 140);
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
    }
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    weft_plan_destroy(plan);
}

static void errors_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    int me = weft_rank(group);
    char on_host[64];
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 7), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "there is no GPU 7; this machine has 1");
    CHECK_INT(weft_group_use_gpu(group, me == 1 ? 3 : 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "rank 1: weft_group_use_gpu: there is no GPU 3");
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, on_host, on_host, 4, WEFT_F32, WEFT_SUM), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "not memory that a GPU can use");
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    p.dtype = p.d_dtype = WEFT_F32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "float16, bfloat16 and fp8, not float32");
    p.dtype = p.d_dtype = WEFT_BF16;
    p.k = me == 1 ? 48 : 32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_MISMATCH);
    p.k = 32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_operands operands = operands_in(block);
    if (me == 1)
        operands.a = on_host;
    CHECK_INT(weft_run(plan, &operands), me == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(group), me == 1 ? "not memory that a GPU can use" : "rank 1 rejected");
    operands = operands_in(block);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    /* Peers do not touch B, and know the rest: rank 1 is told alone, and its next call is the run. */
    operands.b = on_host;
    if (me == 1) {
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "not memory that a GPU can use");
        operands = operands_in(block);
        operands.ldb = (int64_t)1 << 33;
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "reach beyond the memory there");
        operands = operands_in(block);
        operands.ldb = 72;
        fake_gpu_allocation(operands.b, 1000); /* and the next begins right behind it */
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "reach beyond the memory there");
        fake_gpu_allocation(NULL, 0);
        fake_gpu_own(1);
        operands = operands_in(block);
        operands.ldb = 40;
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "which is memory of GPU 1; rank 1 runs on GPU 0");
        fake_gpu_own(-1);
    }
    operands = operands_in(block);
    CHECK_INT(weft_run_on(plan, &operands, NULL), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "cannot share its default stream");
    CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    weft_plan_destroy(plan);
}

/* NULL is the default stream: a rank that has its GPU to itself may use it. */
static void default_stream_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_operands operands;
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, weft_rank(group)), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    fake_gpu_take_streams();
    CHECK_INT(weft_run_on(plan, &operands, NULL), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, NULL), WEFT_OK);
    CHECK(fake_gpu_take_streams() & 1u << 1);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK(!(fake_gpu_take_streams() & 1u << 1));
    weft_plan_destroy(plan);
}

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
    CHECK_HAS(weft_error(group), "may change only in the same call on all ranks");
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

/* Rank 1 does not run. The others say so in time, and the group tells everybody from then on. */
static void missing_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_operands operands;
    weft_plan *plan;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    if (weft_rank(group) == 1)
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT); /* the others are in the run */
    else
        CHECK_INT(weft_run(plan, &operands), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "for rank 1 to enter run 2");
    CHECK_HAS(weft_error(group), "CUDA_DEVICE_MAX_CONNECTIONS");
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_TIMEOUT);
    weft_plan_destroy(plan);
}

/* Rank 1 takes much longer than the deadline for its run, and the others wait for its end: while its tasks
 * are done one after another nobody gives up. */
static void slow_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_operands operands;
    weft_plan *plan;
    void *block;

    (void)argument;
    p.tuning.tile_m = 8;
    p.tuning.library = 2;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, 20, 2), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

/* The same with a second group on the rank's GPU: the sentence says what may have kept the rank out. */
static void two_groups_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_operands operands;
    weft_group *other;
    weft_plan *plan;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_split(group, 0, 0, &other), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(other, -1), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    if (weft_rank(group) == 1)
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    else
        CHECK_INT(weft_run(plan, &operands), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "several groups on its GPU");
    weft_plan_destroy(plan);
    weft_group_free(other);
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
    weft_operands operands;
    weft_group *group;
    weft_plan *plan;
    void *block;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK); /* nobody is in a run that it would miss */
    if (rank == 1) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        raise(SIGKILL);
    }
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_plan_destroy(plan);
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

/* Kernels that do not run together at first get other streams; when they never do, it is an error at once. */
static void never_together(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "do not run at the same time");
}

/* All of a group's life while somebody captures, in whatever mode. */
static void test_capture(void)
{
    fake_gpu_capture(true);
    ranks_run(2, alone, NULL);
    fake_gpu_capture(false);
}

static void test_rehearsal(void)
{
    fake_gpu_break("some meetings", 4);
    ranks_run(2, alone, NULL);
    fake_gpu_break("all meetings", 1);
    ranks_run(3, never_together, NULL);
    fake_gpu_break(NULL, 0);
}

/* GPUs that cannot address one another are found before anything is mapped, and what their ranks run goes
 * through the host; on one of them it is no matter. */
static void apart_rank(weft_group *group, void *argument)
{
    const int *same = argument;
    int me = weft_rank(group), other = (me + 1) % weft_size(group);
    api_run run = {.small = true, .runs = 2, .shapes = 1};
    weft_group *cpu = NULL;
    void *memory = NULL;

    if (api_groups(group, !*same, &cpu)) {
        CHECK_INT(weft_alloc(group, 4096, 0, &memory), WEFT_OK);
        CHECK(weft_peer(group, memory, me) == memory);
        CHECK((weft_peer(group, memory, other) == NULL) == !*same);
        for (int i = 0; i < 1024; i++)
            ((float *)memory)[i] = (float)(i * (me + 1));
        CHECK_INT(weft_all_reduce(group, memory, memory, 1024, WEFT_F32, WEFT_SUM), WEFT_OK);
        for (int i = 0; i < 1024; i++)
            CHECK(((float *)memory)[i] == (float)(i * 6));
        CHECK_INT(weft_free(group, memory), WEFT_OK);
        if (!*same)
            api_all(group, cpu, group, &run);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(cpu);
}

static void test_peer_access(void)
{
    fake_gpu_install(3, 16, true);
    fake_gpu_break("peer access", 0);
    for (int same = 0; same < 2; same++)
        ranks_run(3, apart_rank, &same);
    fake_gpu_break("peer access", 1); /* one of the ranks finds it */
    ranks_run(3, apart_rank, &(int){0});
    fake_gpu_break(NULL, 0);
    fake_gpu_install(1, 16, true);
}

/* Ranks on several GPUs, fewer and more than there are, with and without atomics between them. */
static void test_apart(void)
{
    api_run few = {.small = true, .runs = 2, .shapes = 1, .apart = true}, elsewhere = few;

    elsewhere.elsewhere = true;
    fake_gpu_install(2, 16, true);
    ranks_run(2, api_rank, &few);
    ranks_run(2, api_rank, &elsewhere); /* each with a GPU: all that are fused stage in chunks */
    ranks_run(3, api_rank, &elsewhere);
    fake_gpu_atomics(true);
    ranks_run(2, api_rank, &elsewhere);
    ranks_run(3, api_rank, &few);
    procs_run(2, run_process, &few);
    fake_gpu_atomics(false);
    fake_gpu_install(2, 4, false); /* copy lanes take the places of crews there */
    ranks_run(2, api_rank, &elsewhere);
    fake_gpu_install(1, 16, true);
}

/* ---- plans from files -------------------------------------------------------------------------------- */

static weft_problem tiled(int kind, int64_t n)
{
    weft_problem p = product(64, n, 48);

    p.op = api_kinds[kind].op;
    p.schedule = api_kinds[kind].schedule;
    p.b_form = WEFT_B_PLAIN;
    p.tuning.tile_m = p.tuning.tile_n = 32, p.tuning.tile_k = 16;
    p.tuning.workers = 2;
    p.tuning.copiers = p.op == WEFT_OP_AG_GEMM && p.schedule != WEFT_SCHEDULE_DIRECT;
    return p;
}

/* D after a run of a plan, on operands that every call makes alike. */
static void run_given(weft_group *group, weft_plan *plan, char *block, uint16_t d[64 * 64])
{
    enum { NUMBERS = BLOCK_BYTES / 2 };
    uint16_t *numbers = malloc(BLOCK_BYTES);
    uint64_t seed = 5 + (uint64_t)weft_rank(group);
    weft_operands operands = operands_in(block);

    for (int i = 0; i < NUMBERS; i++) /* small integers of bfloat16 */
        numbers[i] = (const uint16_t[]){0, 0x3f80, 0x4000, 0xbf80}[check_random(&seed) % 4];
    CHECK_INT(weft_memcpy(group, block, numbers, BLOCK_BYTES), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_memcpy(group, d, operands.d, 64 * 64 * sizeof(*d)), WEFT_OK);
    free(numbers);
}

/* Collectives, and what on their plans' files is not as the kernels would have it. */
static const struct given_collective {
    weft_op op;
    weft_schedule schedule;
    weft_reduction reduction;
    int staged;
} given_collectives[] = {
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_ONE_SHOT, WEFT_SUM, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT, WEFT_MAX, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_PUSH, WEFT_AVERAGE, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_PACKETS, WEFT_SUM, 0},
    {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PUSH, WEFT_PRODUCT, 0},
    {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PACKETS, WEFT_SUM, 0},
    {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PUSH, WEFT_SUM, 0},
    {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT, WEFT_AVERAGE, 1},
    {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PULL, WEFT_SUM, 1},
    {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PUSH, WEFT_SUM, 1},
};

enum { GIVEN_COLLECTIVES = sizeof(given_collectives) / sizeof(given_collectives[0]), GIVEN_COUNT = 37 };

typedef struct given_plans {
    char right[API_KINDS][32], large[32], packed[32], odd[32];
    char moved[GIVEN_COLLECTIVES][32], rows[32];
} given_plans;

static weft_problem moves(int number)
{
    weft_problem p;

    weft_problem_init(&p, given_collectives[number].op);
    p.schedule = given_collectives[number].schedule;
    p.reduction = given_collectives[number].reduction;
    p.tuning.staged = given_collectives[number].staged;
    p.dtype = number % 2 ? WEFT_F32 : WEFT_BF16;
    p.count = GIVEN_COUNT;
    p.tuning.tile_n = 9;
    p.tuning.workers = 2;
    return p;
}

/* What is received, on operands that every call makes alike. */
static void run_moves(weft_group *group, weft_plan *plan, char *block, weft_dtype dtype, char *recv)
{
    enum { ELEMENTS = 3 * GIVEN_COUNT, BYTES = 4 * ELEMENTS };
    char numbers[BYTES] = {0};
    weft_operands operands = {.size = sizeof(operands), .send = block, .recv = block + 4096};
    uint64_t seed = 11 + (uint64_t)weft_rank(group);

    for (size_t i = 0; i < ELEMENTS; i++)
        weft_element_set(dtype, numbers, i, 1 + (double)(check_random(&seed) % 3));
    CHECK_INT(weft_memcpy(group, block, numbers, BYTES), WEFT_OK);
    memset(numbers, 0x5a, BYTES);
    CHECK_INT(weft_memcpy(group, block + 4096, numbers, BYTES), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_memcpy(group, recv, operands.recv, BYTES), WEFT_OK);
}

static void run_given_collectives(weft_group *group, const given_plans *plans, char *block)
{
    for (int i = 0; i < GIVEN_COLLECTIVES; i++) {
        char own[12 * GIVEN_COUNT], given[12 * GIVEN_COUNT];
        weft_problem p = moves(i);
        weft_plan *plan = NULL, *loaded = NULL;

        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        CHECK_INT(weft_plan_load(group, plans->moved[i], &loaded), WEFT_OK);
        if (!loaded) {
            fprintf(stderr, "collective %d: %s\n", i, weft_error(group));
            weft_plan_destroy(plan);
            continue;
        }
        for (int run = 0; run < 3; run++) {
            run_moves(group, plan, block, p.dtype, own);
            run_moves(group, loaded, block, p.dtype, given);
            CHECK(memcmp(own, given, sizeof(own)) == 0);
        }
        weft_plan_destroy(plan);
        weft_plan_destroy(loaded);
    }
}

static void refused(weft_group *group, const char *path, const char *why)
{
    weft_plan *plan = NULL;

    CHECK_INT(weft_plan_load(group, path, &plan), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), why);
}

static void given_rank(weft_group *group, void *argument)
{
    const given_plans *plans = argument;
    uint16_t own[64 * 64], given[64 * 64];
    void *block;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    for (int kind = 0; kind < API_KINDS; kind++) {
        weft_problem p = tiled(kind, 48);
        weft_plan *plan = NULL, *loaded = NULL;

        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        CHECK_INT(weft_plan_load(group, plans->right[kind], &loaded), WEFT_OK);
        if (!loaded) {
            fprintf(stderr, "kind %d: %s\n", kind, weft_error(group));
            continue;
        }
        for (int run = 0; run < 2; run++) {
            run_given(group, plan, block, own);
            run_given(group, loaded, block, given);
            CHECK(memcmp(own, given, sizeof(own)) == 0);
        }
        weft_plan_destroy(plan);
        weft_plan_destroy(loaded);
    }
    weft_plan *odd = NULL;
    weft_operands operands = operands_in(block);
    CHECK_INT(weft_plan_load(group, plans->odd, &odd), WEFT_OK);
    CHECK_INT(weft_run(odd, &operands), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "begin and end on 16 bytes");
    weft_plan_destroy(odd);
    refused(group, plans->large, "at most 256 x 256");
    refused(group, plans->packed, "is packed as CPU kernels read it");
    refused(group, plans->rows, "task 1 of rank 0 has 3 rows: on GPUs a task of a collective has one");
    run_given_collectives(group, plans, block);
}

/* An all_to_all of three ranks that puts all it sends, three rows, where the others fetch it. */
static void write_rows(char path[32])
{
    FILE *file;

    strcpy(path, "/tmp/weft-plan-XXXXXX");
    file = fdopen(mkstemp(path), "w");
    CHECK(file);
    for (int me = 0; me < 3; me++) {
        int one = (me + 1) % 3, two = (me + 2) % 3;

        fprintf(file, "plan all_to_all custom rank %d of 3\nproblem count 4 workers 1\n", me);
        fprintf(file, "operand send user float32 3 x 4\noperand recv user float32 3 x 4 output\n");
        fprintf(file, "operand kept staging float32 3 x 4\nsignals 7\nlane 0 compute\n");
        fprintf(file, "r%d lane 0 task 0 ENTER post %d@%d %d@%d\n", me, me, one, me, two);
        fprintf(file, "r%d lane 0 task 1 COPY kept[0:3, 0:4] = send[0:3, 0:4] wait %d>=1 %d>=1", me, one,
                two);
        fprintf(file, " post 6@%d 6@%d\n", one, two);
        for (int from = 0; from < 3; from++)
            fprintf(file, "r%d lane 0 task %d COPY recv[%d:%d, 0:4] = kept@%d[%d:%d, 0:4] wait 6>=2%s", me,
                    2 + from, from, from + 1, from, me, me + 1, from == 2 ? "" : "\n");
        fprintf(file, " post %d@%d %d@%d\nr%d lane 0 task 5 EXIT wait %d>=1 %d>=1\n", 3 + me, one, 3 + me,
                two, me, 3 + one, 3 + two);
    }
    fclose(file);
}

static void test_given(void)
{
    enum { WORLD = 3 };
    given_plans plans;
    weft_problem p = product(768, 300, 16);

    for (int kind = 0; kind < API_KINDS; kind++) {
        weft_problem fits = tiled(kind, 48);

        plan_file_write(plans.right[kind], &fits, WORLD, NULL, NULL);
    }
    p.b_form = WEFT_B_PLAIN;
    p.tuning.tile_m = p.tuning.tile_n = 512, p.tuning.tile_k = 16;
    p.op = WEFT_OP_GEMM_AR;
    p.schedule = WEFT_SCHEDULE_ONE_SHOT;
    plan_file_write(plans.large, &p, WORLD, NULL, NULL);
    p = tiled(1, 56); /* B's columns are 19, 19 and 18 */
    plan_file_write(plans.odd, &p, WORLD, NULL, NULL);
    p = tiled(0, 48);
    p.b_form = WEFT_B_PACK_IN_RUN;
    p.tuning.copiers = 0;
    p.schedule = WEFT_SCHEDULE_DIRECT;
    plan_file_write(plans.packed, &p, WORLD, NULL, NULL);
    for (int i = 0; i < GIVEN_COLLECTIVES; i++) {
        p = moves(i);
        plan_file_write(plans.moved[i], &p, WORLD, NULL, NULL);
    }
    write_rows(plans.rows);
    ranks_run(WORLD, given_rank, &plans);
    for (int kind = 0; kind < API_KINDS; kind++)
        unlink(plans.right[kind]);
    unlink(plans.large);
    unlink(plans.packed);
    unlink(plans.odd);
    for (int i = 0; i < GIVEN_COLLECTIVES; i++)
        unlink(plans.moved[i]);
    unlink(plans.rows);
}

/* A rank that comes late loads kernels of the library while its peers' could wait for it already: the parts
 * of k differ, and so do the kernels. */
static void late_rank(weft_group *group, void *argument)
{
    weft_problem p = product(48, 64, 63);
    weft_operands operands;
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    p.op = WEFT_OP_GEMM_RS;
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (weft_rank(group) == 1)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

/* Ranks that share a GPU begin to wait with many CTAs only when all have come. */
static void gate_rank(weft_group *group, void *argument)
{
    weft_problem p = product(600, 160, 160);
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)3 << 20, 0, &block), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_operands operands = {.size = sizeof(operands),
                              .a = block,
                              .b = (char *)block + ((size_t)1 << 20),
                              .d = (char *)block + ((size_t)2 << 20)};
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

static void test_library(void)
{
    fake_cublaslt_install(true);
    ranks_run(2, late_rank, NULL);
    CHECK(fake_cublaslt_take_products() > 0);
    fake_gpu_take_counts();
    ranks_run(5, gate_rank, NULL);
    CHECK_INT(fake_gpu_take_counts().gates, 5);
    fake_cublaslt_install(false);
}

int main(void)
{
    fake_gpu_install(1, 16, true);
    procs all = procs_start(3, killed_process, NULL);
    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
    test_results();
    test_apart();
    fake_gpu_install(2, 16, true);
    ranks_run(1, memory_rank, NULL);
    ranks_run(3, memory_rank, NULL);
    ranks_run(1, default_stream_rank, NULL);
    ranks_run(3, own_kernels_rank, NULL);
    ranks_run(3, given_up_rank, NULL);
    ranks_run(2, two_groups_rank, NULL);
    fake_gpu_install(1, 16, true);
    ranks_run(2, plans_rank, NULL);
    ranks_run(2, errors_rank, NULL);
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
    test_rehearsal();
    test_capture();
    test_peer_access();
    test_library();
    test_given();
    return check_report("test_cuda_api");
}
