/* Collectives of weft.h on groups of fake GPUs: results, streams, errors, and what happens when a rank is
 * lost. */
#include "counted_cases.h"
#include "fake_gpu.h"
#include "run/cuda/journal.h"
#include "run/cuda/packets.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <time.h>

static void every_kind(weft_group *group, void *argument)
{
    static const int64_t counts[] = {0, 1, 3, 8, 61, 4099, 40000};
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        coll_all(&r, counts, weft_size(group) > 3 ? 6 : 7, (int)check_repeat(3, 1), (int)check_repeat(4, 1));
        coll_stream(&r, 120, 3000);
        coll_moves(&r, 12);
    }
    coll_end(&r);
}

static void thousand(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r))
        coll_stream(&r, 1000, 3000);
    coll_end(&r);
}

/* Ranks with a GPU each: over links, by whole lines or not. */
static void apart_rank(weft_group *group, void *argument)
{
    static const int64_t counts[] = {0, 1, 17, 130, 4099, 40000, 300001};
    coll_rank r;

    (void)argument;
    if (coll_begin_on(group, weft_rank(group), &r)) {
        coll_all(&r, counts, 7, (int)check_repeat(3, 1), (int)check_repeat(12, 1));
        coll_lines(&r, (int)check_repeat(200, 1000));
        coll_stream(&r, 60, 3000);
    }
    coll_end(&r);
}

/* `argument`: NULL, or a call of the driver that fails once: then the group has no multicast, and goes on. */
static void switched_rank(weft_group *group, void *argument)
{
    coll_job j = {.op = WEFT_OP_ALL_REDUCE, .schedule = WEFT_SCHEDULE_PUSH, .count = 4099, .runs = 2};
    weft_operands operands = {.size = sizeof(operands)};
    weft_problem problem;
    weft_plan *plan;
    coll_rank r;

    if (!coll_begin_on(group, weft_rank(group), &r)) {
        coll_end(&r);
        return;
    }
    if (!argument) {
        coll_switched(&r);
    } else {
        weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
        problem.schedule = WEFT_SCHEDULE_MULTIMEM;
        problem.count = 100;
        operands.send = operands.recv = r.memory[0];
        CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        if (weft_rank(group) == 0)
            fake_gpu_break(argument, 0);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_SYSTEM);
        CHECK_HAS(weft_error(group), argument);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        if (weft_rank(group) == 0)
            fake_gpu_break(NULL, 0);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        weft_plan_destroy(plan);
        coll_try(&r, &j);
    }
    coll_end(&r);
}

/* Where peers cannot reach them, buffers may be others in every call: once programs are there for how they
 * are aligned (the first run of a plan has one of its own), a call is a kernel: it neither copies on the
 * stream nor makes anything. `argument` is the driver's call for that. */
static void anywhere_rank(weft_group *group, void *argument)
{
    enum { COUNT = 300003, ALIGNED = 5, CALLS = 100, RECV = 4 << 20 };
    coll_rank r;

    if (!coll_begin_on(group, weft_rank(group), &r)) {
        coll_end(&r);
        return;
    }
    for (int i = 0; i < ALIGNED + CALLS; i++) {
        char *at = r.memory[COLL_ELSEWHERE] + (size_t)4 * (size_t)i;

        if (i == ALIGNED) {
            CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
            CHECK_INT(weft_barrier(group), WEFT_OK);
            if (weft_rank(group) == 0)
                fake_gpu_break(argument, 1);
            CHECK_INT(weft_barrier(group), WEFT_OK);
        }
        CHECK_INT(weft_all_reduce(group, at, at, COUNT, WEFT_I32, WEFT_SUM), WEFT_OK);
        CHECK_INT(weft_all_gather(group, at, at + RECV, COUNT, WEFT_I32), WEFT_OK);
    }
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    fake_gpu_break(NULL, 0);
    coll_end(&r);
}

static void graph_rank(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        coll_graph(&r, COLL_SYMMETRIC, 3);
        coll_graph(&r, COLL_ELSEWHERE, 3);
    }
    coll_end(&r);
}

/* Plans are kept by what they have of the GPU's memory: 16 MiB over links have 68 MiB of inboxes, and seven
 * of them are kept. What is given back is used again. */
