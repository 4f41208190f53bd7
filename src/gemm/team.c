#include "gemm/team.h"
#include "core/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMBERS_MAX = 256, SPINS = 20000, HUGE_PAGE = 2 << 20 };

static struct {
    pthread_mutex_t turn;  /* held by the call that uses the team */
    pthread_mutex_t mutex; /* guards what follows it */
    pthread_cond_t wake, done;
    int workers; /* threads that exist, beside the callers */
    int wanted;  /* of them take part in this job */
    int running;
    int members;
    weft_gemm_team_work work;
    void *argument;
    _Atomic unsigned job; /* written by team_run (release), read by spinning workers (acquire) */
    _Atomic int left;     /* counted down by workers (release), read by the spinning caller (acquire) */
    void *scratch;
    size_t scratch_bytes;
} team = {
    .turn = PTHREAD_MUTEX_INITIALIZER,
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};

static inline void pause_briefly(void)
{
#if defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A child of fork has none of the parent's threads; its team starts anew. Its scratch is a copy it may keep.
 */
static void forget_after_fork(void)
{
    pthread_mutex_init(&team.turn, NULL);
    pthread_mutex_init(&team.mutex, NULL);
    pthread_cond_init(&team.wake, NULL);
    pthread_cond_init(&team.done, NULL);
    team.workers = 0;
    team.running = 0;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

/* What a worker does once. */
typedef struct team_job {
    unsigned number;
    bool wants; /* this worker */
    weft_gemm_team_work work;
    void *argument;
    int members;
} team_job;

/*
 * A worker waits for a job other than the last it saw: first spinning, for products come in bursts. All of
 * the job is read with its number: a job nobody waits for this worker in may end, and the next begin, at any
 * time.
 */
static team_job wait_for_job(int member, unsigned seen)
{
    team_job job;

    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team.job, memory_order_acquire) != seen)
            break;
        pause_briefly();
    }
    pthread_mutex_lock(&team.mutex);
    while (atomic_load_explicit(&team.job, memory_order_relaxed) == seen)
        pthread_cond_wait(&team.wake, &team.mutex);
    job = (team_job){
        .number = atomic_load_explicit(&team.job, memory_order_relaxed),
        .wants = member <= team.wanted,
        .work = team.work,
        .argument = team.argument,
        .members = team.members,
    };
    pthread_mutex_unlock(&team.mutex);
    return job;
}

static void *worker_main(void *argument)
{
    int member = (int)(intptr_t)argument;
    team_job job = {0};

    for (;;) {
        job = wait_for_job(member, job.number);
        if (!job.wants)
            continue;
        job.work(job.argument, member, job.members);
        if (atomic_fetch_sub_explicit(&team.left, 1, memory_order_release) == 1) {
            pthread_mutex_lock(&team.mutex);
            pthread_cond_signal(&team.done);
            pthread_mutex_unlock(&team.mutex);
        }
    }
    return NULL;
}

/* With the mutex held. Fewer workers than asked for is no error: the work is then shared by fewer. */
static void grow_to(int workers)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    while (team.workers < workers) {
        pthread_attr_t attributes;
        pthread_t thread;
        int failed;

        if (pthread_attr_init(&attributes))
            return;
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        failed = pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)(team.workers + 1));
        pthread_attr_destroy(&attributes);
        if (failed)
            return;
        team.workers++;
    }
}

int weft_gemm_team_members(int asked)
{
    int cpus = weft_cpu_count();
    int members = asked > 0 && asked < cpus ? asked : cpus;

    return members < MEMBERS_MAX ? members : MEMBERS_MAX;
}

/* Replaces scratch memory by at least `wanted` bytes, if it has fewer. */
static weft_status grow_scratch(void **memory, size_t *have, size_t wanted, weft_error_text *error)
{
    size_t bytes = (wanted + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *grown;

    if (wanted <= *have)
        return WEFT_OK;
    grown = aligned_alloc(HUGE_PAGE, bytes);
    if (!grown)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for %zu bytes of packed blocks", bytes);
    madvise(grown, bytes, MADV_HUGEPAGE); /* an unheeded wish is no error */
    free(*memory);
    *memory = grown;
    *have = bytes;
    return WEFT_OK;
}

weft_status weft_gemm_team_lock(size_t scratch_bytes, void **scratch, weft_error_text *error)
{
    weft_status status;

    pthread_mutex_lock(&team.turn);
    status = grow_scratch(&team.scratch, &team.scratch_bytes, scratch_bytes, error);
    if (status)
        pthread_mutex_unlock(&team.turn);
    else
        *scratch = team.scratch;
    return status;
}

static pthread_key_t own_key; /* frees what a thread leaves behind */
static bool own_key_made;

static void make_own_key(void)
{
    own_key_made = pthread_key_create(&own_key, free) == 0;
}

weft_status weft_gemm_own_scratch(size_t bytes, void **scratch, weft_error_text *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local size_t have;
    weft_status status;
    void *own;

    pthread_once(&once, make_own_key);
    if (!own_key_made)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "the process has no thread-specific key left");
    own = pthread_getspecific(own_key);
    status = grow_scratch(&own, &have, bytes, error);
    if (!status && pthread_setspecific(own_key, own)) {
        free(own);
        have = 0;
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a thread's own scratch");
    }
    *scratch = own;
    return status;
}

void weft_gemm_team_unlock(void)
{
    pthread_mutex_unlock(&team.turn);
}

int weft_gemm_team_run(int members, weft_gemm_team_work work, void *argument)
{
    if (members <= 1) {
        work(argument, 0, 1);
        return 1;
    }
    pthread_mutex_lock(&team.mutex);
    grow_to(members - 1);
    if (members > team.workers + 1)
        members = team.workers + 1;
    team.wanted = members - 1;
    team.members = members;
    team.work = work;
    team.argument = argument;
    atomic_store_explicit(&team.left, members - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&team.job, 1, memory_order_release);
    pthread_cond_broadcast(&team.wake);
    pthread_mutex_unlock(&team.mutex);
    work(argument, 0, members);
    for (int i = 0; i < SPINS && atomic_load_explicit(&team.left, memory_order_acquire) > 0; i++)
        pause_briefly();
    pthread_mutex_lock(&team.mutex);
    while (atomic_load_explicit(&team.left, memory_order_acquire) > 0)
        pthread_cond_wait(&team.done, &team.mutex);
    pthread_mutex_unlock(&team.mutex);
    return members;
}
