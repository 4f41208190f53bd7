/*
 * The product of all_gather_gemm.c on GPUs: bfloat16, ten runs in the order of a stream.
 *
 *     cc gpu_all_gather_gemm.c -lweft && weft run -n 2 -- ./a.out
 *
 * One line puts the group on GPUs; from there on weft_alloc gives GPU memory and plans run as kernels. Ranks
 * take the machine's GPUs in turn, and share them when there are more ranks than GPUs. A program that has
 * CUDA streams of its own passes one to weft_run_on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

static int fail(weft_group *group)
{
    fprintf(stderr, "%s\n", weft_error(group));
    return 1;
}

static float value_of(uint16_t bfloat16)
{
    union {
        uint32_t bits;
        float value;
    } x = {(uint32_t)bfloat16 << 16};

    return x.value;
}

int main(void)
{
    const int m = 1024, n = 768, k = 512; /* of the whole matrices */
    const uint16_t one = 0x3f80, half = 0x3f00;
    weft_operands operands = {.size = sizeof operands};
    weft_problem problem;
    weft_group *group;
    weft_plan *plan;
    void *a, *b, *d;

    if (weft_init(&group) != WEFT_OK)
        return fail(NULL);
    if (weft_group_use_gpu(group, -1) != WEFT_OK)
        return fail(group);
    int ranks = weft_size(group), rows = m / ranks, cols = n / ranks;
    if (m % ranks || n % ranks) /* any number works: the first m mod ranks of them then have one row more */
        return fprintf(stderr, "this example wants a number of ranks that divides %d and %d\n", m, n), 1;

    /* Peers read A: in symmetric memory it is read in place. All three could come from cudaMalloc. */
    if (weft_alloc(group, 2u * rows * k, 0, &a) != WEFT_OK ||
        weft_alloc(group, 2u * k * cols, 0, &b) != WEFT_OK ||
        weft_alloc(group, 2u * m * cols, 0, &d) != WEFT_OK)
        return fail(group);
    uint16_t *host = malloc(2u * m * (k > n ? k : n));
    if (!host)
        return 1;
    for (int i = 0; i < rows * k; i++)
        host[i] = one;
    if (weft_memcpy(group, a, host, 2u * rows * k) != WEFT_OK)
        return fail(group);
    for (int i = 0; i < k * cols; i++)
        host[i] = half;
    if (weft_memcpy(group, b, host, 2u * k * cols) != WEFT_OK)
        return fail(group);

    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = m, problem.n = n, problem.k = k;
    problem.dtype = problem.d_dtype = WEFT_BF16;
    operands.a = a, operands.b = b, operands.d = d;
    if (weft_plan_create(group, &problem, &plan) != WEFT_OK)
        return fail(group);
    for (int i = 0; i < 10;
         i++) /* only the first meets the peers on the host; the rest just go on the stream */
        if (weft_run_on(plan, &operands, WEFT_STREAM_OWN) != WEFT_OK)
            return fail(group);
    if (weft_run_wait(plan, WEFT_STREAM_OWN) != WEFT_OK ||
        weft_memcpy(group, host, d, 2u * m * cols) != WEFT_OK)
        return fail(group);
    printf("rank %d of %d: D[0][0] = %g, D[m-1][0] = %g\n", weft_rank(group), ranks,
           (double)value_of(host[0]), (double)value_of(host[(m - 1) * cols]));
    free(host);
    weft_plan_destroy(plan);
    return weft_barrier(group) == WEFT_OK && weft_finalize(group) == WEFT_OK ? 0 : 1;
}