static void kept_rank(weft_group *group, void *argument)
{
    enum { COUNT = 4 << 20, PLANS = 12 };
    size_t bytes = 0;
    int kept = 0;
    void *memory;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, weft_rank(group)), WEFT_OK);
    CHECK_INT(weft_alloc(group, 1024, 0, &memory), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, memory, memory, 1, WEFT_I32, WEFT_SUM), WEFT_OK);
    for (int i = 0; i < PLANS; i++) {
        weft_problem problem = group->session->cached->asked;
        weft_plan *plan;

        problem.count = COUNT - i;
        CHECK_INT(weft_program_cached(group->session, &problem, &plan), WEFT_OK);
    }
    for (const weft_plan *plan = group->session->cached; plan; plan = plan->next, kept++)
        bytes += plan->bytes;
    CHECK_INT(kept, 8);
    CHECK(bytes > (size_t)450 << 20 && bytes <= (size_t)512 << 20);
    CHECK(weft_cuda_of(group)->committed <= (size_t)1 << 30);
    CHECK_INT(weft_all_reduce(group, memory, memory, 1, WEFT_I32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* What the caller asks for; of products those stage that communicate while they multiply. */
static void asked_rank(weft_group *group, void *argument)
{
    enum { MANY = 5000 };
    weft_problem problem;
    weft_plan *plan = NULL;
    void *memory = NULL;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    weft_problem_init(&problem, WEFT_OP_ALL_GATHER);
    problem.count = 100000;
    problem.tuning.staged = 1;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    CHECK_INT(weft_plan_problem(plan)->tuning.staged, 1);
    CHECK(weft_plan_problem(plan)->tuning.tile_n <= 8192);
    weft_plan_destroy(plan);
    /* more chunks than there are signals for order within a lane, whose CTA needs none */
    problem.count = MANY;
    problem.dtype = WEFT_I32;
    problem.tuning.tile_n = problem.tuning.workers = 1;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)MANY * 16, 0, &memory), WEFT_OK);
    CHECK_INT(weft_run(plan, &(weft_operands){.size = sizeof(weft_operands),
                                              .send = memory,
                                              .recv = (char *)memory + (size_t)MANY * 4}),
              WEFT_OK);
    weft_plan_destroy(plan);
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++)
        for (int fused = 0; fused < 2; fused++) {
            weft_problem_init(&problem, op);
            problem.m = problem.n = problem.k = 64;
            problem.dtype = problem.d_dtype = WEFT_BF16;
            problem.tuning.staged = 1;
            problem.schedule = !fused                  ? WEFT_SCHEDULE_UNFUSED
                               : op == WEFT_OP_AG_GEMM ? WEFT_SCHEDULE_ALLGATHER_ROTATING_A
                               : op == WEFT_OP_GEMM_RS ? WEFT_SCHEDULE_REDUCESCATTER_TILING_A
                               : op == WEFT_OP_GEMM_AR ? WEFT_SCHEDULE_TWO_SHOT
                                                       : WEFT_SCHEDULE_ALL_SCATTER;
            CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
            CHECK_INT(weft_plan_problem(plan)->tuning.staged, fused && op != WEFT_OP_GEMM_RS);
            CHECK_INT(weft_plan_problem(plan)->tuning.copiers > 0,
                      fused && (op == WEFT_OP_AG_GEMM || op == WEFT_OP_GEMM_AR || op == WEFT_OP_GEMM_AS));
            weft_plan_destroy(plan);
        }
}

/* Both kernels are used, by size; packets never wait for a meeting, whatever the buffers. */
static void kernels_rank(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
        for (int i = 0; i < 40; i++)
            CHECK_INT(weft_all_reduce(group, r.memory[i % 2] + 64 * i, r.memory[i % 2] + 64 * i, 100,
                                      WEFT_F32, WEFT_SUM),
                      WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
        CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], 1 << 20, WEFT_F32, WEFT_SUM), WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
    }
    coll_end(&r);
}

static void counted_rank(weft_group *group, void *argument)
{
    coll_rank r;

    if (coll_begin_on(group, weft_rank(group) % *(const int *)argument, &r)) {
        counted_all(&r, weft_size(group) > 3 ? 2 : 5);
        counted_messages(&r);
        counted_graph(&r, 3);
        if (weft_size(group) > 1)
            counted_rejects(&r);
    }
    coll_end(&r);
}

/* A group that is freed before its stream has passed a call with counts: its memory goes when the kernel has
 * ended, done or given up. */
