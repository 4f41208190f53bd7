/*
 * How far the simulator is off on this machine: every collective from 4 KiB to 16 MiB, and the four products
 * over the Llama 3 shapes or over shapes drawn at random, measured (median) and predicted from the machine's
 * description in the same minutes. bench/predict.sh asks for all of them.
 *
 *     weft calibrate --output here.machine
 *     WEFT_MACHINE=here.machine sim_error collectives|products [RANKS [DTYPE [SCALE [QUANTILE]]]]
 *     WEFT_MACHINE=here.machine sim_error random [RANKS [DTYPE [SEED [QUANTILE]]]]
 *
 * QUANTILE, of the measured times of products, is 0.5 unless given: on a machine that others use at the same
 * time a low one says what the product takes when it is not interrupted. Random shapes have 1 to 4096 rows,
 * of any number. With fewer ranks than cores each has the threads that it would have anywhere. What was
 * measured while somebody else used the cores, as the other thread of one may, is measured again, eight times
 * at most, and does not count then. Ranks are threads. Inputs are written anew and outputs overwritten before
 * every run.
 */
#include "calibrate/calibrate.h"
#include "cli/sets.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_ERRORS = 512, PASSES = 8, SHAPES = 12 };

typedef struct trial {
    int ranks;
    weft_problem problem, resolved;
    weft_group *groups[MOST_RANKS];
    weft_plan *plans[MOST_RANKS];
    weft_operands operands[MOST_RANKS];
    void *memory[MOST_RANKS][3];
    size_t bytes[3]; /* A, B, D; or send, receive */
    weft_status status[MOST_RANKS];
} trial;

static weft_machine machine;
static double errors[MOST_ERRORS];
static int error_count, disturbed;
static bool last_pass;

static int64_t share(int64_t extent, int ranks)
{
    return (extent + ranks - 1) / ranks;
}

/* Bytes of the largest instance of each operand. */
static void size_operands(trial *t)
{
    const weft_problem *p = &t->problem;
    size_t element = weft_dtype_size(p->dtype), sum = weft_dtype_size(p->d_dtype);
    bool inner = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    bool whole = p->op == WEFT_OP_GEMM_AR || p->op == WEFT_OP_GEMM_AS;
    int64_t w = t->ranks, k = inner ? share(p->k, t->ranks) : p->k;

    if (p->op >= WEFT_OP_ALL_REDUCE) {
        bool spread = p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;
        bool gathered = p->op == WEFT_OP_ALL_GATHER || p->op == WEFT_OP_ALL_TO_ALL;

        t->bytes[0] = (size_t)(p->count * (spread ? w : 1)) * element;
        t->bytes[1] = (size_t)(p->count * (gathered ? w : 1)) * element;
        return;
    }
    t->bytes[0] = (size_t)((p->op == WEFT_OP_AG_GEMM ? share(p->m, t->ranks) : p->m) * k) * element;
    t->bytes[1] = (size_t)(k * (inner ? p->n : share(p->n, t->ranks))) * element;
    t->bytes[2] = (size_t)(whole ? p->m * p->n : p->m * share(p->n, t->ranks) + p->n) * sum;
}

static void fill(void *arg, int rank, int iteration)
{
    trial *t = arg;

    for (int i = 0; i < 3; i++) {
        if (!t->bytes[i])
            continue;
        if (iteration == 0 && !t->status[rank])
            t->status[rank] = weft_alloc(t->groups[rank], t->bytes[i], 4096, &t->memory[rank][i]);
        /* Zeros and ones in any type; products need not be fresh, their operands exceed the caches. */
        if (!t->status[rank] && (iteration == 0 || t->problem.op >= WEFT_OP_ALL_REDUCE))
            memset(t->memory[rank][i], i == 0 ? iteration & 1 : 0, t->bytes[i]);
    }
    if (iteration == 0) {
        t->operands[rank] = (weft_operands){.size = sizeof(weft_operands),
                                            .a = t->memory[rank][0],
                                            .b = t->memory[rank][1],
                                            .d = t->memory[rank][2],
                                            .send = t->memory[rank][0],
                                            .recv = t->memory[rank][1]};
        if (!t->status[rank])
            t->status[rank] = weft_plan_create(t->groups[rank], &t->problem, &t->plans[rank]);
    }
}

