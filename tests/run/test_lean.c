/*
 * A run allocates nothing and makes no system call but those of a wait that has become long: after the first
 * run of each plan, ranks forbid themselves every other call (a filter that kills) and count what they
 * allocate.
 */
#include "support/check.h"
#include "support/procs.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
enum { INSTRUMENTED = 1 }; /* the sanitizers allocate and call the system themselves */
static long allocations;
#else
enum { INSTRUMENTED = 0 };
static long allocations;

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations++;
    return __libc_calloc(count, bytes);
}
#endif

#define ALLOW(number)                                                                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* What a wait may do once it has spun for long, and what ends the process. */
static bool forbid_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(__NR_sched_yield),
        ALLOW(__NR_futex),
        ALLOW(__NR_nanosleep),
        ALLOW(__NR_clock_nanosleep),
        ALLOW(__NR_clock_gettime),
        ALLOW(__NR_getrusage), /* of ranks that outnumber the cores: whether they share one */
        ALLOW(__NR_getcpu),
        ALLOW(__NR_fcntl),
        ALLOW(__NR_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof(rules) / sizeof(*rules), .filter = rules};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum { M = 96, N = 80, K = 64, PLANS = 9, BYTES = M * N * 8 };

static void lean(int rank, void *argument)
{
    weft_operands operands = {.size = sizeof(operands)};
    weft_group *group = NULL;
    weft_plan *plans[PLANS];
    void *a, *b, *d;
    long before;
    int wrong = 0;

    (void)rank;
    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_alloc(group, BYTES, 0, &a), WEFT_OK);
    CHECK_INT(weft_alloc(group, BYTES, 0, &b), WEFT_OK);
    CHECK_INT(weft_alloc(group, BYTES, 0, &d), WEFT_OK);
    operands.a = operands.send = a;
    operands.b = b;
    operands.d = operands.recv = d;
    for (int i = 0; i < PLANS; i++) {
        weft_problem problem;

        weft_problem_init(&problem, (weft_op)i);
        problem.m = M;
        problem.n = N;
        problem.k = K;
        problem.tuning.tile_m = 16;
        problem.count = 2000;
        CHECK_INT(weft_plan_create(group, &problem, &plans[i]), WEFT_OK);
        CHECK_INT(weft_run(plans[i], &operands), WEFT_OK);
    }
    CHECK_INT(weft_all_reduce(group, a, d, 8, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_all_gather(group, a, d, 4000, WEFT_BYTE), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (!INSTRUMENTED && !forbid_calls())
        fprintf(stderr, "note: this system has no filters for system calls: %s\n", strerror(errno));
    before = allocations;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < PLANS; i++)
            wrong += weft_run(plans[i], &operands) != WEFT_OK;
        wrong += weft_all_reduce(group, a, d, 8, WEFT_F32, WEFT_SUM) != WEFT_OK;
        wrong += weft_all_gather(group, a, d, 4000, WEFT_BYTE) != WEFT_OK;
    }
    wrong += allocations != before;
    _exit(wrong || check_failures ? 1 : 0);
}

int main(void)
{
    procs_run(1, lean, NULL);
    procs_run(2, lean, NULL);
    procs_run(4, lean, NULL);
    return check_report("test_run_lean");
}
