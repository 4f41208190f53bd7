#include "core/pool.h"

#include "core/clock.h"
#include "core/cpu.h"
#include "core/round.h"
#include "core/signal.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum { MEMBERS_MOST = 4096, SPIN_NS = 50000, POLLS = 64, HUGE_PAGE = 2 << 20 };

/* A counter one side advances and the other waits for: spinning first, then asleep. */
typedef struct gate {
    _Alignas(WEFT_LINE_BYTES) _Atomic unsigned value;
    _Atomic unsigned asleep; /* with `value` the two sides of a store-then-load handshake, all seq_cst */
    pthread_mutex_t mutex;
    pthread_cond_t moved;
} gate;

typedef struct member {
    gate go; /* how many jobs it has been called to */
    struct weft_pool *pool;
    int number;
    pthread_t thread;
} member;

struct weft_pool {
    gate finished; /* how many calls have returned, over all members and jobs */
    unsigned called;
    int size; /* members that exist, the caller included: threads 1 .. size - 1 */
    bool ending;
    weft_pool_work work; /* these three are written before a member is called, stay until all have returned */
    void *argument;
    int working; /* members of this job that have a thread, the caller included */
    member **members;
};

static void gate_init(gate *g)
{
    atomic_init(&g->value, 0);
    atomic_init(&g->asleep, 0);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->moved, NULL);
}

static void gate_destroy(gate *g)
{
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->moved);
}

static void gate_advance(gate *g)
{
    atomic_fetch_add(&g->value, 1); /* partner: the loads in gate_wait */
    if (!atomic_load(&g->asleep))   /* partner: the store in gate_wait */
        return;
    pthread_mutex_lock(&g->mutex);
    pthread_cond_signal(&g->moved);
    pthread_mutex_unlock(&g->mutex);
}

/* Only one thread waits at a gate. */
static void gate_wait(gate *g, unsigned value)
{
    int64_t start = weft_clock_ns();

    do {
        for (int poll = 0; poll < POLLS; poll++) {
            if ((int)(atomic_load(&g->value) - value) >= 0)
                return;
            weft_pause();
        }
    } while (weft_clock_ns() - start < SPIN_NS);
    pthread_mutex_lock(&g->mutex);
    atomic_store(&g->asleep, 1);
    while ((int)(atomic_load(&g->value) - value) < 0)
        pthread_cond_wait(&g->moved, &g->mutex);
    atomic_store(&g->asleep, 0);
    pthread_mutex_unlock(&g->mutex);
}

/* Calls two others to the job: who is called does the same, so that the last of many is called soon, although
 * waking one that sleeps takes microseconds. */
static void pass_call(weft_pool *pool, int number)
{
    for (int i = 2 * number + 1; i <= 2 * number + 2 && i < pool->working; i++)
        gate_advance(&pool->members[i]->go);
}

static void *serve(void *argument)
{
    member *me = argument;
    weft_pool *pool = me->pool;

    for (unsigned job = 1;; job++) {
        gate_wait(&me->go, job);
        if (pool->ending)
            return NULL;
        pass_call(pool, me->number);
        pool->work(pool->argument, me->number);
        gate_advance(&pool->finished);
    }
}

weft_pool *weft_pool_create(void)
{
    weft_pool *pool = aligned_alloc(WEFT_LINE_BYTES, sizeof(*pool));

    if (!pool)
        return NULL;
    *pool = (weft_pool){.size = 1};
    gate_init(&pool->finished);
    return pool;
}

void weft_pool_destroy(weft_pool *pool)
{
    if (!pool)
        return;
    pool->ending = true;
    for (int i = 1; i < pool->size; i++)
        gate_advance(&pool->members[i]->go);
    for (int i = 1; i < pool->size; i++) {
        pthread_join(pool->members[i]->thread, NULL);
        gate_destroy(&pool->members[i]->go);
        free(pool->members[i]);
    }
    free(pool->members);
    gate_destroy(&pool->finished);
    free(pool);
}

/* One more thread; false where the system refuses. */
static bool hire(weft_pool *pool)
{
    member *hired = aligned_alloc(WEFT_LINE_BYTES, sizeof(*hired));

    if (!hired)
        return false;
    *hired = (member){.pool = pool, .number = pool->size};
    gate_init(&hired->go);
    if (weft_thread_start(&hired->thread, NULL, serve, hired) != 0) {
        gate_destroy(&hired->go);
        free(hired);
        return false;
    }
    pool->members[pool->size++] = hired;
    return true;
}

/* ---- the program's own pool ------------------------------------------------------------------------ */

