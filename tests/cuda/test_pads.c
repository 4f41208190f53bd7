/* What kernels of programs get on groups of GPUs, with fake ones: addresses of peers' memory, and signal
 * pads. */
#include "core/clock.h"
#include "fake_gpu.h"
#include "support/check.h"
#include "support/ranks.h"
#include "weft/weft.h"

#include <time.h>

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

int main(void)
{
    fake_gpu_install(2, 16, true);
    ranks_run(3, own_kernels_rank, NULL);
    ranks_run(3, given_up_rank, NULL);
    return check_report("test_cuda_pads");
}
