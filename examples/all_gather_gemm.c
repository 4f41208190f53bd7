/*
 * Multiply a matrix whose rows are spread over ranks by weights whose columns are spread over ranks.
 *
 *     cc all_gather_gemm.c -lweft && weft run -n 2 -- ./a.out
 *
 * Rank r has rows part r of A and columns part r of B, and gets columns part r of D = A B. The peers' rows of
 * A are read while the product runs; there is no separate all-gather.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

static void check(weft_status status, weft_group *group)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

int main(void)
{
    weft_problem problem;
    weft_group *group;
    float *a;

    check(weft_init(&group), NULL);
    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = 1024, problem.n = 768, problem.k = 512; /* of the whole matrices */
    int64_t rank = weft_rank(group), ranks = weft_size(group), rows = weft_part(problem.m, ranks, rank).count,
            cols = weft_part(problem.n, ranks, rank).count;

    /* Any memory will do. Peers read A: in symmetric memory, where it is as large on all, they do so in
     * place. */
    check(weft_alloc(group, sizeof(float) * weft_part(problem.m, ranks, 0).count * problem.k, 0, (void **)&a),
          group);
    float *b = malloc(sizeof(float) * problem.k * cols), *d = malloc(sizeof(float) * problem.m * cols);
    for (int64_t i = 0; i < rows * problem.k; i++)
        a[i] = (float)(rank + 1);
    for (int64_t i = 0; i < problem.k * cols; i++)
        b[i] = 0.5f;

    check(weft_ag_gemm(group, &problem, &(weft_operands){sizeof(weft_operands), .a = a, .b = b, .d = d}),
          group);
    printf("rank %d of %d: D[0][0] = %g, D[m-1][0] = %g\n", (int)rank, (int)ranks, d[0],
           d[(problem.m - 1) * cols]);
    check(weft_finalize(group), NULL);
    int right = d[0] == 256 && d[(problem.m - 1) * cols] == 256 * ranks;
    free(b);
    free(d);
    return !right;
}
