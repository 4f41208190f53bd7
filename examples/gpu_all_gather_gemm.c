/*
 * The product of all_gather_gemm.c on GPUs: bfloat16, ten calls in the order of a stream.
 *
 *     cc gpu_all_gather_gemm.c -lweft && weft run -n 2 -- ./a.out
 *
 * One line puts the group on GPUs; from there on weft_alloc gives GPU memory and calls run as kernels. Ranks
 * take the machine's GPUs in turn, and share them when there are more ranks than GPUs. A program that has
 * CUDA streams of its own passes one to weft_group_set_stream.
 */
#include <stdint.h>
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

/* GPU memory with that bfloat16 in all of its elements. */
static void *filled(weft_group *group, int64_t elements, uint16_t value)
{
    uint16_t *host = malloc(2 * (size_t)elements);
    void *memory;

    for (int64_t i = 0; i < elements; i++)
        host[i] = value;
    check(weft_alloc(group, 2 * (size_t)elements, 0, &memory), group);
    check(weft_memcpy(group, memory, host, 2 * (size_t)elements), group);
    free(host);
    return memory;
}

int main(void)
{
    const uint16_t one = 0x3f80, half = 0x3f00;
    weft_operands operands = {.size = sizeof operands};
    weft_problem problem;
    weft_group *group;
    float first, last;

    check(weft_init(&group), NULL);
    check(weft_group_use_gpu(group, -1), group);
    check(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), group);
    weft_problem_init(&problem, WEFT_OP_AG_GEMM);
    problem.m = 1024, problem.n = 768, problem.k = 512; /* of the whole matrices */
    problem.dtype = WEFT_BF16, problem.d_dtype = WEFT_F32;
    int64_t ranks = weft_size(group), rows = weft_part(problem.m, ranks, 0).count, /* of the rank with most */
        cols = weft_part(problem.n, ranks, weft_rank(group)).count,
            most = weft_part(problem.n, ranks, 0).count;

    operands.a = filled(group, rows * problem.k, one);
    operands.b = filled(group, problem.k * most, half);
    operands.d = filled(group, 2 * problem.m * most, 0);
    for (int i = 0; i < 10; i++) /* the first meets the peers on the host; the others just go on the stream */
        check(weft_ag_gemm(group, &problem, &operands), group);
    check(weft_group_wait(group), group);
    check(weft_memcpy(group, &first, operands.d, sizeof first), group);
    check(weft_memcpy(group, &last, (float *)operands.d + (problem.m - 1) * cols, sizeof last), group);
    printf("rank %d of %d: D[0][0] = %g, D[m-1][0] = %g\n", weft_rank(group), weft_size(group), first, last);
    check(weft_barrier(group), group); /* a peer may still need this rank's memory */
    check(weft_finalize(group), NULL);
    return first != 256 || last != 256;
}
