/* Waiting for a stream, or an event, while looking after the peers, and saying why a kernel gave up. See
 * group.h.
 */
#include "run/cuda/group.h"
#include "run/cuda/journal.h"

#include "core/clock.h"

#include <string.h>
#include <time.h>

enum {
    SPIN_NS = 100000,
    SLEEP_NS = 20000,
    LOOK_NS = 5000000,       /* between two looks at the peers */
    SENTENCE_NS = 500000000, /* how long the peer that gave up may take to say why */
};

/* Whether something has happened to the group for which the run must be given up. */
static weft_status look(weft_group *group)
{
    weft_status status = weft_group_check(group);
    int dead;

    if (status != WEFT_OK)
        return status;
    dead = weft_group_find_dead(group, -1);
    if (dead >= 0)
        return weft_group_poison(group, WEFT_ERR_PEER_DIED,
                                 "rank %d (process %d) died while rank %d's GPU ran", dead,
                                 weft_group_pid(group, dead), group->rank);
    return weft_cuda_journal_compare(group, false);
}

/* An event, or a stream to its end. */
static weft_status pass(weft_group *group, CUevent event, CUstream stream)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    int64_t begun = weft_clock_ns(), looked = begun;
    weft_status lost = WEFT_OK;

    for (;;) {
        CUresult result = event ? cu->cuEventQuery(event) : cu->cuStreamQuery(stream);
        int64_t now = weft_clock_ns();

        if (result != CUDA_ERROR_NOT_READY && result != CUDA_SUCCESS) {
            weft_error_text why = {0};
            weft_status status = weft_cuda_check(cu, result, event ? "cuEventQuery" : "cuStreamQuery", &why);

            if (look(group) != WEFT_OK) /* a process that dies can take MPS, and so this one's GPU, with it */
                return weft_group_check(group);
            return weft_group_poison(group, status, "rank %d's GPU failed: %.400s", group->rank, why.text);
        }
        if (result == CUDA_SUCCESS || (lost != WEFT_OK && now - looked > group->progress_ns))
            return lost;
        if (lost == WEFT_OK && now - looked > LOOK_NS) {
            looked = now;
            lost = look(group);
            if (lost != WEFT_OK) /* partner: the look at it in every kernel's waits */
                __atomic_store_n(g->stop, 1, __ATOMIC_RELEASE);
        }
        if (now - begun > SPIN_NS)
            nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    }
}

weft_status weft_cuda_pass(weft_group *group, CUstream stream)
{
    return pass(group, NULL, stream);
}

weft_status weft_cuda_pass_event(weft_group *group, CUevent event)
{
    return pass(group, event, NULL);
}

weft_status weft_cuda_lost(weft_group *group, weft_status status, const char *why)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    bool enter = status == WEFT_ERR_TIMEOUT && strstr(why, " to enter ");
    const char *hint = "";

    for (int64_t begun = weft_clock_ns(); status == WEFT_ERR_PEER && weft_clock_ns() - begun < SENTENCE_NS &&
                                          weft_group_check(group) == WEFT_OK;)
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    if (enter && !g->crowded && weft_cuda_sharers(g) > 1)
        hint = " (this process has several groups on its GPU: their calls must come in the same order on all "
               "ranks, else their kernels keep each other out)";
    else if (enter && !group->world->processes)
        hint =
            " (if it was called there: kernels of one process that wait for each other need a queue of the "
            "driver each, see CUDA_DEVICE_MAX_CONNECTIONS)";
    return weft_group_poison(group, status, "%.340s%s", why, hint);
}
