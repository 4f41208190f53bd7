/*
 * Parts of a test on the real GPU: each runs in a process of its own, so that one that fails leaves the
 * others a clean GPU; a table says how each went. Arguments name the parts to run; "small" ones, for tools
 * that slow everything down, run only when named. Without a GPU there is nothing to test: the test says so
 * and passes.
 */
#ifndef WEFT_TESTS_CUDA_DEVICE_PARTS_H
#define WEFT_TESTS_CUDA_DEVICE_PARTS_H

#include "support/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

enum { NO_GPU = 77, PART_SECONDS = 200 };

typedef struct device_part {
    const char *name;
    void (*part)(int);
    int world;
} device_part;

static bool device_missing;

static inline double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void look_for_gpu(int world)
{
    weft_group *group;

    (void)world;
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    weft_status status = weft_group_use_gpu(group, 0);
    if (status == WEFT_ERR_UNSUPPORTED) {
        printf("no GPU to test on: %s\n", weft_error(group));
        fflush(stdout);
        _exit(NO_GPU);
    }
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "%s\n", weft_error(group));
    weft_group_free(group);
}

/* In a child of its own; its exit status. */
static inline int run_part(const char *name, void (*part)(int), int world)
{
    double begun = now();
    int status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        alarm(PART_SECONDS);
        check_failures = 0;
        part(world);
        exit(check_failures ? 1 : 0);
    }
    while (waitpid(child, &status, 0) < 0)
        ;
    status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (status != NO_GPU)
        printf("%-14s %2d ranks  %-6s %6.1f s\n", name, world < 0 ? -world : world,
               status == 0               ? "ok"
               : status == 128 + SIGALRM ? "stuck"
                                         : "FAILED",
               now() - begun);
    return status;
}

static inline void device_parts_run(const device_part *parts, int count, int argc, char **argv)
{
    int status = run_part("a GPU", look_for_gpu, 1);

    device_missing = status == NO_GPU;
    if (device_missing)
        return;
    CHECK_INT(status, 0);
    for (int i = 0; i < count; i++) {
        bool asked = argc == 1 && strncmp(parts[i].name, "small", strlen("small")) != 0;

        char label[64]; /* as "threads", or "threads 6" alone */

        snprintf(label, sizeof(label), "%s %d", parts[i].name, parts[i].world);
        for (int j = 1; j < argc; j++)
            asked |= strstr(label, argv[j]) != NULL;
        if (asked)
            CHECK_INT(run_part(parts[i].name, parts[i].part, parts[i].world), 0);
    }
}

static inline int device_parts_report(const char *name)
{
    return device_missing ? 0 : check_report(name);
}

#endif
