/*
 * Multiply a matrix whose rows are spread over ranks by weights whose columns are spread over ranks.
 *
 *     cc all_gather_gemm.c -lweft && weft run -n 2 -- ./a.out
 *
 * Rank r has rows part r of A and columns part r of B, and gets columns part r of D = A B. The peers' rows of
 * A are read while the product runs; there is no separate all-gather.
 */
#include <stdio.h>
#include <weft/weft.h>

static int fail(weft_group *group)
{
    fprintf(stderr, "%s\n", weft_error(group));
    return 1;
}

int main(void)
{
    const int m = 1024, n = 768, k = 512; /* of the whole matrices */
    weft_operands operands = {.size = sizeof operands};
    weft_problem problem;
    weft_group *group;
    float *a, *b, *d;
    double sum = 0;

    if (weft_init(&group) != WEFT_OK)
        return fail(NULL);
    int rank = weft_rank(group), ranks = weft_size(group), rows = m / ranks, cols = n / ranks;
    if (m % ranks || n % ranks) /* any number works: the first m mod ranks of them then have one row more */
        return fprintf(stderr, "this example wants a number of ranks that divides %d and %d\n", m, n), 1;

    /* Peers read A: in symmetric memory they do so in place. B and D could come from malloc. */
    if (weft_alloc(group, sizeof(float) * rows * k, 0, (void **)&a) != WEFT_OK ||
        weft_alloc(group, sizeof(float) * k * cols, 0, (void **)&b) != WEFT_OK ||
        weft_alloc(group, sizeof(float) * m * cols, 0, (void **)&d) != WEFT_OK)
        return fail(group);
    for (int i = 0; i < rows * k; i++)
        a[i] = (float)(rank + 1);
    for (int i = 0; i < k * cols; i++)
        b[i] = 0.5f;

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = m, problem.n = n, problem.k = k;
    operands.a = a, operands.b = b, operands.d = d;
    if (weft_ag_gemm(group, &problem, &operands) != WEFT_OK)
        return fail(group);

    for (int i = 0; i < m * cols; i++)
        sum += d[i];
    printf("rank %d of %d: D[0][0] = %g, D[m-1][0] = %g, mean %g\n", rank, ranks, d[0], d[(m - 1) * cols],
           sum / m / cols);
    return weft_finalize(group) == WEFT_OK ? 0 : 1;
}
