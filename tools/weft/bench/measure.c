/* Timing contenders side by side over the ranks of a group. See bench.h for what is timed. */
#include "bench/bench.h"
#include "bench/start.h"

#include "choose/tuned.h"
#include "core/clock.h"
#include "group/group.h"
#include "run/backend.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Doubled by parity: whoever writes an entry again has since been in a barrier with all its readers. */
struct bench_shared {
    double values[2][BENCH_SHARE_MOST];
    atomic_flag told; /* of rank 0: somebody has said what went wrong */
};

enum { FEWEST_ITERATIONS = 5, MOST_ITERATIONS = 100, MOST_CONTENDERS = 32 };

int bench_say(bench_context *context, const char *format, ...)
{
    bench_shared *first = context->shared ? weft_peer(context->group, context->shared, 0) : NULL;
    char line[1024];
    va_list arguments;

    if (first && atomic_flag_test_and_set(&first->told))
        return 1;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    bench_output_say(line);
    return 1;
}

int bench_fail(bench_context *context, const char *what)
{
    return bench_say(context, "rank %d: %s: %s", context->rank, what, weft_error(context->group));
}

int bench_share(bench_context *context, const double *mine, int count, double *all)
{
    unsigned parity = context->shares++ & 1;

    if (!context->shared) {
        void *memory;
        if (weft_alloc(context->group, sizeof(bench_shared), 0, &memory) != WEFT_OK)
            return bench_fail(context, "allocating");
        context->shared = memory;
        for (int r = 0; r < context->size; r++)
            context->spread = context->spread || !weft_peer(context->group, memory, r);
    }
    if (context->spread) /* what those of other nodes share cannot be looked at */
        return weft_all_gather(context->group, mine, all, count * (int64_t)sizeof *mine, WEFT_I8) == WEFT_OK
                   ? 0
                   : bench_fail(context, "sharing times");
    memcpy(context->shared->values[parity], mine, (size_t)count * sizeof *mine);
    if (weft_barrier(context->group) != WEFT_OK)
        return bench_fail(context, "barrier");
    for (int r = 0; r < context->size; r++) {
        const bench_shared *theirs = weft_peer(context->group, context->shared, r);
        memcpy(all + (size_t)r * (size_t)count, theirs->values[parity], (size_t)count * sizeof *all);
    }
    return 0;
}

double bench_max(bench_context *context, double mine)
{
    double all[context->size], most = mine;

    if (bench_share(context, &mine, 1, all) != 0)
        return NAN;
    for (int r = 0; r < context->size; r++)
        most = fmax(most, all[r]);
    return most;
}

