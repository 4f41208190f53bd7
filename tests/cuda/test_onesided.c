/* Put, get, signals and atomics of programs on groups of fake GPUs. */
#include "fake_gpu.h"
#include "onesided_cases.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <pthread.h>
#include <time.h>

/* A kernel: the fake GPU's memory is the host's. */
static void *post_later(void *signal)
{
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    __atomic_fetch_add((uint64_t *)signal, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Ranks whose threads wait for each other go on when a kernel of one posts; and what a kernel waits for in a
 * pad is what the host posts. */
static void kernels_rank(weft_group *group, void *argument)
{
    weft_signal_pad pad = {.size = sizeof(pad)};
    int rank = weft_rank(group);
    shared s = share(group);
    pthread_t kernel;

    (void)argument;
    CHECK_INT(weft_signal_pad_create(group, 2, &pad), WEFT_OK);
    if (rank == 1)
        CHECK_INT(pthread_create(&kernel, NULL, post_later, weft_peer(group, signal_at(&s, 0), 0)), 0);
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, 1 - rank), WEFT_OK);
    if (rank == 0)
        CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, 1), WEFT_OK);
    else
        pthread_join(kernel, NULL);
    CHECK_INT(weft_post_signal(group, pad.signals + WEFT_SIGNAL_BYTES / 8, 7, 1 - rank), WEFT_OK);
    CHECK_INT(weft_wait_signal(group, pad.signals + WEFT_SIGNAL_BYTES / 8, 7, 1 - rank), WEFT_OK);
    CHECK_INT(pad.signals[WEFT_SIGNAL_BYTES / 8], 7);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* What the driver refuses is told, and the group goes on. */
static void refused_rank(weft_group *group, void *argument)
{
    shared s = share(group);
    uint64_t mine[WORDS] = {0};

    (void)argument;
    fake_gpu_break("cuMemcpyAsync", 0);
    CHECK_INT(weft_put(group, s.box, mine, sizeof(mine), 0), WEFT_ERR_SYSTEM);
    fake_gpu_break("cuLaunchKernelEx", 0);
    CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, 0), WEFT_ERR_SYSTEM);
    fake_gpu_break(NULL, 0);
    CHECK_INT(weft_put_signal(group, s.box, mine, sizeof(mine), signal_at(&s, 0), 1, 0), WEFT_OK);
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, -1), WEFT_OK);
}

/* Nobody is waited for who is dead. */
static void killed_process(int rank, void *argument)
{
    weft_group *group = NULL;
    uint64_t mine[WORDS];
    shared s;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    s = share(group);
    fill(mine, 1);
    CHECK_INT(weft_put_signal(group, s.box, mine, sizeof(mine), signal_at(&s, 0), 1, 1 - rank), WEFT_OK);
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, 1 - rank), WEFT_OK);
    CHECK_INT(stale_here(group, &s, 1), 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 1)
        raise(SIGKILL);
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 2, -1), WEFT_ERR_PEER_DIED);
    weft_group_free(group);
}

/* Where GPUs cannot address one another there is no peer's memory. */
static void apart_rank(weft_group *group, void *argument)
{
    uint64_t mine = 0;
    void *memory = NULL;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_alloc(group, 256, 0, &memory), WEFT_OK);
    CHECK_INT(weft_put(group, memory, &mine, sizeof(mine), 0), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "no rank can touch memory of another");
}

int main(void)
{
    uint64_t rounds = (uint64_t)check_repeat(60, 2000);
    bool adds = false;
    procs all;

    fake_gpu_install(2, 16, true);
    ranks_run(2, counted_rank, &adds);
    fake_gpu_atomics(true);
    adds = true;
    for (int size = 1; size <= 4; size++) {
        ranks_run(size, ring_rank, &rounds);
        ranks_run(size, counted_rank, &adds);
    }
    ranks_run(2, handed_rank, &rounds);
    ranks_run(4, handed_rank, &rounds);
    ranks_run(1, asked_wrongly_rank, NULL);
    ranks_run(2, asked_wrongly_rank, NULL);
    ranks_run(2, kernels_rank, NULL);
    ranks_run(1, refused_rank, NULL);
    ranks_run(3, aborted_rank, NULL);
    ranks_run(2, late_rank, NULL);
    fake_gpu_break("peer access", 0);
    ranks_run(2, apart_rank, NULL);
    fake_gpu_break(NULL, 0);
    all = procs_start(2, killed_process, NULL);
    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
    return check_report("test_cuda_onesided");
}
