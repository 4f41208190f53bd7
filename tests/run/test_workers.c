/* Threads of the library take no signal that is meant for the program. */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "support/check.h"
#include <weft/weft.h>

/* Threads besides this one, and those of them that have SIGTERM and SIGINT blocked. */
static int count_threads(int *quiet)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    *quiet = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300], line[128];
        unsigned long long blocked = 0, wanted = 1ull << (SIGTERM - 1) | 1ull << (SIGINT - 1);
        FILE *status;

        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        status = fopen(path, "r");
        while (status && fgets(line, sizeof(line), status))
            sscanf(line, "SigBlk: %llx", &blocked);
        if (status)
            fclose(status);
        count++;
        *quiet += (blocked & wanted) == wanted;
    }
    if (tasks)
        closedir(tasks);
    return count;
}

int main(void)
{
    weft_group *group = NULL;
    weft_plan *plan = NULL;
    weft_problem problem;
    int count, quiet;

    weft_problem_init(&problem, WEFT_OP_GEMM_AR);
    problem.m = problem.n = problem.k = 64;
    problem.tuning.workers = 3;
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    count = count_threads(&quiet);
    CHECK_INT(count, 2);
    CHECK_INT(quiet, count);
    weft_plan_destroy(plan);
    weft_group_free(group);
    return check_report("test_run_workers");
}
