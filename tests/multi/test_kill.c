/* A rank killed in the middle of a run: every survivor's call returns an error that names it, soon, and the
 * process lives on. */
#include <stdatomic.h>
#include <sys/mman.h>

#include "support/check.h"
#include "support/procs.h"

enum { RANKS = 4, M = 512, N = 512, K = 512 };

typedef struct victim {
    weft_op op;
    _Atomic int runs; /* that it has made */
} victim;

static void run_until_error(int rank, void *argument)
{
    victim *v = argument;
    weft_op op = v->op;
    weft_operands operands = {.size = sizeof(operands)};
    weft_problem problem;
    weft_group *group = NULL;
    weft_plan *plan = NULL;
    weft_status status;
    void *a, *b, *d;

    CHECK_INT(weft_init(&group), WEFT_OK);
    weft_problem_init(&problem, op);
    problem.m = M;
    problem.n = N;
    problem.k = K;
    problem.count = M * K;
    CHECK_INT(weft_alloc(group, M * K * 4, 0, &a), WEFT_OK);
    CHECK_INT(weft_alloc(group, K * N * 4, 0, &b), WEFT_OK);
    CHECK_INT(weft_alloc(group, M * N * 4, 0, &d), WEFT_OK);
    operands.a = operands.send = a;
    operands.b = b;
    operands.d = operands.recv = d;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    do {
        status = weft_run(plan, &operands);
        if (rank == 2)
            v->runs++;
    } while (status == WEFT_OK);
    CHECK_INT(status, WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 2");
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_PEER_DIED);
    CHECK_INT(weft_all_reduce(group, a, d, 4, WEFT_F32, WEFT_SUM), WEFT_ERR_PEER_DIED);
    weft_plan_destroy(plan);
    weft_finalize(group);
}

int main(void)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS,
                                  WEFT_OP_ALL_REDUCE};
    long rounds = check_repeat(1, 20);
    victim *v = mmap(NULL, sizeof(*v), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (v == MAP_FAILED)
        return 1;
    for (long round = 0; round < rounds; round++) {
        for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
            uint64_t state = (uint64_t)round * 10 + i;
            procs all;

            *v = (victim){.op = ops[i]};
            all = procs_start(RANKS, run_until_error, v);
            while (v->runs == 0)
                usleep(1000);
            usleep((useconds_t)(check_random(&state) % 100000));
            CHECK_INT(kill(all.pids[2], SIGKILL), 0);
            CHECK_INT(procs_wait(&all, 2), 128 + SIGKILL);
            procs_join(&all);
        }
    }
    return check_report("test_multi_kill");
}
