/* Timing one piece of work on all cores at once. See calibrate.h. */
#include "calibrate/calibrate.h"

#include "core/clock.h"
#include "core/cores.h"
#include "core/signal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { LEAST = 7, LEAST_HURRIED = 2, MOST = 2000, SPINS = 2000 };

static double pace = 1;

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
    double *samples;
    int sample_count;
    bool over;
} crew;

typedef struct member {
    crew *crew;
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

static void *serve(void *arg)
{
    member *me = arg;
    crew *c = me->crew;
    int64_t begin = weft_clock_ns();

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
        meet(&c->meeting);
        if (me->rank == 0) {
            c->samples[c->sample_count++] = (double)atomic_exchange(&c->longest_ns, 0);
            c->over =
                c->sample_count == MOST || (c->sample_count >= (pace < 1 ? LEAST_HURRIED : LEAST) &&
                                            (double)(weft_clock_ns() - begin) > pace * c->job->seconds * 1e9);
        }
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

double calibrate_time(int cores, const calibrate_job *job)
{
    member members[CALIBRATE_MOST_CORES];
    double samples[MOST];
    crew c = {.job = job, .meeting = {.count = cores}, .cores = cores, .samples = samples};

    weft_cores_allowed(c.allowed);
    for (int rank = 0; rank < cores; rank++) {
        members[rank] = (member){.crew = &c, .rank = rank};
        /* Everyone waits for everyone: without this thread none of the others would ever end. */
        if (pthread_create(&members[rank].thread, NULL, serve, &members[rank]) != 0) {
            fprintf(stderr, "weft calibrate: the system refused thread %d of %d\n", rank, cores);
            exit(1);
        }
    }
    for (int rank = 0; rank < cores; rank++)
        pthread_join(members[rank].thread, NULL);
    /* The first one warms up pages, caches and clocks. */
    qsort(samples + 1, (size_t)c.sample_count - 1, sizeof(double), compare);
    return samples[1 + (int)((c.sample_count - 2) * (job->quantile > 0 ? job->quantile : 0.25))];
}
