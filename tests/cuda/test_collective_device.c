/* Collectives of weft.h on the real GPU: ranks as threads and as processes that share it. */
#include "counted_cases.h"
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
        coll_all(&r, counts, weft_size(group) > 2 && run->counts > 6 ? 6 : run->counts, 1, 1);
        coll_stream(&r, run->rounds, 20000);
        coll_moves(&r, run->rounds / 5);
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

static void processes_of(int world)
{
    coll_run run = {6, many};

    procs_run_ranks(world, coll_body, &run);
}

/* As many calls as processes get through that have no MPS: each waits for the time slices of the others. */
static void turns_of(int world)
{
    coll_run run = {3, 20};

    procs_run_ranks(world, coll_body, &run);
}

static void missing_of(int world)
{
    int64_t counts[] = {64, 1 << 20};

    for (int i = 0; i < 2; i++)
        ranks_run(world, coll_missing_rank, &counts[i]);
}

/* They are told that they have GPUs to themselves: what goes by lines then. Few enough CTAs for all of them,
 * and for those of the next run. */
static void apart_rank(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        weft_cuda_of(group)->whole = true;
        coll_lines(&r, many);
    }
    coll_end(&r);
}

static void apart_of(int world)
{
    ranks_run(world, apart_rank, NULL);
}

/* A GPU each, with multicast between them. */
static void switched_rank(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin_on(group, weft_rank(group), &r) && weft_cuda_of(group)->switched)
        coll_switched(&r);
    else if (weft_rank(group) == 0)
        printf("  no multicast between these GPUs\n");
    coll_end(&r);
}

static void switched_of(int world)
{
    weft_error_text error = {0};
    int count = 0;

    CHECK_INT(weft_cuda_gpus.count(&count, &error), WEFT_OK);
    if (count >= world)
        ranks_run(world, switched_rank, NULL);
    else
        printf("  left out: there is %d GPU\n", count);
}

static void counted_body(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        counted_all(&r, 12);
        counted_messages(&r);
        counted_graph(&r, 50);
        if (weft_size(group) > 1)
            counted_rejects(&r);
    }
    coll_end(&r);
}

static void counted_of(int world)
{
    ranks_run(world, counted_body, NULL);
}

static void counted_processes_of(int world)
{
    procs_run_ranks(world, counted_body, NULL);
}

static void faults_of(int world)
{
    for (counted_fault fault = COUNTED_ALIKE; fault < COUNTED_FAULTS; fault++)
        ranks_run(world, counted_fault_rank, &fault);
}

static void graph_rank(weft_group *group, void *argument)
{
    coll_rank r;

    (void)argument;
    if (coll_begin(group, &r)) {
        coll_graph(&r, COLL_SYMMETRIC, 50);
        coll_graph(&r, COLL_ELSEWHERE, 50);
    }
    coll_end(&r);
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
    static const device_part parts[] = {{"threads", threads_of, 1},
                                        {"threads", threads_of, 2},
                                        {"threads", threads_of, 3},
                                        {"threads", threads_of, 4},
                                        {"threads", threads_of, 5},
                                        {"threads", threads_of, 6},
                                        {"threads", threads_of, 7},
                                        {"threads", threads_of, 8},
                                        {"graph", graph_of, 1},
                                        {"graph", graph_of, 2},
                                        {"graph", graph_of, 4},
                                        {"processes", processes_of, 2},
                                        {"processes", processes_of, 4},
                                        {"killed", killed_of, 3},
                                        {"missing", missing_of, 3},
                                        {"small", small_of, 1},
                                        {"turns", turns_of, 2},
                                        {"turns", turns_of, 4},
                                        {"apart", apart_of, 2},
                                        {"apart", apart_of, 5},
                                        {"apart", apart_of, 8},
                                        {"counted", counted_of, 1},
                                        {"counted", counted_of, 2},
                                        {"counted", counted_of, 3},
                                        {"counted", counted_of, 4},
                                        {"counted", counted_of, 8},
                                        {"counted-processes", counted_processes_of, 2},
                                        {"counted-faults", faults_of, 2},
                                        {"switched", switched_of, 2},
                                        {"counted-processes", counted_processes_of, 4}};

    many = (int)check_repeat(200, 1000);
    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_collective_device");
}
