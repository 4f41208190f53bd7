/* A rank is stopped: the others get a timeout that names it, and so does the rank itself when it goes on. */
#include "fault_rank.h"

static void stop_one(int victim)
{
    fault_table *table = fault_table_make(0.3);
    procs all = procs_start(FAULT_RANKS, fault_body, table);
    char name[32];

    fault_await(table, 1);
    kill(all.pids[victim], SIGSTOP);
    snprintf(name, sizeof(name), "; rank %d (process ", victim);
    for (int rank = 0; rank < FAULT_RANKS; rank++) {
        const fault_report *report = &table->ranks[rank];

        if (rank == victim)
            continue;
        CHECK_INT(procs_wait(&all, rank), 0);
        CHECK_INT(report->status, WEFT_ERR_TIMEOUT);
        CHECK_HAS(report->text, name);
        CHECK_HAS(report->text, "is stopped");
    }
    CHECK(atomic_load(&table->ranks[victim].rounds) >= 1);
    kill(all.pids[victim], SIGCONT);
    CHECK_INT(procs_wait(&all, victim), 0);
    CHECK_INT(table->ranks[victim].status, WEFT_ERR_TIMEOUT);
    CHECK_HAS(table->ranks[victim].text, name);
    CHECK_INT(strcmp(table->ranks[victim].text, table->ranks[(victim + 1) % FAULT_RANKS].text), 0);
    weft_segment_release(&all.segment);
    munmap(table, sizeof(*table));
}

int main(void)
{
    long times = check_repeat(1, 10);

    for (long i = 0; i < times; i++)
        for (int victim = 0; victim < FAULT_RANKS; victim++)
            stop_one(victim);
    return check_report("test_fault_stop");
}