static struct {
    weft_parallel run;
    void *context;
    int threads;
    uint64_t uses;
} own;

void weft_pool_use(weft_parallel run, void *context, int threads)
{
    own.run = run;
    own.context = context;
    own.threads = run ? threads : 0;
    own.uses++;
}

int weft_pool_threads(void)
{
    return own.threads;
}

uint64_t weft_pool_uses(void)
{
    return own.uses;
}

int weft_pool_members(int asked)
{
    int most = own.run ? own.threads : weft_cpu_count();

    return asked > 0 && asked < most ? asked : most < MEMBERS_MOST ? most : MEMBERS_MOST;
}

int weft_pool_reserve(weft_pool *pool, int members)
{
    member **more;

    if (own.run)
        return members;
    if (members > MEMBERS_MOST)
        members = MEMBERS_MOST;
    if (members <= pool->size)
        return members;
    more = realloc(pool->members, (size_t)members * sizeof(member *));
    if (!more)
        return pool->size;
    pool->members = more;
    while (pool->size < members && hire(pool))
        ;
    return pool->size;
}

void weft_pool_run(weft_pool *pool, int members, weft_pool_work work, void *argument)
{
    int called = pool && members > pool->size ? pool->size : members;

    if (own.run && members > 1) {
        own.run(own.context, members, work, argument);
        return;
    }
    if (pool) {
        pool->work = work;
        pool->argument = argument;
        pool->working = called;
        pass_call(pool, 0);
    }
    work(argument, 0);
    for (int i = pool ? called : 1; i < members; i++) /* those there is no thread for */
        work(argument, i);
    if (pool && called > 1) {
        pool->called += (unsigned)called - 1;
        gate_wait(&pool->finished, pool->called);
    }
}

/* ---- pools of calls that belong to no rank ---------------------------------------------------------- */

struct weft_lent {
    weft_pool *pool;
    void *scratch;
    size_t scratch_bytes;
    struct weft_lent *next;
};

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_lent *idle;

/* A child of fork has none of the parent's threads: its pools start anew. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&idle_lock, NULL);
    idle = NULL;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

/* The one this thread had last, whose memory is in its caches, or any. */
static struct weft_lent *take_idle(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local struct weft_lent *last;
    struct weft_lent **at = &idle, *taken;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&idle_lock);
    while (*at && *at != last)
        at = &(*at)->next;
    if (!*at)
        at = &idle;
    taken = *at;
    if (taken)
        *at = taken->next;
    pthread_mutex_unlock(&idle_lock);
    last = taken;
    return taken;
}

static void put_idle(struct weft_lent *lent)
{
    pthread_mutex_lock(&idle_lock);
    lent->next = idle;
    idle = lent;
    pthread_mutex_unlock(&idle_lock);
}

static bool make_scratch(struct weft_lent *lent, size_t wanted)
{
    size_t bytes = weft_round_up_bytes(wanted, HUGE_PAGE);
    void *memory;

    if (wanted <= lent->scratch_bytes)
        return true;
    memory = aligned_alloc(HUGE_PAGE, bytes);
    if (!memory)
        return false;
    madvise(memory, bytes, MADV_HUGEPAGE); /* an unheeded wish is no error */
    free(lent->scratch);
    lent->scratch = memory;
    lent->scratch_bytes = bytes;
    return true;
}

/* With AddressSanitizer nobody touches what was not asked for, though there is more. */
static void guard_scratch(const struct weft_lent *lent, size_t wanted)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(lent->scratch, wanted);
    __asan_poison_memory_region((char *)lent->scratch + wanted, lent->scratch_bytes - wanted);
#else
    (void)lent, (void)wanted;
#endif
}

weft_status weft_pool_borrow(int members, size_t scratch_bytes, weft_loan *loan, weft_error_text *error)
{
    struct weft_lent *lent = take_idle();

    if (!lent) {
        lent = calloc(1, sizeof(*lent));
        if (lent)
            lent->pool = weft_pool_create();
        if (!lent || !lent->pool) {
            free(lent);
            return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a pool of %d threads", members);
        }
    }
    if (!make_scratch(lent, scratch_bytes)) {
        put_idle(lent);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for %zu bytes of packed blocks",
                              scratch_bytes);
    }
    guard_scratch(lent, scratch_bytes);
    weft_pool_reserve(lent->pool, members);
    *loan = (weft_loan){.pool = lent->pool, .scratch = lent->scratch, .lent = lent};
    return WEFT_OK;
}

void weft_pool_return(weft_loan *loan)
{
    put_idle(loan->lent);
}
