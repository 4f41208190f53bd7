/* A rank that makes every kind of call until one fails, and leaves a report of that where the parent reads
 * it. */
#ifndef WEFT_TESTS_FAULT_FAULT_RANK_H
#define WEFT_TESTS_FAULT_FAULT_RANK_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "core/clock.h"
#include "group/sync.h"
#include "support/check.h"
#include "support/procs.h"
#include "symm/symm.h"

enum { FAULT_RANKS = 4 };

typedef struct fault_report {
    _Atomic int rounds; /* how far the rank has come; -1: it has failed and the rest is written */
    weft_status status, again;
    int64_t when_ns;
    char text[WEFT_ERROR_TEXT_BYTES];
} fault_report;

typedef struct fault_table {
    double enter_seconds;
    fault_report ranks[FAULT_RANKS];
} fault_table;

static inline fault_table *fault_table_make(double enter_seconds)
{
    fault_table *table =
        mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (table == MAP_FAILED)
        exit(1);
    table->enter_seconds = enter_seconds;
    return table;
}

static inline weft_status fault_round(weft_group *group, weft_signal *signal, uint64_t round)
{
    int size = weft_size(group), next = (weft_rank(group) + 1) % size;
    weft_wait_note note = {
        .op = "put", .peer = (weft_rank(group) + size - 1) % size, .task = -1, .epoch = round};
    void *memory = NULL;
    char blob[100] = "blob";
    weft_status status = weft_barrier(group);

    if (status == WEFT_OK)
        status = weft_alloc(group, 10000, 0, &memory);
    if (status == WEFT_OK)
        status = weft_put_signal(group, memory, blob, sizeof(blob), signal, 1, next);
    if (status == WEFT_OK)
        status = weft_signal_wait(group, signal, round, &note);
    if (status == WEFT_OK)
        status = weft_group_broadcast(group, (int)(round % (uint64_t)size), blob, sizeof(blob));
    if (status == WEFT_OK)
        status = weft_group_agree(group, "round", round, "a round");
    if (memory) { /* also on a group that has failed */
        weft_status freed = weft_free(group, memory);

        if (status == WEFT_OK)
            status = freed;
    }
    return status;
}

static inline void fault_body(int rank, void *argument)
{
    fault_table *table = argument;
    fault_report *report = &table->ranks[rank];
    weft_group *group = NULL;
    weft_signal *signal = NULL;

    report->status = weft_init(&group);
    if (group) {
        weft_set_deadlines(group, table->enter_seconds, table->enter_seconds);
        report->status = weft_alloc(group, sizeof(*signal), 0, (void **)&signal);
        for (uint64_t round = 1; report->status == WEFT_OK; round++) {
            report->status = fault_round(group, signal, round);
            if (report->status == WEFT_OK)
                atomic_fetch_add(&report->rounds, 1);
        }
    }
    report->when_ns = weft_clock_ns();
    snprintf(report->text, sizeof(report->text), "%s", weft_error(group));
    report->again = group ? weft_barrier(group) : report->status;
    weft_group_free(group);
    atomic_store(&report->rounds, -1);
}

/* Waits until every rank has done `rounds` rounds. */
static inline void fault_await(fault_table *table, int rounds)
{
    for (int rank = 0; rank < FAULT_RANKS; rank++)
        while (atomic_load(&table->ranks[rank].rounds) < rounds)
            usleep(200);
}

#endif
