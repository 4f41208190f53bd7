/*
 * Threads that share work, and whose they are.
 *
 * A pool has threads that are started once, spin a little between jobs, for jobs come in bursts, and then
 * sleep. A job wakes only those it wants. The executor of a rank owns a pool; calls that belong to no rank
 * borrow one for their time, so that calls of several threads run beside each other.
 *
 * A program that has a pool of its own can have every job run there instead (weft_pool_use): then no thread
 * is started here. A job never needs its members to run at the same time: each takes what is left to do, and
 * may find nothing.
 */
#ifndef WEFT_CORE_POOL_H
#define WEFT_CORE_POOL_H

#include <weft/weft.h>

#include "core/status.h"

typedef struct weft_pool weft_pool;

/* Runs on every member; the caller is member 0 unless the program's own pool runs it. */
typedef void (*weft_pool_work)(void *argument, int member);

/* A pool without threads yet. NULL when there is no memory. */
weft_pool *weft_pool_create(void);
void weft_pool_destroy(weft_pool *pool);

/* Makes sure that `members` can work at the same time, the caller included; where the system refuses threads
 * there are fewer, and a job of more is done by those there are. Returns how many there are. */
int weft_pool_reserve(weft_pool *pool, int members);

/* Calls work(argument, member) once for each member 0 .. members - 1, and returns when all have returned. */
void weft_pool_run(weft_pool *pool, int members, weft_pool_work work, void *argument);

/* Every job of the process, from now on, by `run`; NULL: by threads of the pools. `threads` is how many it
 * has (see weft_pool_threads). Not while a job runs. */
void weft_pool_use(weft_parallel run, void *context, int threads);

/* Threads of the program's own pool; 0 when there is none. */
int weft_pool_threads(void);

/* How often weft_pool_use has been called. */
uint64_t weft_pool_uses(void);

/* How many members a call that belongs to no rank may have: `asked` (0 = all), but no more than the CPUs it
 * may run on, or the threads of the program's own pool. */
int weft_pool_members(int asked);

/* A pool for the time of a call, with memory of at least `scratch_bytes`, 128-byte aligned. Both are kept for
 * later calls when they are given back. */
typedef struct weft_loan {
    weft_pool *pool;
    void *scratch;
    struct weft_lent *lent;
} weft_loan;

weft_status weft_pool_borrow(int members, size_t scratch_bytes, weft_loan *loan, weft_error_text *error);
void weft_pool_return(weft_loan *loan);

#endif
