/*
 * A rank is killed at a random moment, again and again: every survivor's call returns an error that names it,
 * soon, and nothing is left over.
 */
#include <errno.h>

#include "fault_rank.h"
#include "support/entries.h"

static int compare(const void *a, const void *b)
{
    double one = *(const double *)a, two = *(const double *)b;

    return one < two ? -1 : one > two;
}

/* Kills one rank `delay_us` after the start; adds how long each survivor took to *took_ms. */
static int kill_one(int victim, useconds_t delay_us, bool wait_for_work, double *took_ms)
{
    fault_table *table = fault_table_make(60);
    procs all = procs_start(FAULT_RANKS, fault_body, table);
    char name[32];
    int64_t death_ns;
    int told = 0;

    if (wait_for_work)
        fault_await(table, 1);
    usleep(delay_us);
    kill(all.pids[victim], SIGKILL);
    CHECK_INT(procs_wait(&all, victim), 128 + SIGKILL);
    death_ns = weft_clock_ns();
    /* As a launcher does: a rank that had not even entered will not come any more. */
    if (!weft_segment_came(&all.segment, victim))
        weft_segment_set_left(&all.segment, victim);
    snprintf(name, sizeof(name), "rank %d ", victim);
    for (int rank = 0; rank < FAULT_RANKS; rank++) {
        const fault_report *report = &table->ranks[rank];

        if (rank == victim)
            continue;
        CHECK_INT(procs_wait(&all, rank), 0);
        CHECK_INT(report->status, WEFT_ERR_PEER_DIED);
        CHECK_INT(report->again, WEFT_ERR_PEER_DIED);
        CHECK_HAS(report->text, name);
        took_ms[told++] = (double)(report->when_ns - death_ns) * 1e-6;
    }
    weft_segment_release(&all.segment);
    munmap(table, sizeof(*table));
    return told;
}

int main(void)
{
    long times = check_repeat(25, 200);
    int before = entries_of("/proc/self/fd"), told = 0;
    double *took_ms = calloc((size_t)times * FAULT_RANKS, sizeof(double));
    uint64_t seed = (uint64_t)weft_clock_ns();
    const char *soak = getenv("WEFT_SOAK");

    for (long i = 0; i < times; i++)
        told += kill_one((int)(check_random(&seed) % FAULT_RANKS), (useconds_t)(check_random(&seed) % 20000),
                         i % 4 != 0, took_ms + told);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1);
    CHECK_INT(errno, ECHILD);
    CHECK_INT(entries_of("/proc/self/fd"), before);
    qsort(took_ms, (size_t)told, sizeof(double), compare);
    if (soak && *soak == '1') {
        printf("after %ld kills survivors knew within: median %.1f ms, 99 %% %.1f ms, slowest %.1f ms\n",
               times, took_ms[told / 2], took_ms[told * 99 / 100], took_ms[told - 1]);
        CHECK(took_ms[told * 9 / 10] < 100);
        CHECK(took_ms[told - 1] < 500);
    }
    free(took_ms);
    return check_report("test_fault_kill");
}