static void run(void *arg, int rank)
{
    trial *t = arg;

    if (!t->status[rank])
        t->status[rank] = weft_run(t->plans[rank], &t->operands[rank]);
}

static double measured_us(trial *t, double seconds, double quantile)
{
    calibrate_job job = {.arg = t,
                         .prepare = fill,
                         .work = run,
                         .workers = t->ranks,
                         .loose = t->ranks < weft_cpu_count(),
                         .seconds = seconds,
                         .quantile = quantile};
    double us = NAN;

    size_operands(t);
    if (weft_group_threads(t->ranks, t->groups) != WEFT_OK)
        return NAN;
    us = calibrate_time(t->ranks, &job) / 1e3;
    if (t->plans[0])
        t->resolved = *weft_plan_problem(t->plans[0]);
    for (int rank = 0; rank < t->ranks; rank++) {
        if (t->status[rank])
            us = NAN;
        if (t->status[rank] && rank == 0)
            fprintf(stderr, "sim_error: %s\n", weft_error(t->groups[rank]));
        weft_plan_destroy(t->plans[rank]);
    }
    for (int rank = 0; rank < t->ranks; rank++)
        weft_group_free(t->groups[rank]);
    return us;
}

static double predicted_us(const trial *t)
{
    weft_sim_source source = {.problem = &t->resolved, .world = t->ranks};
    weft_sim_result result = {0};
    weft_error_text error = {0};

    if (weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &result, &error)) {
        fprintf(stderr, "sim_error: %s\n", error.text);
        return NAN;
    }
    return result.us;
}

/* Rows that were measured with cores of their own, by number: they are not measured again. */
static bool settled[MOST_ERRORS];
static int row;

static void compare(weft_problem problem, int ranks, const char *what, double seconds, double quantile)
{
    trial *t;
    double measured, predicted;
    int mine = row++;

    if (mine >= MOST_ERRORS || settled[mine])
        return;
    t = calloc(1, sizeof(*t));
    if (!t)
        exit(1);
    t->ranks = ranks;
    t->problem = problem;
    measured = measured_us(t, seconds, quantile);
    settled[mine] = !calibrate_company_last() || last_pass;
    if (!settled[mine]) {
        free(t);
        return;
    }
    if (calibrate_company_last())
        disturbed++;
    predicted = predicted_us(t);
    printf("%-15s %-32s %-24s %11.1f %11.1f %+7.1f %%%s\n", weft_op_name(problem.op),
           weft_schedule_name(problem.op, t->resolved.schedule), what, measured, predicted,
           100 * (predicted / measured - 1), calibrate_company_last() ? " (not alone)" : "");
    fflush(stdout);
    if (!calibrate_company_last() && isfinite(measured) && isfinite(predicted))
        errors[error_count++] = fabs(predicted / measured - 1);
    free(t);
}

static void collectives(int ranks, weft_dtype dtype)
{
    char what[32];

    for (int op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++) {
        int count;
        const weft_schedule *list = weft_schedule_list((weft_op)op, WEFT_LAYOUT_DEFAULT, &count);

        for (int i = 0; i < count; i++)
            for (int64_t bytes = 4096; bytes <= 16 << 20; bytes *= 4) {
                bool shared = op != WEFT_OP_ALL_REDUCE && op != WEFT_OP_BROADCAST;
                weft_problem problem;

                weft_problem_init(&problem, (weft_op)op);
                problem.dtype = dtype;
                problem.schedule = list[i];
                problem.count = bytes / (int64_t)weft_dtype_size(dtype) / (shared ? ranks : 1);
                snprintf(what, sizeof(what), "%lld bytes", (long long)bytes);
                compare(problem, ranks, what, 0.08, 0.5);
            }
    }
}

static void products(int ranks, weft_dtype dtype, double scale, double quantile)
{
    set_shape shapes[SETS_MOST_SHAPES];
    char what[64];

    for (int op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
        int shape_count = set_shapes("llama3", (weft_op)op, scale, shapes);

        for (int s = 0; s < shape_count; s++)
            for (int fused = 0; fused < 2; fused++) {
                weft_problem problem;

                weft_problem_init(&problem, (weft_op)op);
                problem.dtype = problem.d_dtype = dtype;
                problem.schedule = fused ? WEFT_SCHEDULE_AUTO : WEFT_SCHEDULE_UNFUSED;
                problem.m = shapes[s].m;
                problem.n = shapes[s].n;
                problem.k = shapes[s].k;
                snprintf(what, sizeof(what), "%lld %lld %lld", (long long)problem.m, (long long)problem.n,
                         (long long)problem.k);
                compare(problem, ranks, what, 0.1, quantile);
            }
    }
}

