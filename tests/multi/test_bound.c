/* Ranks that are really bound to CPUs: those that have some alone count on all of them, others divide. */
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cores.h"
#include "group/group.h"
#include "support/check.h"
#include <weft/weft.h>

typedef struct binding {
    int first, count; /* of the CPUs this process may use */
} binding;

static int cpus[CPU_SETSIZE], cpu_count;
static double quota; /* CPUs; 0: none */

static void find_cpus(void)
{
    cpu_set_t allowed;
    weft_cores here;

    CPU_ZERO(&allowed);
    CHECK_INT(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed))
            cpus[cpu_count++] = cpu;
    }
    weft_cores_here(&here);
    quota = here.quota;
}

static void bind_to(binding own)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = own.first; i < own.first + own.count; i++)
        CPU_SET(cpus[i], &set);
    CHECK_INT(sched_setaffinity(0, sizeof(set), &set), 0);
}

/* The workers of a plan whose number nobody asked for. */
static int default_workers(weft_group *group)
{
    weft_problem problem;
    weft_plan *plan = NULL;
    int workers = 0;

    weft_problem_init(&problem, WEFT_OP_GEMM_RS);
    problem.m = problem.n = 2048;
    problem.k = 256;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    if (plan) {
        workers = weft_plan_problem(plan)->tuning.workers;
        weft_plan_destroy(plan);
    }
    return workers;
}

static int be_rank(const weft_id *id, int rank, int size, binding own, double share)
{
    weft_group *group = NULL;

    bind_to(own);
    CHECK_INT(weft_group_create(id, rank, size, &group), WEFT_OK);
    if (!group)
        return 1;
    CHECK_INT(group->cores, share >= 2 ? (int)share : 1);
    CHECK_INT(group->alone, share >= 1);
    CHECK_INT(default_workers(group), share >= 2 ? (int)share : 1);
    weft_group_free(group);
    return check_report("multi bound, a rank");
}

/* Two ranks; each may count on `share` cores, quotas apart. */
static void test_pair(binding a, binding b, double share)
{
    const binding own[2] = {a, b};
    pid_t child[2];
    weft_id id;

    if (quota > 0 && quota / 2 < share)
        share = quota / 2;
    CHECK_INT(weft_id_create(&id), WEFT_OK);
    for (int rank = 0; rank < 2; rank++) {
        child[rank] = fork();
        if (child[rank] == 0)
            _exit(be_rank(&id, rank, 2, own[rank], share));
    }
    for (int rank = 0; rank < 2; rank++) {
        int status = -1;

        CHECK_INT(waitpid(child[rank], &status, 0), child[rank]);
        CHECK_INT(status, 0);
    }
}

int main(void)
{
    int half;

    find_cpus();
    half = cpu_count / 2;
    test_pair((binding){0, cpu_count}, (binding){0, cpu_count}, cpu_count / 2.0);
    test_pair((binding){0, 1}, (binding){0, 1}, 0.5);
    if (half >= 1) {
        test_pair((binding){0, half}, (binding){half, half}, half);
        test_pair((binding){0, half}, (binding){0, half}, half / 2.0);
        /* The narrower one decides for both: they run the same plan. */
        test_pair((binding){0, half}, (binding){half, 1}, 1);
    }
    return check_report("multi bound");
}