static void freed_rank(weft_group *world, void *argument)
{
    int64_t counts[3] = {70000, 3, 0}, all = counts[0] + counts[1];
    CUdeviceptr memory;
    weft_group *group;
    CUstream stream;

    (void)argument;
    CHECK_INT(weft_group_split(world, 0, weft_rank(world), &group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    const weft_cuda_driver *cu = weft_cuda_of(group)->device->cu;
    CHECK_INT(cu->cuMemAlloc(&memory, (size_t)(2 * all)), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    CHECK_INT(weft_all_gather_v(group, (void *)(uintptr_t)memory, (void *)(uintptr_t)(memory + (size_t)all),
                                counts, WEFT_BYTE),
              WEFT_OK);
    weft_group_free(group);
    CHECK_INT(cu->cuStreamQuery(stream), CUDA_SUCCESS);
    cu->cuStreamDestroy(stream);
    cu->cuMemFree(memory);
}

/* Rank 1 does not come, or dies: to a call with counts, or with a message. */
static weft_status wait_for_one(weft_group *group, bool message, void *memory)
{
    return message ? weft_recv(group, memory, 64, WEFT_F32, 1)
                   : weft_gather(group, memory, (char *)memory + 4096, 64, WEFT_F32, 0);
}

static void late_rank(weft_group *group, void *argument)
{
    bool message = *(const bool *)argument;
    void *memory;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 8192, 0, &memory), WEFT_OK);
    CHECK_INT(wait_for_one(group, false, memory), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    if (weft_rank(group) == 1) {
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    } else {
        CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
        CHECK_INT(wait_for_one(group, message, memory), WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_ERR_TIMEOUT);
    }
    CHECK_HAS(weft_error(group),
              message ? "for rank 1 to enter weft_send" : "for rank 1 to enter weft_gather");
}

/* The stream of the call is not the one that is waited for first. */
static void other_stream_rank(weft_group *group, void *argument)
{
    CUstream stream;
    void *memory;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 8192, 0, &memory), WEFT_OK);
    CHECK_INT(wait_for_one(group, false, memory), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    if (weft_rank(group) == 1) {
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
        return;
    }
    CHECK_INT(weft_cuda_of(group)->device->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    CHECK_INT(wait_for_one(group, false, memory), WEFT_OK);
    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
    weft_group_wait(group); /* nothing is there; the call may expire meanwhile */
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "for rank 1 to enter weft_gather");
}

/* The launch of a call fails on rank 0: peers do not find it among what the rank has begun. */
static void not_launched_rank(weft_group *group, void *argument)
{
    void *memory;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 8192, 0, &memory), WEFT_OK);
    CHECK_INT(wait_for_one(group, false, memory), WEFT_OK);
    if (weft_rank(group) == 0) {
        fake_gpu_break("cuLaunchKernelEx", 0);
        CHECK_INT(wait_for_one(group, false, memory), WEFT_ERR_SYSTEM);
        CHECK_HAS(weft_error(group), "cuLaunchKernelEx");
        fake_gpu_break(NULL, 0);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_scatter(group, memory, (char *)memory + 4096, 64, WEFT_F32, 0), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_cuda_journal_compare(group, false), WEFT_OK);
}

static void counted_killed_process(int rank, void *argument)
{
    bool message = *(const bool *)argument;
    weft_group *group;
    void *memory;

    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 8192, 0, &memory), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 1) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        raise(SIGKILL);
    }
    CHECK_INT(wait_for_one(group, message, memory), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_group_free(group);
}

static void test_counted(void)
{
    int one = 1;

    for (int ranks = 1; ranks <= 8; ranks += ranks < 3 ? 1 : ranks == 3 ? 2 : 3) {
        int gpus = ranks % 2 ? ranks : 1;

        fake_gpu_install(gpus, ranks == 5 ? 8 : 16, true); /* so few that CTAs have many jobs */
        ranks_run(ranks, counted_rank, &gpus);
    }
    fake_gpu_install(1, 16, true);
    ranks_run(3, freed_rank, NULL);
    ranks_run(2, other_stream_rank, NULL);
    ranks_run(2, not_launched_rank, NULL);
    procs_run_ranks(2, counted_rank, &one);
    for (counted_fault fault = COUNTED_ALIKE; fault < COUNTED_FAULTS; fault++)
        ranks_run(2, counted_fault_rank, &fault);
    for (int i = 0; i < 2; i++) {
        bool message = i;
        procs all = procs_start(3, counted_killed_process, &message);

        CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
        procs_join(&all);
        ranks_run(2 + !message, late_rank, &message);
    }
}

