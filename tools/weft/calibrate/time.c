/* Timing one piece of work on all cores at once. See calibrate.h. */
#include "calibrate/calibrate.h"

#include "core/clock.h"
#include "core/cores.h"
#include "core/cpu.h"
#include "core/round.h"
#include "core/signal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST = 7,
    LEAST_HURRIED = 2,
    MOST = 2000,
    SPINS = 2000,
    PATIENCE = 2 /* times as long may a job take because cores are not their own */
};

static double pace = 1;
static calibrate_company company;
static bool disturbed; /* the last job */

/* A barrier that spins: a thread that slept would come late to the work. */
typedef struct meeting {
    _Atomic int arrived;
    _Atomic unsigned round;
    int count;
} meeting;

typedef struct crew {
    const calibrate_job *job;
    meeting meeting;
    int cores;
    uint64_t allowed[WEFT_CORES_WORDS];
    _Atomic int64_t longest_ns;
    _Atomic int sight;     /* of a repetition, what any core saw: bits */
    double *samples, *all; /* times of the repetitions in which cores were their own; of the last ones */
    int sample_count, all_count;
    bool over;
} crew;

typedef struct member {
    crew *crew;
    calibrate_watch *watch; /* NULL: none */
    int rank;
    pthread_t thread;
} member;

static void meet(meeting *m)
{
    unsigned round = atomic_load_explicit(&m->round, memory_order_relaxed);

    /* acq_rel: what each did before is seen by all after; partner: the load below. */
    if (atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) + 1 == m->count) {
        atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&m->round, round + 1, memory_order_release);
        return;
    }
    for (unsigned spins = 1; atomic_load_explicit(&m->round, memory_order_acquire) == round; spins++) {
        weft_pause();
        if (spins % SPINS == 0) /* only where there are more ranks than cores */
            sched_yield();
    }
}

static void pin(const uint64_t *allowed, int index)
{
    cpu_set_t one[WEFT_CORES_WORDS * 64 / CPU_SETSIZE];

    for (int cpu = 0; cpu < 64 * WEFT_CORES_WORDS; cpu++)
        if (allowed[cpu / 64] >> cpu % 64 & 1 && index-- == 0) {
            CPU_ZERO_S(sizeof(one), one);
            CPU_SET_S(cpu, sizeof(one), one);
            pthread_setaffinity_np(pthread_self(), sizeof(one), one);
            return;
        }
}

static void note_time(crew *c, int64_t ns)
{
    int64_t longest = atomic_load_explicit(&c->longest_ns, memory_order_relaxed);

    /* relaxed: the meeting that follows orders it before the reader. */
    while (ns > longest && !atomic_compare_exchange_weak_explicit(&c->longest_ns, &longest, ns,
                                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

static void note_sight(crew *c, calibrate_sight seen)
{
    /* relaxed: as above. */
    atomic_fetch_or_explicit(&c->sight, (int)seen, memory_order_relaxed);
}

/* Of rank 0, between two meetings: where the repetition belongs, and whether there are enough. The look after
 * one is the look before the next. */
static void count_repetition(crew *c, int64_t begin, bool *alone_before)
{
    double ns = (double)atomic_exchange(&c->longest_ns, 0);
    double took_ns = (double)(weft_clock_ns() - begin), asked_ns = pace * c->job->seconds * 1e9;
    int seen = atomic_exchange(&c->sight, CALIBRATE_ALONE), least = pace < 1 ? LEAST_HURRIED : LEAST;

    if (seen & CALIBRATE_NEVER_SO_GOOD) {
        company.misled |= company.jobs > 0;
        c->sample_count = 0;
    }
    if (seen == CALIBRATE_ALONE && *alone_before)
        c->samples[c->sample_count++] = ns;
    c->all[c->all_count++ % MOST] = ns;
    *alone_before = !(seen & CALIBRATE_DISTURBED);
    c->over = c->sample_count == MOST || (took_ns > asked_ns && c->sample_count >= least) ||
              (took_ns > PATIENCE * asked_ns && c->all_count >= least);
}

static void *serve(void *arg)
{
    member *me = arg;
    crew *c = me->crew;
    int64_t begin = weft_clock_ns();
    bool alone = true;

    if (!c->job->loose)
        pin(c->allowed, me->rank);
    for (int iteration = 0;; iteration++) {
        if (c->job->prepare)
            c->job->prepare(c->job->arg, me->rank, iteration);
        meet(&c->meeting);
        if (me->rank < c->job->workers) {
            int64_t start = weft_clock_ns();

            c->job->work(c->job->arg, me->rank);
            note_time(c, weft_clock_ns() - start);
        }
        if (me->watch)
            note_sight(c, calibrate_watch_look(me->watch, me->rank));
        meet(&c->meeting);
        if (me->rank == 0 && iteration > 0) /* the first one warms up pages, caches and clocks */
            count_repetition(c, begin, &alone);
        meet(&c->meeting);
        if (c->over)
            return NULL;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void calibrate_pace(double times)
{
    pace = times;
}

bool calibrate_hurries(void)
{
    return pace < 1;
}

calibrate_company calibrate_company_kept(void)
{
    calibrate_company kept = company;

    company = (calibrate_company){0};
    return kept;
}

bool calibrate_company_last(void)
{
    return disturbed;
}

void *calibrate_room(size_t bytes)
{
    void *memory = aligned_alloc(4096, weft_round_up_bytes(bytes, 4096));

    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

double calibrate_time(int cores, const calibrate_job *job)
{
    member members[CALIBRATE_MOST_CORES];
    double samples[MOST], all[MOST], *times = samples;
    crew c = {.job = job, .meeting = {.count = cores}, .cores = cores, .samples = samples, .all = all};
    int count;

    weft_cores_allowed(c.allowed);
    for (int rank = 0; rank < cores; rank++) {
        members[rank] = (member){.crew = &c, .rank = rank};
        if (cores <= weft_cpu_count()) /* else ranks are each other's company */
            members[rank].watch = calibrate_watch_new();
        /* Everyone waits for everyone: without this thread none of the others would ever end. */
        if (pthread_create(&members[rank].thread, NULL, serve, &members[rank]) != 0) {
            fprintf(stderr, "weft calibrate: the system refused thread %d of %d\n", rank, cores);
            exit(1);
        }
    }
    for (int rank = 0; rank < cores; rank++) {
        pthread_join(members[rank].thread, NULL);
        calibrate_watch_free(members[rank].watch);
    }
    company.jobs++;
    count = c.sample_count;
    disturbed = count < (pace < 1 ? LEAST_HURRIED : LEAST);
    if (disturbed) {
        company.disturbed++;
        times = all;
        count = c.all_count < MOST ? c.all_count : MOST;
    }
    qsort(times, (size_t)count, sizeof(double), compare);
    return times[(int)((count - 1) * (job->quantile > 0 ? job->quantile : 0.25))];
}
