/*
 * `weft bench`: what its operations share.
 *
 * The command starts its ranks and every rank runs the same code (bench_run_rank). Where MPI was found when
 * weft was built, the ranks are processes of a helper that is linked to it, so that weft and MPI alternate
 * inside the same processes; everything but the table of MPI calls is the same code.
 *
 * An operation is one line in cmd_bench.c: its name, its function, its own flags, one line of help. The
 * function runs on every rank; only rank 0 prints (context->report writes nowhere on the others).
 */
#ifndef WEFT_TOOLS_BENCH_BENCH_H
#define WEFT_TOOLS_BENCH_BENCH_H

#include "bench/blas.h"
#include "cli/options.h"
#include "report/page.h"
#include "report/report.h"

#include <weft/weft.h>

/* The collectives of an MPI library among the ranks of this run. Counts are elements, bytes where named so.
 */
typedef struct bench_mpi {
    char name[64]; /* "Open MPI 4.1.4" */
    void (*barrier)(void);
    void (*all_reduce)(const void *send, void *recv, int64_t count, weft_dtype dtype,
                       weft_reduction reduction);
    void (*reduce_scatter)(const void *send, void *recv, const int *counts, weft_dtype dtype,
                           weft_reduction reduction);
    void (*all_gather)(const void *send, int64_t bytes, void *recv); /* the same number of bytes each */
    void (*all_gather_v)(const void *send, void *recv, const int *counts, const int *offsets,
                         weft_dtype dtype);
    void (*all_to_all)(const void *send, int64_t bytes, void *recv); /* bytes for each rank */
    void (*all_to_all_v)(const void *send, const int *send_bytes, const int *send_offsets, void *recv,
                         const int *recv_bytes, const int *recv_offsets);
    void (*broadcast)(void *data, int64_t bytes, int root);
} bench_mpi;

typedef struct bench_shared bench_shared;

typedef struct bench_context {
    const weft_options *options;
    weft_group *group;
    int rank, size, threads;
    bool oversubscribed;      /* more ranks (times threads) than cores */
    report report;            /* prints on rank 0 only */
    report_page page;         /* of --html, written by rank 0 */
    const bench_mpi *mpi;     /* NULL when these processes have none, or --peer none */
    bool mpi_asked;           /* --peer mpi: an error where it cannot stand beside what is measured */
    const blas_library *blas; /* OpenBLAS, NULL when it is not installed, or --peer none */
    uint64_t random;          /* a generator that is in the same state on every rank */
    bench_shared *shared;     /* symmetric; see bench_share */
    bool spread;              /* some ranks are on other nodes; known once there is such memory */
    unsigned shares;
} bench_context;

/* Returns the exit status, equal on every rank. */
typedef int bench_operation(bench_context *context);

typedef struct bench_entry {
    const char *op;
    bench_operation *run;
    const options_flag *flags; /* ended by NULL names; NULL = none */
    const char *help;
    bool alone; /* measured in this process: no ranks are started */
} bench_entry;

bench_operation bench_tp, bench_gemm, bench_collective, bench_barrier, bench_moe;

extern const options_flag bench_moe_flags[];

/* Who computes: "2 workers a rank on 2 CPUs of its own, kernel neon_f32_8x12". Without a type of products, no
 * kernel. The text lives until the next call. */
const char *bench_workers(const bench_context *context, weft_dtype dtype, bool products);

/* Collective: a run of the plan that takes about `typical_us`, the row's median, recorded and drawn into the
 * files of --trace and --svg. */
int bench_trace(bench_context *context, weft_plan *plan, const weft_operands *operands, double typical_us);

/* Collective: the same, drawn into the page of --html beside this row. */
int bench_trace_row(bench_context *context, weft_plan *plan, const weft_operands *operands, double typical_us,
                    int row);

/* The Python of --torch or WEFT_TORCH_PYTHON; NULL when none was named. */
const char *bench_torch_python(void);

/* Whether it was --torch that named it. */
bool bench_torch_asked(void);

/* --user-memory: buffers outside symmetric memory. */
bool bench_user_memory(void);

/* The file of --plan; NULL when none was given. */
const char *bench_plan_path(void);

/* Runs the operation as one rank of a group that the environment describes; `mpi` may be NULL. */
int bench_run_rank(int argc, char **argv, const bench_mpi *mpi);

/* ---- together (measure.c) ------------------------------------------------------------------- */

enum { BENCH_SHARE_MOST = 8 };

/* Every rank gives `count` numbers and gets those of all ranks, all[rank * count + i]. 0, or 1 on failure. */
int bench_share(bench_context *context, const double *mine, int count, double *all);

/* The largest of the ranks' values; NaN when the group failed. */
double bench_max(bench_context *context, double mine);

/* A number that is the same on every rank. */
uint64_t bench_random(bench_context *context);

/* What a reduction makes of two values, to check what was measured. */
double bench_reduce_two(weft_reduction reduction, double a, double b);

/* What comes of all ranks' values when they are combined. */
double bench_reduce_end(weft_reduction reduction, double all, int ranks);

/* The numbers 0 to count - 1 in an order drawn from the generator. */
void bench_shuffle(uint64_t *random, int *order, int count);

/* A note where `weft tune` kept something for this problem that does not count in the group; the second, for
 * what lines of ranks there are kept for. */
void bench_note_tuned(report *r, const weft_group *group, const weft_problem *asked);
void bench_note_tuned_for(report *r, uint64_t machine, const weft_problem *asked, int world);

/* One line on standard error from the first rank that has something to say: what goes wrong for one goes
 * wrong for all. Returns 1. */
int bench_say(bench_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says the group's error; returns 1. */
int bench_fail(bench_context *context, const char *what);

/*
 * One of the things compared. `prepare` (fresh inputs, poisoned outputs) and `check` are not timed; `run` is,
 * from a barrier on. Any of them returns non-zero to end the bench with status 1.
 */
typedef struct bench_contender {
    const char *name;
    void *argument;
    int (*prepare)(void *argument, int iteration);
    int (*run)(void *argument, int iteration);
    int (*check)(void *argument, int iteration);
    const struct bench_contender *beside; /* another of them, or NULL */
    report_stats stats;                   /* microseconds of one call */
    double over;                          /* median of its time over that of `beside` in the same iteration */
    double *samples;
    int count;
} bench_contender;

/*
 * Runs every contender once an iteration, in an order drawn anew each time. One `run` makes `calls` calls of
 * what is measured; its time is that from the moment the last rank was there until the last rank was done,
 * divided by `calls`. With more ranks than cores, where ranks cannot all be there, it is from the first.
 * Iterations are those asked for, or as many of 100 as fit into `seconds`.
 */
int bench_measure(bench_context *context, bench_contender *contenders, int count, int calls, double seconds,
                  const char *label);

#endif