static uint64_t next_random(uint64_t *random)
{
    uint64_t z = (*random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t bench_random(bench_context *context)
{
    return next_random(&context->random);
}

void bench_note_tuned_for(report *r, uint64_t machine, const weft_problem *asked, int world)
{
    weft_error_text ignored;
    weft_problem problem;

    if (weft_tuned_asks(asked) && weft_problem_resolve(asked, world, &problem, &ignored) == WEFT_OK &&
        weft_tuned_elsewhere(machine, &problem, world))
        report_note(r, WEFT_TUNED_ELSEWHERE ": auto does without it");
}

void bench_note_tuned(report *r, const weft_group *group, const weft_problem *asked)
{
    bench_note_tuned_for(r, weft_backend_of(group)->tuned_as(group), asked, group->size);
}

double bench_reduce_two(weft_reduction reduction, double a, double b)
{
    switch (reduction) {
    case WEFT_MIN:
        return fmin(a, b);
    case WEFT_MAX:
        return fmax(a, b);
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

double bench_reduce_end(weft_reduction reduction, double all, int ranks)
{
    return reduction == WEFT_AVERAGE ? all / ranks : all;
}

void bench_shuffle(uint64_t *random, int *order, int count)
{
    for (int i = 0; i < count; i++) {
        int other = (int)(next_random(random) % (uint64_t)(i + 1));

        order[i] = order[other];
        order[other] = i;
    }
}

/* One timed run on all ranks; *us is equal on every rank. */
static int time_once(bench_context *context, const bench_contender *contender, int calls, int iteration,
                     double *us)
{
    double all[3 * context->size], first = INFINITY, last_in = -INFINITY, last_out = -INFINITY, failed = 0;

    if (contender->prepare && contender->prepare(contender->argument, iteration) != 0)
        return 1;
    if (weft_barrier(context->group) != WEFT_OK)
        return bench_fail(context, "barrier");
    int64_t start = weft_clock_ns();
    int status = contender->run(contender->argument, iteration);
    int64_t end = weft_clock_ns();
    if (context->mpi && context->spread)
        context->mpi->barrier(); /* it may have more to send to other nodes, and does so only when called */
    /* Nanoseconds since boot are exact in a double for a hundred days, and within 2 ns for the next. */
    double mine[3] = {(double)start, (double)end, status};
    if (bench_share(context, mine, 3, all) != 0)
        return 1;
    for (int r = 0; r < context->size; r++) {
        first = fmin(first, all[3 * r]);
        last_in = fmax(last_in, all[3 * r]);
        last_out = fmax(last_out, all[3 * r + 1]);
        failed += all[3 * r + 2];
    }
    if (failed)
        return status ? bench_fail(context, contender->name) : 1;
    *us = (last_out - (context->oversubscribed ? first : last_in)) * 1e-3 / calls;
    return contender->check ? contender->check(contender->argument, iteration) : 0;
}

/* Every contender once, in a random order. `keep`: whether the times count. */
static int round_of(bench_context *context, bench_contender *contenders, int count, int calls, int iteration,
                    bool keep)
{
    int order[MOST_CONTENDERS];

    bench_shuffle(&context->random, order, count);
    for (int i = 0; i < count; i++) {
        bench_contender *contender = &contenders[order[i]];
        double us = 0;
        if (time_once(context, contender, calls, iteration, &us) != 0)
            return 1;
        if (keep)
            contender->samples[contender->count++] = us;
    }
    return 0;
}

static int measure_all(bench_context *context, bench_contender *contenders, int count, int calls,
                       double seconds, const char *label)
{
    const weft_options *options = context->options;
    int64_t begin = weft_clock_ns();
    int iterations = options->iterations ? (int)options->iterations : MOST_ITERATIONS, done = 0;

    /* Warming up also tells how long a round takes; a tenth of the time is enough for it. */
    for (; done < (options->warmup > 1 ? options->warmup : 1); done++) {
        report_progress(&context->report, "%s: warming up", label);
        if (round_of(context, contenders, count, calls, done, false) != 0)
            return 1;
        double spent = bench_max(context, (double)(weft_clock_ns() - begin) * 1e-9);
        if (isnan(spent))
            return 1;
        if (!options->iterations) {
            double fit = seconds / (spent / (done + 1));
            iterations = fit < FEWEST_ITERATIONS ? FEWEST_ITERATIONS
                         : fit > MOST_ITERATIONS ? MOST_ITERATIONS
                                                 : (int)fit;
            if (spent > seconds / 10)
                break;
        }
    }
    for (int i = 0; i < count; i++) {
        contenders[i].samples = calloc((size_t)iterations, sizeof(double));
        contenders[i].count = 0;
        if (!contenders[i].samples)
            return bench_say(context, "no memory for %d samples", iterations);
    }
    for (int i = 0; i < iterations; i++) {
        report_progress(&context->report, "%s: %d of %d", label, i + 1, iterations);
        if (round_of(context, contenders, count, calls, done + 1 + i, true) != 0)
            return 1;
    }
    return 0;
}

/* The median of the ratios of two contenders' samples, iteration by iteration. */
static double paired_ratio(const bench_contender *one, const bench_contender *other)
{
    double *ratio = malloc((size_t)(one->count + 1) * sizeof(double)), median = NAN;

    for (int i = 0; ratio && i < one->count; i++)
        ratio[i] = one->samples[i] / other->samples[i];
    if (ratio && one->count > 0)
        median = report_summarise(ratio, one->count).median;
    free(ratio);
    return median;
}

int bench_measure(bench_context *context, bench_contender *contenders, int count, int calls, double seconds,
                  const char *label)
{
    int status;

    if (count > MOST_CONTENDERS)
        return 1;
    for (int i = 0; i < count; i++)
        contenders[i].samples = NULL;
    status = measure_all(context, contenders, count, calls, seconds, label);
    for (int i = 0; i < count && !status; i++)
        if (contenders[i].beside)
            contenders[i].over = paired_ratio(&contenders[i], contenders[i].beside);
    for (int i = 0; i < count; i++) {
        contenders[i].stats =
            status ? report_missing() : report_summarise(contenders[i].samples, contenders[i].count);
        free(contenders[i].samples);
        contenders[i].samples = NULL;
    }
    return status;
}
