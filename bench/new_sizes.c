/*
 * What a size that no call had before costs beyond its run: weft_ag_gemm of 1 to 63 rows, after one of 256.
 *
 * usage: weft run -n RANKS -- new_sizes
 */
#include "core/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { ROWS = 256, SIDE = 1024, SIZES = 63 };

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

int main(void)
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
    weft_finalize(group);
    free(b);
    free(d);
    return 0;
}
