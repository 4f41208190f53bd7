/*
 * A pool of changing size: every member that is asked for works once on each job, and nobody else does; calls
 * of several threads have pools of their own; a program's own pool does all of it, and no thread is started.
 */
#include "core/pool.h"
#include "support/check.h"
#include "support/entries.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum { MOST = 6, JOBS = 600, CALLERS = 3 };

typedef struct job {
    _Atomic int
        turns[MOST]; /* counted by members (relaxed); the end of the job orders them before the check */
    int members;
} job;

static void work(void *argument, int member)
{
    job *it = argument;

    atomic_fetch_add_explicit(&it->turns[member], 1, memory_order_relaxed);
}

static int wrong_turns(const job *it)
{
    int wrong = 0;

    for (int member = 0; member < MOST; member++)
        wrong += atomic_load_explicit(&it->turns[member], memory_order_relaxed) != (member < it->members);
    return wrong;
}

/* Jobs of its own, each its own memory: a late worker is seen, and harms nothing. */
static void *call(void *argument)
{
    uint64_t seed = (uint64_t)(intptr_t)argument;
    job *jobs = calloc(JOBS, sizeof(*jobs));
    weft_error_text error;
    weft_loan loan;
    int wrong = 0;

    for (int i = 0; i < JOBS; i++) {
        jobs[i].members = 1 + (int)(check_random(&seed) % MOST);
        if (weft_pool_borrow(jobs[i].members, 1000, &loan, &error) != WEFT_OK)
            return (void *)1;
        *(volatile char *)loan.scratch = 1;
        weft_pool_run(loan.pool, jobs[i].members, work, &jobs[i]);
        weft_pool_return(&loan);
    }
    for (int i = 0; i < JOBS; i++)
        wrong += wrong_turns(&jobs[i]);
    free(jobs);
    return (void *)(intptr_t)wrong;
}

static void many_callers(void)
{
    pthread_t threads[CALLERS];
    void *wrong;

    for (int i = 0; i < CALLERS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, call, (void *)(intptr_t)(i + 1)), 0);
    for (int i = 0; i < CALLERS; i++) {
        CHECK_INT(pthread_join(threads[i], &wrong), 0);
        CHECK(wrong == NULL);
    }
}

/* Signals are the program's: its own threads take them. */
static void look_at_signals(void *argument, int member)
{
    sigset_t blocked;

    if (member > 0 && pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 &&
        sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGALRM) == 1 &&
        sigismember(&blocked, SIGUSR1) == 1)
        work(argument, member);
}

static void workers_take_no_signals(void)
{
    weft_pool *pool = weft_pool_create();
    job it = {.members = MOST};
    sigset_t blocked;

    CHECK_INT(weft_pool_reserve(pool, MOST), MOST);
    weft_pool_run(pool, MOST, look_at_signals, &it);
    for (int member = 1; member < MOST; member++)
        CHECK_INT(it.turns[member], 1);
    CHECK_INT(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    CHECK_INT(sigismember(&blocked, SIGTERM), 0);
    weft_pool_destroy(pool);
}

static int runs;

/* Bodies one after another, the last first: as OpenMP does with one thread. */
static void backwards(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    CHECK(context == &runs);
    runs++;
    for (int i = count; i-- > 0;)
        body(argument, i);
}

static void own_pool(void)
{
    int before = entries_of("/proc/self/task");
    job it = {.members = MOST};
    weft_pool *pool = weft_pool_create();

    CHECK_INT(weft_set_parallel(backwards, &runs, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_set_parallel(backwards, &runs, 5), WEFT_OK);
    CHECK_INT(weft_pool_members(0), 5);
    CHECK_INT(weft_pool_members(3), 3);
    CHECK_INT(weft_pool_reserve(pool, MOST), MOST);
    weft_pool_run(pool, MOST, work, &it);
    CHECK_INT(wrong_turns(&it), 0);
    CHECK_INT(runs, 1);
    CHECK_INT(entries_of("/proc/self/task"), before);
    CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
    CHECK_INT(weft_pool_threads(), 0);
    /* More members than threads: those there are do the rest. */
    it = (job){.members = MOST};
    weft_pool_run(pool, MOST, work, &it);
    CHECK_INT(wrong_turns(&it), 0);
    CHECK_INT(runs, 1);
    weft_pool_destroy(pool);
}

#ifdef __SANITIZE_ADDRESS__
/* Scratch memory ends where it was asked to, whatever a call before had of it. */
static void scratch_ends(void)
{
    static const size_t asked[] = {3 << 20, 1 << 20, 128, 5 << 20, (2 << 20) - 8};
    weft_error_text error = {0};

    for (size_t i = 0; i < sizeof(asked) / sizeof(*asked); i++) {
        weft_loan loan;

        CHECK_INT(weft_pool_borrow(1, asked[i], &loan, &error), WEFT_OK);
        CHECK(!__asan_region_is_poisoned(loan.scratch, asked[i]));
        CHECK(__asan_address_is_poisoned((char *)loan.scratch + asked[i]));
        weft_pool_return(&loan);
    }
}
#endif

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
    scratch_ends();
#endif
    own_pool();
    workers_take_no_signals();
    many_callers();
    return check_report("test_core_pool");
}
