/*
 * What operands outside symmetric memory cost: each operation with buffers of weft_alloc and with those of
 * malloc, in turn, median microseconds of the slowest rank's calls. One worker a rank.
 *
 * usage: weft run -n RANKS [--nodes NODES] -- user_memory [rounds [beginning of the operations' names]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/weft.h>

enum { MOST_ROUNDS = 1001 };

typedef struct buffers {
    void *in, *other, *out;
} buffers;

typedef struct job {
    const char *name;
    weft_op op;
    int64_t m, n, k, count; /* a product's sizes, or a collective's elements */
} job;

static double now_us(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec * 1e-3;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static void need(weft_group *group, weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "user_memory: %s\n", weft_error(group));
    exit(1);
}

static weft_status call(weft_group *group, const job *j, const buffers *b)
{
    weft_operands operands = {.size = sizeof(operands), .a = b->in, .b = b->other, .d = b->out};
    weft_problem problem;

    switch (j->op) {
    case WEFT_OP_ALL_REDUCE:
        return weft_all_reduce(group, b->in, b->out, j->count, WEFT_F32, WEFT_SUM);
    case WEFT_OP_ALL_GATHER:
        return weft_all_gather(group, b->in, b->out, j->count, WEFT_F32);
    case WEFT_OP_REDUCE_SCATTER:
        return weft_reduce_scatter(group, b->in, b->out, j->count, WEFT_F32, WEFT_SUM);
    case WEFT_OP_ALL_TO_ALL:
        return weft_all_to_all(group, b->in, b->out, j->count, WEFT_F32);
    default:
        break;
    }
    weft_problem_init(&problem, j->op);
    problem.m = j->m;
    problem.n = j->n;
    problem.k = j->k;
    problem.tuning.workers = 1;
    if (j->op == WEFT_OP_AG_GEMM)
        return weft_ag_gemm(group, &problem, &operands);
    return j->op == WEFT_OP_GEMM_AS ? weft_gemm_as(group, &problem, &operands)
                                    : weft_gemm_ar(group, &problem, &operands);
}

/* Elements of the largest buffer on a rank. */
static size_t elements(const job *j, int ranks)
{
    int64_t most = j->count * ranks;

    most = j->m * j->k > most ? j->m * j->k : most;
    most = j->k * j->n > most ? j->k * j->n : most;
    return (size_t)(j->m * j->n > most ? j->m * j->n : most);
}

static void measure(weft_group *group, const job *j, int rounds)
{
    size_t bytes = elements(j, weft_size(group)) * sizeof(float);
    static double times[2][MOST_ROUNDS];
    buffers given[2];

    for (int kind = 0; kind < 2; kind++) {
        void **all[] = {&given[kind].in, &given[kind].other, &given[kind].out};

        for (int i = 0; i < 3; i++) {
            if (kind == 0)
                need(group, weft_alloc(group, bytes, 0, all[i]));
            else if (!(*all[i] = malloc(bytes)))
                exit(1);
            memset(*all[i], 0, bytes);
        }
    }
    /* Ten of a kind in turn: a program does not change where its data lies from call to call. */
    for (int round = 0; round < rounds; round++) {
        for (int kind = 0; kind < 2; kind++) {
            double total = 0;

            for (int i = -2; i < 8; i++) {
                double begun, took;

                need(group, weft_barrier(group));
                begun = now_us();
                need(group, call(group, j, &given[kind]));
                took = now_us() - begun;
                need(group, weft_all_reduce(group, &took, &took, 1, WEFT_F64, WEFT_MAX));
                total += i < 0 ? 0 : took;
            }
            times[kind][round] = total / 8;
        }
    }
    qsort(times[0], (size_t)rounds, sizeof(double), compare);
    qsort(times[1], (size_t)rounds, sizeof(double), compare);
    if (weft_rank(group) == 0)
        printf("%-28s %10.1f %10.1f %7.3f\n", j->name, times[0][rounds / 2], times[1][rounds / 2],
               times[1][rounds / 2] / times[0][rounds / 2]);
    for (int i = 0; i < 3; i++) {
        void *shared[] = {given[0].in, given[0].other, given[0].out},
             *own[] = {given[1].in, given[1].other, given[1].out};

        need(group, weft_free(group, shared[i]));
        free(own[i]);
    }
}

int main(int argc, char **argv)
{
    static const job jobs[] = {
        {"all_reduce 256 KiB", WEFT_OP_ALL_REDUCE, 0, 0, 0, 64 << 10},
        {"all_reduce 1 MiB", WEFT_OP_ALL_REDUCE, 0, 0, 0, 256 << 10},
        {"all_reduce 16 MiB", WEFT_OP_ALL_REDUCE, 0, 0, 0, 4 << 20},
        {"all_gather 256 KiB", WEFT_OP_ALL_GATHER, 0, 0, 0, 64 << 10},
        {"all_gather 4 MiB", WEFT_OP_ALL_GATHER, 0, 0, 0, 1 << 20},
        {"reduce_scatter 4 MiB", WEFT_OP_REDUCE_SCATTER, 0, 0, 0, 1 << 20},
        {"all_to_all 4 MiB", WEFT_OP_ALL_TO_ALL, 0, 0, 0, 1 << 20},
        {"ag_gemm 512 512 1024", WEFT_OP_AG_GEMM, 512, 512, 1024, 0},
        {"ag_gemm 2048 128 1024", WEFT_OP_AG_GEMM, 2048, 128, 1024, 0},
        {"gemm_as 512 1024 128", WEFT_OP_GEMM_AS, 512, 1024, 128, 0},
        {"gemm_ar 512 1024 256", WEFT_OP_GEMM_AR, 512, 1024, 256, 0},
    };
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    weft_group *group;

    if (rounds < 1 || rounds > MOST_ROUNDS || weft_init(&group) != WEFT_OK) {
        fprintf(stderr, "user_memory: %s\n", weft_error(NULL));
        return 1;
    }
    if (weft_rank(group) == 0)
        printf("%-28s %10s %10s %7s\n", "us", "symmetric", "user's", "ratio");
    for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++)
        if (argc <= 2 || !strncmp(jobs[i].name, argv[2], strlen(argv[2])))
            measure(group, &jobs[i], rounds);
    weft_finalize(group);
    return 0;
}