/* Between two sizes, those of every magnitude equally likely; the same for the same seed and number. */
static int64_t pick(uint64_t seed, int number, int64_t least, int64_t most)
{
    uint64_t x = (seed << 32) + (uint64_t)number * 0x9e3779b97f4a7c15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (int64_t)((double)least *
                     pow((double)most / (double)least, (double)(x >> 11) / (double)(1ULL << 53)));
}

static void random_products(int ranks, weft_dtype dtype, uint64_t seed, double quantile)
{
    const double most_flops = 2e9; /* so that no row takes long */
    char what[64];

    for (int op = WEFT_OP_AG_GEMM, number = 0; op <= WEFT_OP_GEMM_AS; op++)
        for (int s = 0; s < SHAPES; s++, number += 8) {
            weft_problem problem;
            int tries = 0;

            weft_problem_init(&problem, (weft_op)op);
            problem.dtype = problem.d_dtype = dtype;
            do {
                problem.m = pick(seed + (uint64_t)tries, number, 1, 4096);
                problem.n = pick(seed + (uint64_t)tries, number + 1, 64, 4096);
                problem.k = pick(seed + (uint64_t)tries, number + 2, 64, 4096);
                tries += 1000;
            } while (2.0 * (double)problem.m * (double)problem.n * (double)problem.k > most_flops);
            snprintf(what, sizeof(what), "%lld %lld %lld", (long long)problem.m, (long long)problem.n,
                     (long long)problem.k);
            problem.schedule = s % 2 ? WEFT_SCHEDULE_AUTO : WEFT_SCHEDULE_UNFUSED;
            compare(problem, ranks, what, 0.1, quantile);
        }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int ranks = argc > 2 ? atoi(argv[2]) : 2;
    weft_dtype dtype = WEFT_F32;
    weft_error_text error = {0};

    if (argc < 2 || ranks < 1 || ranks > MOST_RANKS || (argc > 3 && weft_dtype_parse(argv[3], &dtype)) ||
        (strcmp(argv[1], "collectives") && strcmp(argv[1], "products") && strcmp(argv[1], "random"))) {
        fprintf(stderr, "usage: sim_error collectives|products [RANKS [DTYPE [SCALE [QUANTILE]]]]\n"
                        "       sim_error random [RANKS [DTYPE [SEED [QUANTILE]]]]\n");
        return 2;
    }
    if (weft_machine_find(NULL, &machine, &error)) {
        fprintf(stderr, "sim_error: %s\n", error.text);
        return 1;
    }
    printf("%s: %s\n%-15s %-32s %-24s %11s %11s %9s\n", machine.name, machine.about, "op", "schedule", "size",
           "measured us", "predicted", "error");
    for (int pass = 0; pass < PASSES; pass++) {
        row = 0;
        last_pass = pass == PASSES - 1;
        if (strcmp(argv[1], "collectives") == 0)
            collectives(ranks, dtype);
        else if (strcmp(argv[1], "random") == 0)
            random_products(ranks, dtype, argc > 4 ? strtoull(argv[4], NULL, 10) : 1,
                            argc > 5 ? atof(argv[5]) : 0.5);
        else
            products(ranks, dtype, argc > 4 ? atof(argv[4]) : 16, argc > 5 ? atof(argv[5]) : 0.5);
        if (calibrate_company_kept().misled) { /* rows were taken for undisturbed that were not */
            printf("from here on: cores are faster than before\n");
            memset(settled, 0, sizeof(settled));
            error_count = 0;
        }
    }
    qsort(errors, (size_t)error_count, sizeof(double), by_size);
    if (error_count)
        printf("median error %.1f %%, nine tenths within %.1f %%, worst %.1f %%, of %d\n",
               100 * errors[error_count / 2], 100 * errors[error_count * 9 / 10],
               100 * errors[error_count - 1], error_count);
    if (disturbed)
        printf("%d more were only measured while cores were slower than they can be, as beside a neighbour\n",
               disturbed);
    return 0;
}
