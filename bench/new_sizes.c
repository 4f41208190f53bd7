/*
 * What a size that no call had before costs beyond its run: weft_ag_gemm of 1 to 63 rows, after one of 256.
 * And of the four products how long a rank plans each number of rows up to 256, with so many workers (16), by
 * itself and by the clock of its thread, in three passes over all of them. That clock goes on while the core
 * serves interrupts or another system, so single plannings say less than the median of a number's three.
 *
 * usage: weft run -n RANKS -- new_sizes [WORKERS]
 */
#include "core/clock.h"
#include "run/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <weft/weft.h>

enum { ROWS = 256, SIDE = 1024, SIZES = 63, PASSES = 3 };

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

/* In microseconds, after a barrier. */
static double call(weft_group *group, const weft_problem *problem, const weft_operands *operands)
{
    int64_t begun;

    if (weft_barrier(group) != WEFT_OK)
        return 0;
    begun = weft_clock_ns();
    if (weft_ag_gemm(group, problem, operands) != WEFT_OK) {
        fprintf(stderr, "new_sizes: %s\n", weft_error(group));
        exit(1);
    }
    return (double)(weft_clock_ns() - begun) * 1e-3;
}

static double thread_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* In microseconds: making a plan, which is not kept. */
static double plan(weft_group *group, const weft_problem *problem)
{
    weft_session *session;
    weft_plan *made;
    double begun;

    if (weft_session_of(group, &session) != WEFT_OK)
        return 0;
    begun = thread_us();
    if (weft_program_make(session, problem, false, &made) != WEFT_OK) {
        fprintf(stderr, "new_sizes: %s\n", weft_error(group));
        exit(1);
    }
    begun = thread_us() - begun;
    weft_program_destroy(made);
    return begun;
}

static void plan_all(weft_group *group, weft_op op, weft_dtype dtype, int workers)
{
    double passes[ROWS][PASSES], costs[ROWS], shown[4] = {0}; /* of the rank that takes longest */
    weft_problem problem;

    weft_problem_init(&problem, op);
    problem.n = problem.k = 4 * SIDE;
    problem.dtype = problem.d_dtype = dtype;
    problem.tuning.workers = workers;
    problem.m = ROWS + 1; /* for which the ranks meet */
    plan(group, &problem);
    for (int pass = 0; pass < PASSES; pass++)
        for (problem.m = ROWS; problem.m > 0; problem.m--)
            passes[problem.m - 1][pass] = plan(group, &problem);
    for (int i = 0; i < ROWS; i++) {
        qsort(passes[i], PASSES, sizeof(*passes[i]), compare);
        costs[i] = passes[i][PASSES / 2];
        shown[3] = passes[i][PASSES - 1] > shown[3] ? passes[i][PASSES - 1] : shown[3];
    }
    qsort(costs, ROWS, sizeof(*costs), compare);
    shown[0] = costs[ROWS / 2], shown[1] = costs[ROWS * 95 / 100], shown[2] = costs[ROWS - 1];
    weft_all_reduce(group, shown, shown, 4, WEFT_F64, WEFT_MAX);
    if (weft_rank(group) == 0)
        printf("planning %s of %s, %d workers: %.1f us (median of m = 1 to %d; 95 %% within %.1f, the most "
               "%.1f, of single plannings %.1f)\n",
               weft_op_name(op), weft_dtype_name(dtype), workers, shown[0], ROWS, shown[1], shown[2],
               shown[3]);
}

int main(int argc, char **argv)
{
    float *b = calloc((size_t)SIDE * SIDE, sizeof(*b)), *d = calloc((size_t)ROWS * SIDE, sizeof(*d));
    weft_operands operands = {.size = sizeof(operands), .b = b, .d = d};
    double costs[SIZES];
    weft_problem problem;
    weft_group *group;
    void *a = NULL;

    if (weft_init(&group) != WEFT_OK || weft_alloc(group, (size_t)ROWS * SIDE * sizeof(float), 0, &a)) {
        fprintf(stderr, "new_sizes: %s\n", weft_error(NULL));
        return 1;
    }
    operands.a = a;
    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.n = problem.k = SIDE;
    for (problem.m = ROWS; problem.m > ROWS - 2; problem.m--)
        call(group, &problem, &operands);
    for (problem.m = 1; problem.m <= SIZES; problem.m++) {
        costs[problem.m - 1] = call(group, &problem, &operands);
        costs[problem.m - 1] -= call(group, &problem, &operands);
    }
    qsort(costs, SIZES, sizeof(*costs), compare);
    if (weft_rank(group) == 0)
        printf("a new size costs %.1f us beyond its run (median of %d; the most %.1f)\n", costs[SIZES / 2],
               SIZES, costs[SIZES - 1]);
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
        plan_all(group, op, WEFT_F32, argc > 1 ? atoi(argv[1]) : 16);
        plan_all(group, op, WEFT_BF16, argc > 1 ? atoi(argv[1]) : 16);
    }
    weft_finalize(group);
    free(b);
    free(d);
    return 0;
}