static void errors_rank(weft_group *group, void *argument)
{
    int me = weft_rank(group);
    weft_problem problem;
    weft_plan *plan;
    float on_host[4] = {0};
    coll_rank r;

    (void)argument;
    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(group), "on the CPU");
    if (!coll_begin(group, &r)) {
        coll_end(&r);
        return;
    }
    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.count = 100;
    problem.schedule = WEFT_SCHEDULE_MULTIMEM;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED");
    CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], me ? 5 : -1, WEFT_F32, WEFT_SUM),
              me ? WEFT_ERR_PEER : WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], 5 + me, WEFT_F32, WEFT_SUM),
              WEFT_ERR_MISMATCH);
    CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], 4, WEFT_F32, WEFT_SUM), WEFT_OK);
    /* A rank is told alone of memory that no GPU can use, and its next call is the one that the others wait
     * for. */
    if (me == 1) {
        CHECK_INT(weft_all_reduce(group, on_host, r.memory[0], 4, WEFT_F32, WEFT_SUM), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "not memory that a GPU can use");
        CHECK_INT(weft_all_reduce(group, r.memory[0] + 4, r.memory[0], 4, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "overlap");
    }
    CHECK_INT(weft_all_reduce(group, r.memory[0], r.memory[0], 4, WEFT_F32, WEFT_SUM), WEFT_OK);
    coll_end(&r);
}

static void killed_process(int rank, void *argument)
{
    int64_t count = *(int64_t *)argument;
    weft_group *group;
    void *memory;

    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)count * 4, 0, &memory), WEFT_OK);
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 1) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        raise(SIGKILL);
    }
    CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_group_free(group);
}

/* A thread for each packet and a warp for each line, up to the most threads. */
static void test_threads(void)
{
    weft_cuda_packets p = {.chunk_packets = 256};

    CHECK_INT(weft_cuda_packets_threads(&p), 256);
    p.chunk_packets = 257;
    CHECK_INT(weft_cuda_packets_threads(&p), 512);
    p.lines = 1;
    p.chunk_packets = 8;
    CHECK_INT(weft_cuda_packets_threads(&p), 256);
    p.chunk_packets = 9;
    CHECK_INT(weft_cuda_packets_threads(&p), 512);
}

int main(void)
{
    int64_t few = 64, many = 1 << 20;

    test_threads();
    test_counted();
    fake_gpu_install(1, 16, true);
    for (int i = 0; i < 2; i++) {
        procs all = procs_start(3, killed_process, i ? &many : &few);
        CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
        procs_join(&all);
    }
    for (int ranks = 2; ranks <= 4; ranks += 2)
        procs_run_ranks(ranks, every_kind, NULL);
    for (int ranks = 1; ranks <= 8; ranks += check_repeat(ranks < 3 ? 1 : ranks == 3 ? 2 : 3, 1))
        ranks_run(ranks, every_kind, NULL);
    ranks_run(2, thousand, NULL);
    fake_gpu_install(3, 4, false);
    ranks_run(3, every_kind, NULL);
    for (int native = 0; native < 2; native++) {
        fake_gpu_install(3, 16, true);
        fake_gpu_atomics(native);
        ranks_run(3, apart_rank, NULL);
    }
    fake_gpu_install(2, 16, true);
    fake_gpu_atomics(true);
    ranks_run(2, kept_rank, NULL);
    fake_gpu_atomics(false);
    fake_gpu_install(1, 16, true);
    fake_gpu_take_counts();
    ranks_run(2, kernels_rank, NULL);
    CHECK_INT(fake_gpu_take_counts().packets, 80);
    ranks_run(2, errors_rank, NULL);
    ranks_run(2, graph_rank, NULL);
    ranks_run(3, graph_rank, NULL);
    ranks_run(2, asked_rank, NULL);
    fake_gpu_install(3, 16, true);
    fake_gpu_multicast(true);
    fake_gpu_take_counts();
    ranks_run(3, switched_rank, NULL);
    CHECK(fake_gpu_take_counts().switched > 0);
    ranks_run(3, switched_rank, "cuMulticastCreate");
    ranks_run(3, switched_rank, "cuMulticastAddDevice");
    ranks_run(3, switched_rank, "cuMulticastBindAddr");
    fake_gpu_multicast(false);
    ranks_run(3, anywhere_rank, "cuMemcpyAsync");
    ranks_run(3, anywhere_rank, "cuMemAllocAsync");
    fake_gpu_install(1, 16, true);
    ranks_run(3, coll_missing_rank, &few);
    ranks_run(3, coll_missing_rank, &many);
    return check_report("test_cuda_collective");
}
