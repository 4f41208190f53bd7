/* `weft bench barrier`: what a barrier costs, beside MPI_Barrier. A sample is the mean of many barriers in a
 * row. */
#include "bench/bench.h"

enum { CALLS = 1000, CALLS_CROWDED = 50, CHECKS = 20 };

typedef struct subject {
    bench_context *context;
    int calls;
    int64_t *stamps; /* symmetric: the last round each rank has announced here */
} subject;

static int run_weft(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    for (int i = 0; i < it->calls; i++)
        if (weft_barrier(it->context->group) != WEFT_OK)
            return 1;
    return 0;
}

static int run_mpi(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    for (int i = 0; i < it->calls; i++)
        it->context->mpi->barrier();
    return 0;
}

/* Rounds in which every rank tells every other of its node its number before a barrier and is believed only
 * after it. */
static int holds(subject *it)
{
    weft_group *group = it->context->group;
    int wrong = 0;

    for (int64_t round = 1; round <= CHECKS; round++) {
        for (int rank = 0; rank < it->context->size; rank++) {
            int64_t *there = weft_peer(group, it->stamps, rank);

            if (there)
                there[it->context->rank] = round;
        }
        wrong += weft_barrier(group) != WEFT_OK;
        for (int rank = 0; rank < it->context->size; rank++)
            wrong += weft_peer(group, it->stamps, rank) && it->stamps[rank] != round;
        wrong += weft_barrier(group) != WEFT_OK;
    }
    return bench_max(it->context, wrong) == 0;
}

int bench_barrier(bench_context *context)
{
    static const report_column columns[] = {
        {"ranks", "ranks", REPORT_PLAIN, 6},     {"barrier µs", "us", REPORT_TIME, 16},
        {"peer", "peer", REPORT_PLAIN, 16},      {"peer µs", "peer_us", REPORT_TIME, 16},
        {"speedup", "speedup", REPORT_RATIO, 9}, {"ok", "ok", REPORT_PLAIN, 4},
        {NULL, NULL, REPORT_PLAIN, 0},
    };
    subject it = {.context = context, .calls = context->oversubscribed ? CALLS_CROWDED : CALLS};
    bench_contender contenders[] = {
        {.name = "weft", .argument = &it, .run = run_weft},
        {.name = "MPI_Barrier", .argument = &it, .run = run_mpi},
    };
    report *out = &context->report;
    int ok;

    if (context->mpi_asked && !context->mpi)
        return bench_say(context, "--peer mpi: MPI is not in these ranks");
    if (weft_alloc(context->group, sizeof(int64_t) * (size_t)context->size, 0, (void **)&it.stamps) !=
        WEFT_OK)
        return bench_fail(context, "allocating");
    ok = holds(&it);
    if (bench_measure(context, contenders, context->mpi ? 2 : 1, it.calls, 10, "barrier") != 0)
        return 1;
    out->columns = columns;
    report_note(out, "barrier over %d ranks, %s%s%s", context->size, bench_workers(context, WEFT_F32, false),
                context->mpi ? ", beside " : "", context->mpi ? context->mpi->name : "");
    report_note(out, REPORT_TIME_LEGEND " of one barrier, each the mean of %d in a row", it.calls);
    report_text(out, "op", "barrier");
    report_text(out, "backend", "cpu");
    report_int(out, "ranks", context->size);
    report_time(out, "us", contenders[0].stats);
    if (context->mpi) {
        report_text(out, "peer", "%s", context->mpi->name);
        report_time(out, "peer_us", contenders[1].stats);
        report_real(out, "speedup", contenders[1].stats.median / contenders[0].stats.median);
    }
    report_bool(out, "ok", ok);
    report_row(out);
    return 0;
}
